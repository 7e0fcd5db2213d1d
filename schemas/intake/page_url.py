"""Which addresses are those of one page.

An address changes from scan to scan without meaning another page: a campaign tags it, a session or a cache-buster stands in
it, its members change places. What is folded here never tells pages apart; everything else does, a member with the name `v`
or `page` and the scheme included. The answer is a key to compare, not an address to open.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

_DEFAULT_PORTS: Final[Mapping[str, str]] = {"http": "80", "https": "443"}

#: Percent-encoded, these are the characters themselves (RFC 3986, section 2.3).
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SPELLED: Final = re.compile(r"%[0-9a-fA-F]{2}|[^\x00-\x7f]++")

#: What whoever links to a page adds to see where visitors come from.
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

_ANYTHING: Final = re.compile(r".*", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]*")
#: What servers call a session by: long, without a separator, of letters and digits mixed; "sid=12" may be a section.
_TOKEN: Final = re.compile(r"(?=(?:[^0-9]*+[0-9]){4})(?=(?:[^A-Za-z]*+[A-Za-z]){4})[A-Za-z0-9]{24,}")

#: Members that are another one at every visit, by name, and what they must look like to be that.
_PASSING: Final[Mapping[str, re.Pattern[str]]] = {
    # jQuery's cache-buster is a number
    "_": _NUMBER,
    "nocache": _ANYTHING,
    "no_cache": _ANYTHING,
    "cachebust": _ANYTHING,
    "cachebuster": _ANYTHING,
    "cache_buster": _ANYTHING,
    "jsessionid": _ANYTHING,
    "phpsessid": _ANYTHING,
    "aspsessionid": _ANYTHING,
    "asp.net_sessionid": _ANYTHING,
    "cftoken": _ANYTHING,
    "oscsid": _ANYTHING,
    "zenid": _ANYTHING,
    "xtcsid": _ANYTHING,
    "sid": _TOKEN,
    "sessid": _TOKEN,
    "sessionid": _TOKEN,
    "session_id": _TOKEN,
}

#: Sessions that servers write into the path: Java's and PHP's parameter, and ASP.NET's segment.
_PATH_SESSION: Final = re.compile(r";(?:jsessionid|phpsessid|cfid|cftoken)=[^/;]*+|/\(S\([a-z0-9]{24}\)\)", re.IGNORECASE)
#: Where the fragment is what tells the pages of a single-page application apart: #/cart, #!/cart.
_ROUTE: Final = ("/", "!")
#: All issues of a postback are on its page, and a scan asks for the same pages every night; an address has at most 2 KB.
_KNOWN_PAGES: Final = 1024


@lru_cache(maxsize=_KNOWN_PAGES)
def page_key(url: str) -> str:
    """Return what all addresses of one page have in common; for an address that does not split, the address."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return url.strip()
    scheme = parts.scheme.lower()
    key = f"{scheme}://{_authority(parts.netloc, scheme)}{_path(parts.path)}"
    query, route = _query(parts.query), _spelled(parts.fragment) if parts.fragment.startswith(_ROUTE) else ""
    return key + (f"?{query}" if query else "") + (f"#{route}" if route else "")


def without_session(path: str) -> str:
    """Return the path of an address without the session that a server wrote into it."""
    return _PATH_SESSION.sub("", path)


def _authority(netloc: str, scheme: str) -> str:
    """Fold the case of the host, its trailing dot, and the port that goes without saying."""
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
    """Drop what is passing and put the rest in order of names; values of one name keep theirs, which may mean something."""
    members = [_spelled(member.replace("+", "%20")) for member in query.split("&") if member]
    return "&".join(sorted((member for member in members if not _is_passing(member)), key=_name_of))


def _is_passing(member: str) -> bool:
    name, _, value = member.partition("=")
    folded = name.lower()
    if folded in _TRACKING or folded.startswith(_CAMPAIGNS):
        return True
    shape = _PASSING.get(folded)
    return shape is not None and shape.fullmatch(value) is not None


def _name_of(member: str) -> str:
    return member.partition("=")[0]


def _spelled(text: str) -> str:
    """Spell every character in the one way it can be: escaped in capitals, or not at all where it need not be."""
    return _SPELLED.sub(_spelling, text)


def _spelling(found: re.Match[str]) -> str:
    text = found[0]
    if not text.startswith("%"):
        return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))
    code = int(text[1:], 16)
    return chr(code) if code in _UNRESERVED else text.upper()
