"""The form of a target's URL: every parser must find the same host in it.

A URL comes from a customer and is dialed from inside the operator's network. Parts that one parser might read differently
from another (userinfo, numeric host names, percent signs, invisible characters) are refused, not repaired. A name that
passes `check_url` may still lead anywhere: its addresses must pass `schemas.url_policy.addresses.check_addresses`, and the
socket is opened to one of them.
"""

import re
import unicodedata
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, urlsplit

from schemas.base.shop_domain import LABEL, MAX_HOST, NUMBER, to_ascii
from schemas.url_policy.addresses import classify
from schemas.url_policy.policy import PORT, Address, RefusalReason, TargetPolicy

# Proxies and receivers commonly stop at 2 KiB; real receiver addresses stay below 300.
MAX_URL_CHARACTERS = 2048

DEFAULT_PORTS = {"http": 80, "https": 443}

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?(?P<authority>[^/?]*)(?P<rest>.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>.*))?", re.DOTALL)

# Invisible characters outside Unicode's category of format characters: joiners, fillers, variation selectors.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_CATEGORY_REASONS = {
    "Cc": RefusalReason.CONTROL_CHARACTER,
    "Cs": RefusalReason.CONTROL_CHARACTER,  # half a surrogate pair, which UTF-8 cannot encode
    "Zl": RefusalReason.CONTROL_CHARACTER,
    "Zp": RefusalReason.CONTROL_CHARACTER,
    "Zs": RefusalReason.WHITESPACE,
    "Cf": RefusalReason.ZERO_WIDTH,
}

# Names that the public DNS cannot contain or must not answer, and names that networks use for their own machines.
_LOCAL_SUFFIXES = frozenset(
    {
        "localhost",  # RFC 6761
        "test",  # RFC 6761, left to private use
        "invalid",  # RFC 6761
        "local",  # RFC 6762, multicast DNS
        "onion",  # RFC 7686
        "home.arpa",  # RFC 8375
        "alt",  # RFC 9476
        "internal",  # reserved by ICANN in 2024 for private use; clouds use it for metadata names
        "home",  # with corp and mail: never to be delegated (ICANN, 2018)
        "corp",
        "mail",
        "intranet",  # RFC 6762, appendix G: observed private use, like the next three
        "private",
        "lan",
        "localdomain",  # the default of many Linux installers
    }
)

_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"  # RFC 3986 pchar, and the slash; percent signs are checked before


@dataclass(frozen=True)
class TargetAddress:
    """A URL in the normal form that is stored and dialed.

    `host` is ASCII and lower-case, without brackets or trailing dot. `address` is set if the host is a
    literal, which has been classified already. `url` omits the default port of its scheme.
    """

    scheme: str
    host: str
    port: int
    path_and_query: str
    url: str
    address: Address | None = None


def check_url(url: str, policy: TargetPolicy) -> TargetAddress | RefusalReason:
    """Return the address of `url`, or why its form or its literal host is refused. Takes any text and never raises."""
    try:
        return _read_url(url, policy)
    except _Refused as refused:
        return refused.reason


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
    if len(normal) > MAX_URL_CHARACTERS:  # encoding turns one character into up to nine
        raise _Refused(RefusalReason.TOO_LONG)
    target = TargetAddress(scheme, host, port, path_and_query, normal, address)
    _refuse_ambiguity(url, written_host.strip("[]"), port, scheme)
    _refuse_ambiguity(target.url, host, port, scheme)
    if address and (reason := classify(address, policy)):
        raise _Refused(reason)
    return target


def _refuse_characters(url: str) -> None:
    if len(url) > MAX_URL_CHARACTERS:
        raise _Refused(RefusalReason.TOO_LONG)
    for character in url:
        reason = _CATEGORY_REASONS.get(unicodedata.category(character))
        if reason:
            raise _Refused(reason)
    if _INVISIBLE.search(url):
        raise _Refused(RefusalReason.ZERO_WIDTH)
    if "\\" in url:
        raise _Refused(RefusalReason.BACKSLASH)


def _split(url: str, policy: TargetPolicy) -> tuple[str, str, str]:
    """Split `url` into a scheme, an authority, and a path with its query; its characters have been checked."""
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
    """Normalize path and query as they are sent: RFC 3986, section 6.2.2.

    A path that begins with two slashes can be mistaken for an authority, and some clients resolve dot segments while others
    send them: both are refused.
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
    if digits is not None and not PORT.fullmatch(digits):
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
    try:
        return written, IPv4Address(written)  # four decimal numbers without leading zeros, in ASCII
    except ValueError:
        return _read_name(written), None


def _read_v6(text: str) -> IPv6Address:
    if "%" in text:
        raise _Refused(RefusalReason.ZONE_ID)
    try:
        return IPv6Address(text)
    except ValueError:
        raise _Refused(RefusalReason.HOST_INVALID) from None


def _v6_text(address: IPv6Address) -> str:
    """Format by RFC 5952, with a mapped address in hexadecimal: Python versions format mapped addresses differently."""
    if address.ipv4_mapped:
        embedded = int(address.ipv4_mapped)
        return f"::ffff:{embedded >> 16:x}:{embedded & 0xFFFF:x}"
    return str(address)


def _netloc(scheme: str, host: str, port: int) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if DEFAULT_PORTS[scheme] == port else f"{bracketed}:{port}"


def _read_name(written: str) -> str:
    """Convert a host name to ASCII, then check the result: IDNA maps wide digits and dots to plain ones."""
    ascii_name = to_ascii(written)
    if ascii_name is None:
        raise _Refused(RefusalReason.HOST_NOT_IDNA)
    name = ascii_name.removesuffix(".")
    labels = name.split(".")
    if NUMBER.fullmatch(labels[-1]):
        raise _Refused(RefusalReason.HOST_NUMERIC)
    if len(name) > MAX_HOST or not all(map(LABEL.fullmatch, labels)):
        raise _Refused(RefusalReason.HOST_INVALID)
    if labels[-1] in _LOCAL_SUFFIXES or ".".join(labels[-2:]) in _LOCAL_SUFFIXES:
        raise _Refused(RefusalReason.LOCAL_SUFFIX)
    if len(labels) == 1:
        raise _Refused(RefusalReason.SINGLE_LABEL)
    return name


def _refuse_ambiguity(url: str, host: str, port: int, scheme: str) -> None:
    """Refuse `url` unless an independent parser finds the same host and port in it."""
    try:
        parts = urlsplit(url)
        reading = (parts.hostname, parts.port or DEFAULT_PORTS[scheme], parts.username)
    except ValueError:
        raise _Refused(RefusalReason.PARSERS_DISAGREE) from None
    if reading != (host.lower(), port, None):
        raise _Refused(RefusalReason.PARSERS_DISAGREE)
