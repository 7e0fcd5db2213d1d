"""What strangers wrote, shown without doing anything to whoever reads it.

Letters that cannot be seen, or that turn the order of the others round, are shown by their numbers: a title would read as
another one. An address leads somewhere only under the name that its host has on the wire, and only over HTTP; one with a
password, or one that browsers and we might read in two ways, stays text.
"""

import json
import re
from typing import Any, Final, NamedTuple

import idna

#: Controls but for tab and line feed, marks that turn the direction, ends of lines that look like none, half letters.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
#: Without userinfo and backslashes, in which browsers and we might see two hosts.
_WEB: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[^/?#:@\\\[\]\s]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?(?P<rest>[/?#].*)?"
)
_ASCII_HOST: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")


class Way(NamedTuple):
    """Where an address leads: `host` in ASCII, as it stands in `href`."""

    href: str
    host: str


def visible(text: str) -> str:
    """Return a text in which every letter can be seen: `[U+202E]` in place of one that turns the others round."""
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def way_to(url: str | None) -> Way | None:
    """Return where a link to `url` would lead; None where it is better shown as text alone."""
    found = _WEB.fullmatch(url or "") if (url or "").isprintable() else None
    host = None if found is None else _ascii_host(found["host"])
    if found is None or host is None:
        return None
    place = host + (found["port"] or "")
    return Way(f"{found['scheme']}://{place}{found['rest'] or '/'}", place)


def pretty(value: Any) -> str:
    """Return a value as JSON that reads well; unseen letters as JSON's own escapes, so that it stays the same value."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False, indent=2))


def pretty_body(body: bytes) -> str:
    """Return JSON that reads well, and whatever is none as visible text."""
    try:
        return pretty(json.loads(body))
    except (ValueError, RecursionError):
        return visible(body.decode(errors="replace"))


def _ascii_host(host: str) -> str | None:
    """Return a host as it is on the wire: letters of other scripts that look like ours look otherwise there."""
    if host.isascii():
        return host if _ASCII_HOST.fullmatch(host) else None
    try:
        return idna.encode(host, uts46=True, std3_rules=True).decode("ascii")
    except UnicodeError:  # idna.IDNAError is one
        return None
