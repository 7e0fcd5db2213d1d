"""Classifies addresses: the list below alone decides which may be dialed.

The standard library's `is_global` passes multicast, 6to4, NAT64 and metadata addresses.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from schemas.url_policy.policy import NEVER_ALLOWED, Address, RefusalReason, TargetPolicy

# Instance metadata services give credentials to every client: refused even if the operator allows the network.
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Google, Azure, Oracle, OpenStack, DigitalOcean, Hetzner and most others
        "169.254.170.2",  # AWS, credentials of ECS tasks
        "169.254.170.23",  # AWS, credentials of EKS pods
        "169.254.0.23",  # Tencent Cloud
        "169.254.42.42",  # Scaleway
        "100.100.100.200",  # Alibaba Cloud, inside the carrier NAT range
        "168.63.129.16",  # Azure's wire server, inside public space
        "192.0.0.192",  # Oracle Cloud Classic
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS, credentials of EKS pods
        "fd20:ce::254",  # Google
        "fd00:42::42",  # Scaleway
        "fd00:a9fe:a9fe::1",  # Linode
        "fe80::a9fe:a9fe",  # OpenStack
    )
)

# The first row that contains an address classifies it. Sources: IANA's special-purpose registries (RFC 6890) unless noted.
# Sinks and relays are refused although the registries call them globally reachable: no receiver is there.
_V4_CLASSES = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", RefusalReason.ADDRESS_UNSPECIFIED),  # RFC 791, "this network"
        ("10.0.0.0/8", RefusalReason.ADDRESS_PRIVATE),  # RFC 1918
        ("100.64.0.0/10", RefusalReason.ADDRESS_CARRIER_NAT),  # RFC 6598
        ("127.0.0.0/8", RefusalReason.ADDRESS_LOOPBACK),  # RFC 1122
        ("169.254.0.0/16", RefusalReason.ADDRESS_LINK_LOCAL),  # RFC 3927
        ("172.16.0.0/12", RefusalReason.ADDRESS_PRIVATE),  # RFC 1918
        ("192.0.0.0/24", RefusalReason.ADDRESS_RESERVED),  # RFC 6890, protocol assignments
        ("192.0.2.0/24", RefusalReason.ADDRESS_DOCUMENTATION),  # RFC 5737
        ("192.31.196.0/24", RefusalReason.ADDRESS_RESERVED),  # RFC 7535, AS112 sink
        ("192.52.193.0/24", RefusalReason.ADDRESS_RESERVED),  # RFC 7450, multicast relays
        ("192.88.99.0/24", RefusalReason.ADDRESS_6TO4),  # RFC 7526, former 6to4 relays
        ("192.168.0.0/16", RefusalReason.ADDRESS_PRIVATE),  # RFC 1918
        ("192.175.48.0/24", RefusalReason.ADDRESS_RESERVED),  # RFC 7534, AS112 sink
        ("198.18.0.0/15", RefusalReason.ADDRESS_BENCHMARK),  # RFC 2544
        ("198.51.100.0/24", RefusalReason.ADDRESS_DOCUMENTATION),  # RFC 5737
        ("203.0.113.0/24", RefusalReason.ADDRESS_DOCUMENTATION),  # RFC 5737
        ("224.0.0.0/4", RefusalReason.ADDRESS_MULTICAST),  # RFC 5771
        ("255.255.255.255/32", RefusalReason.ADDRESS_BROADCAST),  # RFC 919
        ("240.0.0.0/4", RefusalReason.ADDRESS_RESERVED),  # RFC 1112, future use
    )
)

_V6_CLASSES = tuple(
    (IPv6Network(network), reason)
    for network, reason in (
        ("::/128", RefusalReason.ADDRESS_UNSPECIFIED),  # RFC 4291
        ("::1/128", RefusalReason.ADDRESS_LOOPBACK),  # RFC 4291
        ("::/96", RefusalReason.ADDRESS_COMPATIBLE),  # RFC 4291, IPv4-compatible, deprecated
        ("64:ff9b::/96", RefusalReason.ADDRESS_NAT64),  # RFC 6052
        ("64:ff9b:1::/48", RefusalReason.ADDRESS_NAT64),  # RFC 8215
        ("2001::/32", RefusalReason.ADDRESS_TEREDO),  # RFC 4380
        ("2001:2::/48", RefusalReason.ADDRESS_BENCHMARK),  # RFC 5180
        ("2001::/23", RefusalReason.ADDRESS_RESERVED),  # RFC 2928, protocol assignments
        ("2001:db8::/32", RefusalReason.ADDRESS_DOCUMENTATION),  # RFC 3849
        ("2002::/16", RefusalReason.ADDRESS_6TO4),  # RFC 3056
        ("2620:4f:8000::/48", RefusalReason.ADDRESS_RESERVED),  # RFC 7534, AS112 sink
        ("3ffe::/16", RefusalReason.ADDRESS_RESERVED),  # RFC 3701, the returned 6bone
        ("3fff::/20", RefusalReason.ADDRESS_DOCUMENTATION),  # RFC 9637
        ("fc00::/7", RefusalReason.ADDRESS_PRIVATE),  # RFC 4193, unique local
        ("fe80::/10", RefusalReason.ADDRESS_LINK_LOCAL),  # RFC 4291
        ("fec0::/10", RefusalReason.ADDRESS_PRIVATE),  # RFC 3879, site-local, deprecated
        ("ff00::/8", RefusalReason.ADDRESS_MULTICAST),  # RFC 4291
    )
)

# RFC 4291: all global unicast that IANA assigns. The rest (100::/64 that discards, 5f00::/16 of segment routing, future
# assignments) is refused without a row.
_V6_GLOBAL_UNICAST = IPv6Network("2000::/3")

# Prefixes whose addresses contain an IPv4 address at a fixed place, and the number of bits to shift it to the right.
_V6_EMBEDDING = tuple(
    (IPv6Network(network), shift)
    for network, shift in (
        ("::/96", 0),
        ("::ffff:0:0:0/96", 0),  # RFC 2765, translated
        ("64:ff9b::/96", 0),
        ("2002::/16", 80),
    )
)
_TEREDO = IPv6Network("2001::/32")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_V4_MASK = 0xFFFFFFFF
_LOW_56_BITS = (1 << 56) - 1

#: Cached classes of addresses: each attempt needs one, and searching the whole list takes 20 µs.
CLASSES_KEPT = 1024


def classify(address: Address, policy: TargetPolicy) -> RefusalReason | None:
    """Return why `address` must not be dialed, or None if it may be."""
    if isinstance(address, IPv4Address):
        return _classify_v4(address, policy)
    return _classify_v6(IPv6Address(int(address)), policy)  # a scope id would prevent matches with the sets above


@lru_cache(maxsize=CLASSES_KEPT)
def address_class(text: str) -> str:
    """Return the class of an address that was dialed: `public`, or why it is not public, such as `address_private`."""
    return classify(ipaddress.ip_address(text), TargetPolicy()) or "public"


def check_addresses(addresses: Iterable[Address], policy: TargetPolicy) -> RefusalReason | None:
    """Classify all addresses of a name: one forbidden address refuses the name; without an address it is `name_not_found`.

    Returns None if every address may be dialed.
    """
    verdicts = [classify(address, policy) for address in addresses]
    if not verdicts:
        return RefusalReason.NAME_NOT_FOUND
    return next(filter(None, verdicts), None)


def _classify_v4(address: IPv4Address, policy: TargetPolicy) -> RefusalReason | None:
    if address in _METADATA:
        return RefusalReason.ADDRESS_METADATA
    reason = next((reason for network, reason in _V4_CLASSES if address in network), None)
    return None if _is_allowed(address, reason, policy) else reason


def _classify_v6(address: IPv6Address, policy: TargetPolicy) -> RefusalReason | None:
    """Classify by the list, then by the embedded IPv4 address: an allowed prefix must not bypass the list."""
    if address.ipv4_mapped:
        return _classify_v4(address.ipv4_mapped, policy)  # the kernel connects to the mapped address, so only it matters
    embedded = _embedded(address)
    if address in _METADATA or not _METADATA.isdisjoint(embedded + _possibly_embedded(address)):
        return RefusalReason.ADDRESS_METADATA
    reason = _v6_class(address)
    if not _is_allowed(address, reason, policy):
        return reason
    return next(filter(None, (_classify_v4(inner, policy) for inner in embedded)), None)


def _v6_class(address: IPv6Address) -> RefusalReason | None:
    for network, reason in _V6_CLASSES:
        if address in network:
            return reason
    return None if address in _V6_GLOBAL_UNICAST else RefusalReason.ADDRESS_RESERVED


def _is_allowed(address: Address, reason: RefusalReason | None, policy: TargetPolicy) -> bool:
    if reason is None:
        return True
    return reason not in NEVER_ALLOWED and any(address in network for network in policy.allowed_networks)


def _embedded(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 address that packets to `address` reach, for prefixes with a fixed place."""
    if address.is_loopback or address.is_unspecified:
        return ()  # both are in the IPv4-compatible range and embed nothing
    shifts = (shift for network, shift in _V6_EMBEDDING if address in network)
    return tuple(IPv4Address(int(address) >> shift & _V4_MASK) for shift in shifts)


def _possibly_embedded(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that `address` may embed, if only the local network knows their place.

    Teredo contains a server and, inverted, a client. Local NAT64 may use any prefix length of RFC 6052 from /48 on, which
    leaves bits 64 to 71 empty.
    """
    bits = int(address)
    if address in _TEREDO:
        return IPv4Address(bits >> 64 & _V4_MASK), IPv4Address(~bits & _V4_MASK)
    if address in _LOCAL_NAT64:
        without_gap = bits >> 64 << 56 | bits & _LOW_56_BITS
        places = (without_gap >> 40, without_gap >> 32, without_gap >> 24, bits)  # /48, /56, /64, /96
        return tuple(IPv4Address(place & _V4_MASK) for place in places)
    return ()
