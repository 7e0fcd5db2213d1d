"""The operator's policy for targets, its lists of ports and networks, and the reasons of a refusal."""

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias

from marshmallow import ValidationError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
PortSet: TypeAlias = tuple[tuple[int, int], ...]

#: A port as it may be written: decimal, without leading zeros.
PORT = re.compile(r"0|[1-9][0-9]{0,4}")


class RefusalReason(StrEnum):
    """Why a URL or an address is refused; clients see this name and never the address."""

    TOO_LONG = "too_long"
    CONTROL_CHARACTER = "control_character"
    WHITESPACE = "whitespace"
    ZERO_WIDTH = "zero_width"
    BACKSLASH = "backslash"
    SCHEME_MISSING = "scheme_missing"
    SCHEME_NOT_ALLOWED = "scheme_not_allowed"
    FRAGMENT = "fragment"
    USERINFO = "userinfo"
    HOST_MISSING = "host_missing"
    HOST_PERCENT_ENCODED = "host_percent_encoded"
    HOST_NUMERIC = "host_numeric"
    HOST_NOT_IDNA = "host_not_idna"
    HOST_INVALID = "host_invalid"
    ZONE_ID = "zone_id"
    SINGLE_LABEL = "single_label"
    LOCAL_SUFFIX = "local_suffix"
    PORT_INVALID = "port_invalid"
    PORT_NOT_ALLOWED = "port_not_allowed"
    PATH_INVALID = "path_invalid"
    PARSERS_DISAGREE = "parsers_disagree"
    NAME_NOT_FOUND = "name_not_found"
    ADDRESS_METADATA = "address_metadata"
    ADDRESS_LOOPBACK = "address_loopback"
    ADDRESS_PRIVATE = "address_private"
    ADDRESS_LINK_LOCAL = "address_link_local"
    ADDRESS_CARRIER_NAT = "address_carrier_nat"
    ADDRESS_UNSPECIFIED = "address_unspecified"
    ADDRESS_BROADCAST = "address_broadcast"
    ADDRESS_MULTICAST = "address_multicast"
    ADDRESS_DOCUMENTATION = "address_documentation"
    ADDRESS_BENCHMARK = "address_benchmark"
    ADDRESS_RESERVED = "address_reserved"
    ADDRESS_6TO4 = "address_6to4"
    ADDRESS_NAT64 = "address_nat64"
    ADDRESS_TEREDO = "address_teredo"
    ADDRESS_COMPATIBLE = "address_compatible"


#: Addresses that no setting allows: metadata services, and addresses of no single host; 0.0.0.0 reaches the machine itself.
NEVER_ALLOWED: Final = frozenset(
    {
        RefusalReason.ADDRESS_METADATA,
        RefusalReason.ADDRESS_UNSPECIFIED,
        RefusalReason.ADDRESS_BROADCAST,
        RefusalReason.ADDRESS_MULTICAST,
    }
)


@dataclass(frozen=True)
class TargetPolicy:
    """The operator's exceptions from https to public addresses on ports 443 and 8443.

    `allowed_ports` holds inclusive ranges. `allowed_networks` allows addresses that `schemas.url_policy.addresses` would
    refuse, except metadata services and addresses that belong to no single host.
    """

    allow_http: bool = False
    allowed_ports: PortSet = ((443, 443), (8443, 8443))
    allowed_networks: tuple[Network, ...] = ()


def parse_ports(text: str) -> PortSet:
    """Parse ports and inclusive ranges such as "443,8443,8000-8999". Raises ValidationError."""
    return tuple(_port_range(entry.strip()) for entry in text.split(","))


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse networks in CIDR form such as "127.0.0.0/8,fd00::/8"; an address alone is a network of one.

    Returns none for empty text. Raises ValidationError.
    """
    try:
        return tuple(ipaddress.ip_network(entry.strip()) for entry in text.split(",")) if text.strip() else ()
    except ValueError:
        raise ValidationError("Use comma-separated networks such as 10.0.0.0/8, with host bits zero.") from None


def _port_range(entry: str) -> tuple[int, int]:
    low, dash, high = (part.strip() for part in entry.partition("-"))
    are_ports = PORT.fullmatch(low) and (not dash or PORT.fullmatch(high))
    first, last = (int(low), int(high or low)) if are_ports else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise ValidationError("Use comma-separated ports or ranges from 1 to 65535, such as 443,8000-8999.")
    return first, last
