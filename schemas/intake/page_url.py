"""Normalizes page URLs, so that all URLs of one page compare equal.

The URL of a page changes between scans: campaigns add parameters, a session or a cache buster is in it, its parameters
change order. Only such differences are removed; everything else distinguishes pages, including the scheme and parameters
named `v` or `page`. The result is a key to compare, not a URL to open.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

_DEFAULT_PORTS: Final[Mapping[str, str]] = {"http": "80", "https": "443"}

#: Percent-encoded, these are the characters themselves (RFC 3986, section 2.3).
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SPELLED: Final = re.compile(r"%[0-9a-fA-F]{2}|[^\x00-\x7f]++")

#: Prefixes of campaign parameters.
_CAMPAIGNS: Final = ("utm_", "mtm_", "piwik_", "hsa_")
_TRACKERS: Final[Mapping[str, str]] = {
    "Google": "_ga _gac _gl gclid gclsrc dclid gbraid wbraid srsltid",
    "Meta": "fbclid igshid igsh",
    "Microsoft": "msclkid",
    "Mailchimp": "mc_cid mc_eid",
    "HubSpot": "_hsenc _hsmi __hssc __hstc __hsfp hsctatracking",
    "Matomo": "pk_campaign pk_kwd pk_keyword pk_source pk_medium pk_content pk_cid",
    "senders of newsletters": "mkt_tok _kx vero_id oly_anon_id oly_enc_id ml_subscriber ml_subscriber_hash",
    "other networks": "ttclid twclid li_fat_id epik sccid rdt_cid yclid ysclid _openstat",
    "networks of advertisers": "irclickid wickedid rb_clickid s_kwcid ef_id",
    "a storefront, for how its search came to a product": "_pos _psq _ss _sid _fid",
}
_TRACKING: Final = frozenset(name for names in _TRACKERS.values() for name in names.split())

#: Maximum number of parameters of a query that is sorted; a longer query keeps all of them. 1,000 would take 2 ms.
MAX_PARAMETERS: Final = 100

_ANYTHING: Final = re.compile(r".*", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]*")
#: A session id: long, without a separator, letters and digits mixed; "sid=12" may be a section.
_TOKEN: Final = re.compile(r"(?=(?:[^0-9]*+[0-9]){4})(?=(?:[^A-Za-z]*+[A-Za-z]){4})[A-Za-z0-9]{24,}")

#: Parameters that change with every visit, each with the form that its value must have.
_PASSING: Final[Mapping[str, re.Pattern[str]]] = {
    # jQuery's cache-buster is a number
    "_": _NUMBER,
    **dict.fromkeys(("nocache", "no_cache", "cachebust", "cachebuster", "cache_buster"), _ANYTHING),
    **dict.fromkeys(("jsessionid", "phpsessid", "aspsessionid", "asp.net_sessionid", "cftoken"), _ANYTHING),
    **dict.fromkeys(("oscsid", "zenid", "xtcsid"), _ANYTHING),
    **dict.fromkeys(("sid", "sessid", "sessionid", "session_id"), _TOKEN),
}

#: Sessions in the path: Java's and PHP's parameter, and ASP.NET's segment.
_PATH_SESSION: Final = re.compile(r";(?:jsessionid|phpsessid|cfid|cftoken)=[^/;]*+|/\(S\([a-z0-9]{24}\)\)", re.IGNORECASE)
#: Fragments that are routes of a single-page application: #/cart, #!/cart.
_ROUTE: Final = ("/", "!")
#: Cached keys: all issues of a postback are on its page, and scans repeat the same pages; a URL has at most 2 KB.
_MAX_CACHED: Final = 1024


@lru_cache(maxsize=_MAX_CACHED)
def page_key(url: str) -> str:
    """Return the key of a page; for a URL that cannot be split, the URL itself."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return url.strip()
    scheme = parts.scheme.lower()
    key = f"{scheme}://{_authority(parts.netloc, scheme)}{_path(parts.path)}"
    query, route = _query(parts.query), _spelled(parts.fragment) if parts.fragment.startswith(_ROUTE) else ""
    return key + (f"?{query}" if query else "") + (f"#{route}" if route else "")


def page_digest(url: str) -> str:
    """Return 32 hex digits that identify a page, short enough for an index."""
    return hashlib.sha256(page_key(url).encode()).hexdigest()[:32]


def without_session(path: str) -> str:
    """Return the path of a URL without a session id in it."""
    return _PATH_SESSION.sub("", path)


def _authority(netloc: str, scheme: str) -> str:
    """Fold the case of the host, its trailing dot, and the default port."""
    user, at, host = netloc.rpartition("@")
    name, colon, port = host.lower().rpartition(":")
    if not colon or not (port == "" or port.isdecimal()):
        # No colon, or one of an IPv6 address in brackets.
        name, port = host.lower(), ""
    shown_port = "" if port in {"", _DEFAULT_PORTS.get(scheme)} else f":{port}"
    return f"{user}{at}{name.removesuffix('.')}{shown_port}"


def _path(path: str) -> str:
    return without_session(_spelled(path)).removesuffix("/") or "/"


def _query(query: str) -> str:
    """Drop visit and campaign parameters and sort the rest by name; values of one name keep their order."""
    if query.count("&") >= MAX_PARAMETERS:
        return _spelled(query)
    members = [_spelled(member.replace("+", "%20")) for member in query.split("&") if member]
    kept = [member for member in members if not _is_passing(member)]
    return "&".join(sorted(kept, key=lambda member: member.partition("=")[0]))


def _is_passing(member: str) -> bool:
    name, _, value = member.partition("=")
    folded = name.lower()
    if folded in _TRACKING or folded.startswith(_CAMPAIGNS):
        return True
    shape = _PASSING.get(folded)
    return shape is not None and shape.fullmatch(value) is not None


def _spelled(text: str) -> str:
    """Normalize percent encoding: capital digits, and no encoding of unreserved characters."""
    return _SPELLED.sub(_spelling, text)


def _spelling(found: re.Match[str]) -> str:
    text = found[0]
    if not text.startswith("%"):
        return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))
    code = int(text[1:], 16)
    return chr(code) if code in _UNRESERVED else text.upper()
