"""Where tickets may go: the form of a target's URL, and the classes of addresses.

A URL comes from a customer and is dialled from inside the operator's network, so two questions are asked,
each answered by a value with a name. `check_url` asks whether every reader of the URL finds the same host
in it; what one parser might read differently from another (userinfo, numbers dressed up as names, percent
signs, characters that nobody sees) is refused, not repaired. `classify` asks whether an address may be
dialled, by the list below and nothing else: the standard library's `is_global` passes multicast, 6to4,
NAT64 and metadata addresses.

A name that passes `check_url` says nothing about where it leads: its answers go through `check_addresses`,
and the socket is opened to an address that was in them.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias
from urllib.parse import quote, urlsplit

import idna

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
PortSet: TypeAlias = tuple[tuple[int, int], ...]

# Proxies and receivers commonly stop at 2 KiB; real receiver addresses stay below 300.
MAX_URL_CHARACTERS = 2048

# RFC 1035: 255 bytes on the wire are 253 characters without the trailing dot.
MAX_HOST_CHARACTERS = 253

DEFAULT_PORTS = {"http": 80, "https": 443}


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


@dataclass(frozen=True)
class TargetPolicy:
    """What the operator allows beyond https to public addresses on ports 443 and 8443.

    `allowed_ports` holds inclusive ranges. `allowed_networks` opens addresses that the list below would
    refuse, except metadata services and what is no single host's address.
    """

    allow_http: bool = False
    allowed_ports: PortSet = ((443, 443), (8443, 8443))
    allowed_networks: tuple[Network, ...] = ()


@dataclass(frozen=True)
class TargetAddress:
    """A URL in the one form that is stored and dialled.

    `host` is ASCII and lower-case, without brackets or trailing dot. `address` is set where the host is a
    literal, which has been classified already. `url` leaves out a port that its scheme implies.
    """

    scheme: str
    host: str
    port: int
    path_and_query: str
    url: str
    address: Address | None = None


@dataclass(frozen=True)
class UrlRefusal:
    """A URL or an answer that must not be dialled."""

    reason: RefusalReason


def parse_ports(text: str) -> PortSet:
    """Read ports and inclusive ranges such as "443,8443,8000-8999".

    Raises ValueError, which quotes the entry that is wrong.
    """
    return tuple(_port_range(entry.strip()) for entry in text.split(","))


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read networks in CIDR form such as "127.0.0.0/8,fd00::/8".

    A bare address stands for itself, empty text for none. Raises ValueError, which quotes the entry that is
    wrong.
    """
    return tuple(_network(entry.strip()) for entry in text.split(",")) if text.strip() else ()


def check_url(url: str, policy: TargetPolicy) -> TargetAddress | UrlRefusal:
    """Judge the form of `url`, and a literal host's address too. Takes any text and never raises."""
    try:
        return _read_url(url, policy)
    except _Refused as refused:
        return UrlRefusal(refused.reason)


def classify(address: Address, policy: TargetPolicy) -> RefusalReason | None:
    """Say why `address` must not be dialled, or None if it may be."""
    if isinstance(address, IPv4Address):
        return _classify_v4(address, policy)
    return _classify_v6(IPv6Address(int(address)), policy)  # a scope id would hide it from the sets below


def check_addresses(addresses: Iterable[Address], policy: TargetPolicy) -> UrlRefusal | None:
    """Judge all that a name resolved to: one bad answer refuses the whole, and no answer is `name_not_found`.

    Returns None if every address may be dialled.
    """
    verdicts = [classify(address, policy) for address in addresses]
    if not verdicts:
        return UrlRefusal(RefusalReason.NAME_NOT_FOUND)
    return next((UrlRefusal(reason) for reason in verdicts if reason), None)


# --- The form of a URL --------------------------------------------------------

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?(?P<authority>[^/?]*)(?P<rest>.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>.*))?", re.DOTALL)
_PORT = re.compile(r"0|[1-9][0-9]{0,4}")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")

# What inet_aton, and the WHATWG's URL parser after it, take for the last part of an IPv4 address.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# Characters that leave no mark though Unicode does not call them format characters: joiners, fillers,
# variation selectors.
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_CATEGORY_REASONS = {
    "Cc": RefusalReason.CONTROL_CHARACTER,
    "Cs": RefusalReason.CONTROL_CHARACTER,  # half a surrogate pair: no bytes stand for it
    "Zl": RefusalReason.CONTROL_CHARACTER,
    "Zp": RefusalReason.CONTROL_CHARACTER,
    "Zs": RefusalReason.WHITESPACE,
    "Cf": RefusalReason.ZERO_WIDTH,
}

# Names that the public DNS cannot hold or must not answer, and names that networks use for their own
# machines.
_LOCAL_SUFFIXES = frozenset(
    {
        "localhost",  # RFC 6761
        "test",  # RFC 6761, left to private use
        "invalid",  # RFC 6761
        "local",  # RFC 6762, multicast DNS
        "onion",  # RFC 7686
        "home.arpa",  # RFC 8375
        "alt",  # RFC 9476
        "internal",  # reserved by ICANN in 2024 for private use; cloud metadata names live here
        "home",  # with corp and mail: never to be delegated (ICANN, 2018)
        "corp",
        "mail",
        "intranet",  # RFC 6762, appendix G: private use seen in the wild, as the next three
        "private",
        "lan",
        "localdomain",  # the default of many Linux installers
    }
)

_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"  # RFC 3986 pchar, and the slash; percent signs are checked before


class _Refused(Exception):
    def __init__(self, reason: RefusalReason) -> None:
        super().__init__(reason)
        self.reason = reason


def _read_url(url: str, policy: TargetPolicy) -> TargetAddress:
    _refuse_characters(url)
    scheme, authority, path_and_query = _split(url, policy)
    written_host, port = _split_authority(authority, scheme, policy)
    host, address = _read_host(written_host)
    normal = f"{scheme}://{_netloc(scheme, host, port)}{path_and_query}"
    if len(normal) > MAX_URL_CHARACTERS:  # encoding makes up to nine characters of one
        raise _Refused(RefusalReason.TOO_LONG)
    target = TargetAddress(scheme, host, port, path_and_query, normal, address)
    _refuse_second_reading(url, written_host.strip("[]"), port, scheme)
    _refuse_second_reading(target.url, host, port, scheme)
    _refuse_address(address, policy)
    return target


def _refuse_characters(url: str) -> None:
    if len(url) > MAX_URL_CHARACTERS:
        raise _Refused(RefusalReason.TOO_LONG)
    for character in url:
        reason = _CATEGORY_REASONS.get(unicodedata.category(character))
        if reason:
            raise _Refused(reason)
    if _UNSEEN.search(url):
        raise _Refused(RefusalReason.ZERO_WIDTH)
    if "\\" in url:
        raise _Refused(RefusalReason.BACKSLASH)


def _split(url: str, policy: TargetPolicy) -> tuple[str, str, str]:
    """Cut `url` into a scheme, an authority, and a path with its query. Characters have been checked."""
    match = _URL.fullmatch(url)
    if not match:
        raise _Refused(RefusalReason.SCHEME_MISSING)
    scheme = match["scheme"].lower()
    if scheme != "https" and not (scheme == "http" and policy.allow_http):
        raise _Refused(RefusalReason.SCHEME_NOT_ALLOWED)
    if "#" in url:
        raise _Refused(RefusalReason.FRAGMENT)
    if not match["slashes"] or not match["authority"]:
        raise _Refused(RefusalReason.HOST_MISSING)
    return scheme, match["authority"], _read_path(match["rest"])


def _read_path(rest: str) -> str:
    """Bring path and query into the form in which they are sent: RFC 3986, section 6.2.2.

    A path that begins with two slashes can be taken for an authority, and dot segments are resolved by some
    and sent by others: both are refused.
    """
    path, _, query = _PERCENT.sub(_normal_percent, rest).partition("?")
    if path.startswith("//") or not {".", ".."}.isdisjoint(path.split("/")):
        raise _Refused(RefusalReason.PATH_INVALID)
    path = quote(path, safe=_PATH_CHARACTERS) or "/"
    return f"{path}?{quote(query, safe=_PATH_CHARACTERS + '?')}" if query else path


def _normal_percent(match: re.Match[str]) -> str:
    if match[1] is None:
        raise _Refused(RefusalReason.PATH_INVALID)
    character = chr(int(match[1], 16))
    return character if character in _UNRESERVED else match[0].upper()


def _split_authority(authority: str, scheme: str, policy: TargetPolicy) -> tuple[str, int]:
    if "@" in authority:
        raise _Refused(RefusalReason.USERINFO)
    match = _AUTHORITY.fullmatch(authority)
    if not match:
        raise _Refused(RefusalReason.HOST_INVALID)
    if not match["host"]:
        raise _Refused(RefusalReason.HOST_MISSING)
    return match["host"], _read_port(match["port"], scheme, policy)


def _read_port(digits: str | None, scheme: str, policy: TargetPolicy) -> int:
    if digits is not None and not _PORT.fullmatch(digits):
        raise _Refused(RefusalReason.PORT_INVALID)
    port = DEFAULT_PORTS[scheme] if digits is None else int(digits)
    if port > 65535:
        raise _Refused(RefusalReason.PORT_INVALID)
    if port == 0 or not any(low <= port <= high for low, high in policy.allowed_ports):
        raise _Refused(RefusalReason.PORT_NOT_ALLOWED)
    return port


def _read_host(written: str) -> tuple[str, Address | None]:
    if written.startswith("["):
        v6 = _read_v6(written[1:-1])
        return _v6_text(v6), v6
    if "%" in written:
        raise _Refused(RefusalReason.HOST_PERCENT_ENCODED)
    v4 = _plain_dotted_quad(written)
    return (str(v4), v4) if v4 else (_read_name(written), None)


def _read_v6(text: str) -> IPv6Address:
    if "%" in text:
        raise _Refused(RefusalReason.ZONE_ID)
    try:
        return IPv6Address(text)
    except ValueError:
        raise _Refused(RefusalReason.HOST_INVALID) from None


def _v6_text(address: IPv6Address) -> str:
    """RFC 5952, with a mapped address in hexadecimal: Python's versions differ in how they write that one."""
    if address.ipv4_mapped:
        embedded = int(address.ipv4_mapped)
        return f"::ffff:{embedded >> 16:x}:{embedded & 0xFFFF:x}"
    return str(address)


def _netloc(scheme: str, host: str, port: int) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if DEFAULT_PORTS[scheme] == port else f"{bracketed}:{port}"


def _plain_dotted_quad(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)  # four decimal numbers without leading zeros, in ASCII
    except ValueError:
        return None


def _read_name(written: str) -> str:
    """Turn a host name into ASCII, then judge the result: IDNA maps wide digits and dots to plain ones."""
    name = _to_ascii(written).removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        raise _Refused(RefusalReason.HOST_NUMERIC)
    if len(name) > MAX_HOST_CHARACTERS or not all(_LABEL.fullmatch(label) for label in labels):
        raise _Refused(RefusalReason.HOST_INVALID)
    if labels[-1] in _LOCAL_SUFFIXES or ".".join(labels[-2:]) in _LOCAL_SUFFIXES:
        raise _Refused(RefusalReason.LOCAL_SUFFIX)
    if len(labels) == 1:
        raise _Refused(RefusalReason.SINGLE_LABEL)
    return name


def _to_ascii(written: str) -> str:
    """Apply UTS-46 where there is something to map or to verify.

    Plain ASCII stays out of it: IDNA refuses hyphens in third and fourth place, which hosts in use have.
    """
    lowered = written.lower()
    if written.isascii() and not any(label.startswith("xn--") for label in lowered.split(".")):
        return lowered
    try:
        return idna.encode(written, uts46=True, std3_rules=True).decode("ascii")
    except UnicodeError:  # idna.IDNAError is one
        raise _Refused(RefusalReason.HOST_NOT_IDNA) from None


def _refuse_second_reading(url: str, host: str, port: int, scheme: str) -> None:
    """Let an independent parser read `url`, and refuse unless it finds the same host and port."""
    try:
        parts = urlsplit(url)
        reading = (parts.hostname, parts.port or DEFAULT_PORTS[scheme], parts.username)
    except ValueError:
        raise _Refused(RefusalReason.PARSERS_DISAGREE) from None
    if reading != (host.lower(), port, None):
        raise _Refused(RefusalReason.PARSERS_DISAGREE)


def _refuse_address(address: Address | None, policy: TargetPolicy) -> None:
    reason = classify(address, policy) if address else None
    if reason:
        raise _Refused(reason)


# --- The classes of addresses -------------------------------------------------

# Instance metadata hands out credentials to whoever can reach it: shut even where the operator opened the
# network.
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

# Not the address of one host, so there is nothing to open; connecting to 0.0.0.0 even reaches the machine
# itself.
_NEVER_OPENED = frozenset(
    {RefusalReason.ADDRESS_UNSPECIFIED, RefusalReason.ADDRESS_BROADCAST, RefusalReason.ADDRESS_MULTICAST}
)

# The first row that holds an address names it. Sources: IANA's special-purpose registries (RFC 6890) unless
# noted. What they call globally reachable is refused as well where it is a sink or a relay, for no receiver
# lives there.
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

# RFC 4291: all global unicast that IANA hands out. The rest (100::/64 that discards, 5f00::/16 of segment
# routing, whatever is assigned next year) stays shut without a row.
_V6_GLOBAL_UNICAST = IPv6Network("2000::/3")

# Prefixes whose addresses lead to the IPv4 address at one known place: shift to the right by that many bits.
_V6_CARRIERS = tuple(
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


def _classify_v4(address: IPv4Address, policy: TargetPolicy) -> RefusalReason | None:
    if address in _METADATA:
        return RefusalReason.ADDRESS_METADATA
    reason = next((reason for network, reason in _V4_CLASSES if address in network), None)
    return None if _is_opened(address, reason, policy) else reason


def _classify_v6(address: IPv6Address, policy: TargetPolicy) -> RefusalReason | None:
    """Judge by the list, then by the IPv4 address inside: an opened prefix is no way around the list."""
    if address.ipv4_mapped:
        return _classify_v4(address.ipv4_mapped, policy)  # the kernel dials that one, so nothing else counts
    carried = _carried(address)
    if address in _METADATA or not _METADATA.isdisjoint(carried + _perhaps_carried(address)):
        return RefusalReason.ADDRESS_METADATA
    reason = _v6_class(address)
    if not _is_opened(address, reason, policy):
        return reason
    return next(filter(None, (_classify_v4(inner, policy) for inner in carried)), None)


def _v6_class(address: IPv6Address) -> RefusalReason | None:
    for network, reason in _V6_CLASSES:
        if address in network:
            return reason
    return None if address in _V6_GLOBAL_UNICAST else RefusalReason.ADDRESS_RESERVED


def _is_opened(address: Address, reason: RefusalReason | None, policy: TargetPolicy) -> bool:
    if reason is None:
        return True
    return reason not in _NEVER_OPENED and any(address in network for network in policy.allowed_networks)


def _carried(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 address that packets to `address` end up at, for prefixes that fix its place."""
    if address.is_loopback or address.is_unspecified:
        return ()  # they lie in the compatible range and carry nothing
    shifts = (shift for network, shift in _V6_CARRIERS if address in network)
    return tuple(IPv4Address(int(address) >> shift & _V4_MASK) for shift in shifts)


def _perhaps_carried(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """IPv4 addresses that `address` may stand for, where only the local network knows which.

    Teredo names a server and, inverted, a client. Local NAT64 may use any prefix length of RFC 6052 from
    /48 on, which leaves bits 64 to 71 empty.
    """
    bits = int(address)
    if address in _TEREDO:
        return IPv4Address(bits >> 64 & _V4_MASK), IPv4Address(~bits & _V4_MASK)
    if address in _LOCAL_NAT64:
        without_gap = bits >> 64 << 56 | bits & _LOW_56_BITS
        places = (without_gap >> 40, without_gap >> 32, without_gap >> 24, bits)  # /48, /56, /64, /96
        return tuple(IPv4Address(place & _V4_MASK) for place in places)
    return ()


# --- The operator's lists -----------------------------------------------------


def _port_range(entry: str) -> tuple[int, int]:
    low, dash, high = (part.strip() for part in entry.partition("-"))
    if not _PORT.fullmatch(low) or (dash and not _PORT.fullmatch(high)):
        raise ValueError(f"{entry!r} is not a port or a range of ports such as 443 or 8000-8999.")
    first, last = int(low), int(high or low)
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"{entry!r} is not within 1 to 65535, lower port first.")
    return first, last


def _network(entry: str) -> Network:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        raise ValueError(f"{entry!r} is not a network such as 10.0.0.0/8 or fd00::/8, host bits zero.") from None
