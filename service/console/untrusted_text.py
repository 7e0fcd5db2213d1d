"""Displays text and URLs from third parties safely.

Invisible characters, and characters that change the text direction, are shown as code points, because they can disguise a
title. Only joiners between non-ASCII letters are kept, because Persian, Indic scripts and composed emoji need them.

A URL becomes a link only if it is HTTP or HTTPS, and its host is shown in ASCII. A URL with a password, or one that browsers
might parse differently, is shown as text.
"""

import json
import re
from typing import Any, Final, NamedTuple

import idna
from markupsafe import Markup

from schemas.base.printable import escape

#: The joiners: zero width non-joiner and zero width joiner.
_JOINERS: Final = "\u200c\u200d"
#: Unicode's categories Cc (except tab, line feed and the carriage return before one), Cf (except the joiners), Cs, Zl and
#: Zp; the tags and variation selectors from U+E0000; blank letters and marks of other categories.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4"
    "\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    f"|\r(?!\n)|(?<![^\x00-\x7f{_JOINERS}])[{_JOINERS}]|[{_JOINERS}](?![^\x00-\x7f{_JOINERS}])"
)
#: URLs without userinfo and backslashes, which browsers may interpret as another host.
_WEB_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[^/?#:@\\\[\]\s]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?(?P<rest>[/?#].*)?"
)
_ASCII_HOST: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")


class SafeLink(NamedTuple):
    """A link; `host` is in ASCII, like the host in `href`."""

    href: str
    host: str


def visible(text: str) -> str:
    """Return a text with code points such as `[U+202E]` in place of invisible characters.

    Our own Markup is returned unchanged.
    """
    if isinstance(text, Markup):
        return text
    return _INVISIBLE.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def safe_link(url: str | None) -> SafeLink | None:
    """Return a link to `url`, or None if the URL must be shown as text only."""
    found = _WEB_URL.fullmatch(url or "") if (url or "").isprintable() else None
    host = None if found is None else _ascii_host(found["host"])
    if found is None or host is None:
        return None
    netloc = host + (found["port"] or "")
    return SafeLink(f"{found['scheme']}://{netloc}{found['rest'] or '/'}", netloc)


def pretty(value: Any) -> str:
    """Return a value as indented JSON; invisible characters become JSON escapes, which do not change the value."""
    return _INVISIBLE.sub(lambda found: escape(found[0]), json.dumps(value, ensure_ascii=False, indent=2))


def pretty_body(body: bytes) -> str:
    """Return a body as indented JSON, or as visible text if it is not JSON."""
    try:
        return pretty(json.loads(body))
    except (ValueError, RecursionError):
        return visible(body.decode(errors="replace"))


def _ascii_host(host: str) -> str | None:
    """Return a host in ASCII, which distinguishes look-alike letters of other scripts; None if the host is invalid."""
    if host.isascii():
        return host if _ASCII_HOST.fullmatch(host) else None
    try:
        return idna.encode(host, uts46=True, std3_rules=True).decode("ascii")
    except UnicodeError:  # idna.IDNAError is a UnicodeError
        return None
