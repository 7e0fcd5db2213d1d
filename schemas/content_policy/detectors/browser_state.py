"""Cookies and browser storage in text: headers, scripts, commands, jars and dumps.

Headers, commands and jars contain a user's cookies, whatever their values are; prose after "cookie:" is no header. A script
may merely explain how a cookie or an entry is set, so its value decides: `document.cookie = "theme=dark"` passes, a
generated value does not.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

from schemas.content_policy.detectors.secret_values import is_opaque, is_placeholder
from schemas.content_policy.text_parts import folded

#: The name of a header, or of the variable HTTP_COOKIE in which programs receive the header, up to the value or to a bracket
#: around the value. The value may be in the next field of an object: `"name": "Cookie", "value": "…"`.
_HEADER: Final = re.compile(
    r"cookie(2|s)?([\"'`\\\]]{0,4})\s{0,9}(:|=>?|,(?:\s{0,60}[\"'\\]{1,3}value[\"'\\]{1,3}\s{0,9}:)?)"
    r"\s{0,9}([\"'`\\]{0,3})([\[{]?)"
)
#: The name of a field whose value is the name of a header.
_NAME_FIELD: Final = re.compile(r"(?:name|key|header|field)[\"'\\]{1,3}\s{0,9}:\s{0,9}[\"'\\]{1,3}(?:set[-_])?\Z")
_NAME_FIELD_CHARACTERS: Final = 40
_HEADER_START: Final = re.compile(r"(?<![\w-])(set[-_]|http_)?\Z")
_HEADER_START_CHARACTERS: Final = 6
_HEADER_VALUE: Final = re.compile(r"[^\r\n\"'`]*")
_MAX_HEADER_VALUE: Final = 4096
#: A cookie at the beginning of a header's value, or of one of the value's parts.
_COOKIE: Final = re.compile(r"\s*+([!#$%&'*+.^`|~\w-]{1,256}+)=([^\s;,<>]{0,4096})", re.ASCII)
_ONE_WORD: Final = re.compile(r"\s*+[^\s;]*+\s*+(?:;|\Z)")
_SEPARATOR: Final = re.compile("[;,]")
#: Text about a cookie instead of a cookie's value: a URL, or a selector with an attribute.
_URL_OR_SELECTOR: Final = re.compile(r"[a-z][a-z0-9+.-]{0,20}://|[\w.#:>*-]{0,100}+\[[\w-]{1,60}[~|^$*]?=", re.IGNORECASE)
#: Attributes of cookies in responses; they identify no user.
_ATTRIBUTES: Final = frozenset({"path", "domain", "expires", "max-age", "samesite", "secure", "httponly", "priority"})
_MIN_COOKIE_CHARACTERS: Final = 3

#: `document.cookie = "sid=…"`.
_SCRIPT: Final = re.compile(r"cookie\s{0,9}\+?=\s{0,9}\\?([\"'`])([^\"'`\r\n]{1,4096})")
#: `Cookies.set("sid", "…")`, `setcookie('sid', '…')`, `$.cookie('sid', '…')`.
_CALL: Final = re.compile(
    r"cookies?(?:\.\w{1,20})?\(\s{0,9}[\"'`]([^\"'`\r\n]{1,200})[\"'`]\s{0,9},\s{0,9}[\"'`]([^\"'`\r\n]{1,4096})"
)
#: `requests.get(url, cookies={"sid": "…"})`.
_DICTIONARY: Final = re.compile(r"cookies[\"']?\s{0,9}=\s{0,9}[\[({]([^\r\n]{1,2000})")
_PAIR: Final = re.compile(r"[\"']([^\"']{1,200})[\"']\s{0,9}(?::|=>|,)\s{0,9}[\"']([^\"']{1,4096})[\"']")
_CURL: Final = re.compile(r"(?<!\S)(?:-b|--cookie)(?:\s|=){1,9}[\"']?([^\s\"'=;]{1,200})=([^\s\"';]{3,4096})")
#: A line of a cookie jar in Netscape's format, as curl and wget write it.
_JAR_LINE: Final = re.compile(
    r"\t(?:true|false)\t[^\t\r\n]{1,1000}\t(?:true|false)\t[0-9]{1,12}\t([^\t\r\n]{1,256})\t([^\t\r\n]{3,4096})"
)
#: Names of cookies and entries that hold a session, whatever their values look like.
_SESSION_NAME: Final = re.compile(r"(?i)sess|sid\b|token|jwt|auth|login|remember")

_STORAGE: Final = r"(?:local|session)storage"
_ENTRY_SET: Final = re.compile(
    rf"{_STORAGE}(?:\.setitem\(\s{{0,9}}[\"'`]([^\"'`\r\n]{{1,200}})[\"'`]\s{{0,9}},|"
    rf"(?:\.([\w$]{{1,100}})|\[[\"'`]([^\"'`\r\n]{{1,200}})[\"'`]\])\s{{0,9}}=)\s{{0,9}}(?:'([^'\r\n]{{1,4096}})|[\"`]([^\"`\r\n]{{1,4096}}))"
)
#: The storage as JSON, after its name: an object with an entry, or a list of entries; not a field of a schema.
_DUMP: Final = re.compile(
    r"(?:local|session)[ _-]?storage(?![\w.(])[^\n{}\[\]();,]{0,60}[:=\n]\s{0,20}[\"'`]?(?:\{|\[\s{0,20}[\[{])"
    r"\s{0,20}\\{0,2}\"[^\"\\]{1,200}\\{0,2}\"\s{0,9}[:,](?!\s{0,9}\{\s{0,9}\\?\"type)"
)
#: A list of entries below a heading, one entry per line.
_LISTING: Final = re.compile(r"(?:local|session)[ _-]?storage[^\n{}();]{0,40}:?[ \t]{0,9}\r?\n((?:[^\n]{0,4096}\n?){1,30})")
_LISTED: Final = re.compile(
    r"(?m)^[ \t>|*-]{0,9}[\"']?([\w.$:@/-]{1,100})[\"']?[ \t]{0,9}(?:[:=|\t]|->)[ \t]{0,9}[\"']?([^\s\"']{1,4096})"
)
_JSON_VALUE: Final = re.compile(r"[\[{]\\?\"")
_LEAST_OPAQUE: Final = 8
_LEAST_SESSION: Final = 4


def has_cookies(text: str) -> bool:
    """Return whether `text` holds a cookie with its value: in a header, a script, a call or a dictionary."""
    lower = folded(text)
    if any(_is_cookie_header(*header) for header in _headers(text, lower)):
        return True
    scripts = (text[slice(*script.span(2))].partition(";")[0].partition("=") for script in _SCRIPT.finditer(lower))
    if any(_is_state(name.strip(), value.strip()) for name, _, value in scripts):
        return True
    if any(_is_state(text[slice(*call.span(1))], text[slice(*call.span(2))]) for call in _CALL.finditer(lower)):
        return True
    dictionaries = (text[slice(*found.span(1))] for found in _DICTIONARY.finditer(lower))
    return any(_is_state(*pair.groups()) for each in dictionaries for pair in _PAIR.finditer(each))


def has_command_cookies(text: str) -> bool:
    """Return whether a curl command in `text` sends a cookie."""
    return any(not is_placeholder(found[2]) for found in _CURL.finditer(text))


def has_cookie_jar(text: str) -> bool:
    """Return whether `text` holds a line of a cookie jar's file."""
    return any(not is_placeholder(found[2]) for found in _JAR_LINE.finditer(folded(text)))


def has_browser_storage(text: str) -> bool:
    """Return whether `text` holds entries of local or session storage: set in a script, as JSON, or listed."""
    lower = folded(text)
    if _DUMP.search(lower):
        return True
    for found in _ENTRY_SET.finditer(lower):
        name = found[1] or found[2] or found[3]
        if _is_entry(name, text[slice(*found.span(4 if found[4] is not None else 5))]):
            return True
    # Lower case is sufficient: a generated value still has its digits and letters.
    listed = (entry for listing in _LISTING.finditer(lower) for entry in _LISTED.finditer(listing[1]))
    return any(_is_entry(*entry.groups()) for entry in listed)


def _headers(text: str, lower: str) -> Iterator[tuple[str, bool]]:
    """Yield the value of each header, up to the next header, and whether it is certainly a header."""
    found = [each for each in _HEADER.finditer(lower) if _is_header(lower, each)]
    for header, following in zip_longest(found, found[1:]):
        end = header.end() + _MAX_HEADER_VALUE
        value = _HEADER_VALUE.match(text, header.end(), min(end, following.start()) if following else end)
        if value:
            yield value[0], header[1] != "s" and not header[5] and _is_named(lower, header)


def _is_header(lower: str, found: re.Match[str]) -> bool:
    start = _HEADER_START.search(lower[max(0, found.start() - _HEADER_START_CHARACTERS) : found.start()])
    if start is None:
        return False
    if _is_named(lower, found):
        before = lower[max(0, found.start() - _NAME_FIELD_CHARACTERS) : found.start()]
        return not found[3].startswith(",") or _NAME_FIELD.search(before) is not None
    # In an entry of a dictionary or an argument of a call, only a value in quotes is a literal.
    return bool(found[2] and found[4]) and (found[3] != "=" or "]" in found[2])


def _is_named(lower: str, found: re.Match[str]) -> bool:
    """Return whether a header is written as `name: value` or as the variable HTTP_COOKIE, not as a script sets it."""
    return found[3].endswith(":") or lower.startswith("http_", max(0, found.start() - len("http_")))


def _is_cookie_header(value: str, is_header: bool) -> bool:
    """Return whether a part of a header's value begins with a cookie; in prose, the equals sign may be anywhere.

    "Cookies:" and a bracket may also introduce an explanation or a selector, and a script may set anything. So unless
    `is_header`, the value of the cookie decides.
    """
    cookies = [cookie.groups() for part in _parts(value) if (cookie := _COOKIE.match(part))]
    return any(_is_cookie(*cookie) if is_header else _is_state(cookie[0], cookie[1].rstrip("]}")) for cookie in cookies)


def _parts(value: str) -> Sequence[str]:
    """Split a header's value where cookies may begin; a value that begins with prose has no parts."""
    if (cookie := _COOKIE.match(value)) and not _URL_OR_SELECTOR.match(cookie[2]):
        # Several headers of a response are joined with commas.
        return _SEPARATOR.split(value)
    parts = value.split(";")
    return parts if cookie or _ONE_WORD.match(value) or is_placeholder(parts[0].strip()) else ()


def _is_cookie(name: str, value: str) -> bool:
    is_value = len(value) >= _MIN_COOKIE_CHARACTERS and not (is_placeholder(value) or _URL_OR_SELECTOR.match(value))
    return is_value and name.lower() not in _ATTRIBUTES


def _is_state(name: str, value: str) -> bool:
    """Return whether an entry that a script sets is generated, or is named like a session and has digits and letters."""
    if is_opaque(value, _LEAST_OPAQUE):
        return True
    return bool(_SESSION_NAME.search(name)) and _is_session_value(value)


def _is_session_value(value: str) -> bool:
    has_digit = any(map(str.isdigit, value))
    return has_digit and len(value) >= _LEAST_SESSION and not is_placeholder(value) and not value.isdigit()


def _is_entry(name: str, value: str) -> bool:
    return _is_state(name, value) or _JSON_VALUE.match(value) is not None
