"""Shop domains, normalized for storage and comparison: ASCII, lower case, without a trailing dot.

Only a name of at least two labels is valid: a scheme, a port, a path, userinfo, a numeric address and names that IDNA
forbids are refused. The name is not resolved.
"""

import re
from typing import Final

import idna

#: RFC 1035: 255 bytes on the wire are 253 characters without the trailing dot.
MAX_HOST: Final = 253

LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
#: The last part of an IPv4 address as inet_aton accepts it, and the WHATWG's URL parser too; no domain ends with such a
#: label.
NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


def normalized_shop_domain(text: str) -> str | None:
    """Return the normalized domain, or None if `text` is not a valid shop domain. Never raises."""
    if len(text) > MAX_HOST + 1:
        return None  # before IDNA, which is slow
    name = (to_ascii(text) or "").removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_HOST or len(labels) < 2 or NUMBER.fullmatch(labels[-1]):
        return None
    return name if all(map(LABEL.fullmatch, labels)) else None


def to_ascii(text: str) -> str | None:
    """Apply UTS-46 to a host name in any script; returns None if IDNA forbids it.

    Plain ASCII is only lowercased: IDNA refuses hyphens in the third and fourth place, which existing hosts have.
    """
    lowered = text.lower()
    if text.isascii() and not any(label.startswith("xn--") for label in lowered.split(".")):
        return lowered
    try:
        return idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
    except UnicodeError:  # the base class of idna.IDNAError
        return None
