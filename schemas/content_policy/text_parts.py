"""Joins many texts into one, and selects the parts that need a closer check, with functions that run in C.

A body has dozens of short texts; a pattern searches one long text faster than many short ones. Few texts have enough digits
for a card number, or a run of characters as long as a token.
"""

import string
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: Separates the parts of a text: no pattern matches across it, and no JSON text contains NUL.
_NUL: Final = "\0"
_APART: Final = f"\n{_NUL}\n"

#: The base64 of fourteen digits has nineteen characters, and no token with a known prefix has fewer.
MIN_RUN: Final = 19
_LONG: Final = b"x" * MIN_RUN
_ALL_BUT_DIGITS: Final = bytes(byte for byte in range(256) if byte not in b"0123456789\0")


_ASCII: Final = bytes(range(128))


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The characters of a run as translation tables: to one character (`alike`), and to themselves; others become spaces."""

    alike: bytes
    themselves: bytes


def alphabet(punctuation: str) -> Alphabet:
    """Return the alphabet of ASCII letters, digits and `punctuation`."""
    kept = {*(string.ascii_letters + string.digits + punctuation).encode()}
    themselves = bytes(byte if byte in kept else ord(" ") for byte in range(256))
    return Alphabet(_NUL.encode() + bytes(_LONG[0] if byte in kept else ord(" ") for byte in range(1, 256)), themselves)


def joined(texts: Iterable[str]) -> str:
    """Join texts into one, separated by a line that is only NUL."""
    return _APART.join(texts)


def folded(text: str) -> str:
    """Return a text in lower case, of the same length: `i` replaces the dotted capital I, whose lower case is longer."""
    return text.replace("\u0130", "i").lower()


def beyond_ascii(text: str) -> str:
    """Return the characters of a text that are not ASCII."""
    return "" if text.isascii() else _bytes(text).translate(None, _ASCII).decode()


def parts_with(text: str, mark: str) -> str:
    """Return the parts of a text that contain `mark`."""
    return joined(part for part in text.split(_NUL) if mark in part)


def parts_with_digits(text: str, at_least: int) -> str:
    """Return the parts of a text with at least that many digits of any script, which become ASCII digits."""
    foreign = {each for each in beyond_ascii(text) if each.isdecimal()}
    if foreign:
        text = text.translate({ord(each): str(unicodedata.decimal(each)) for each in foreign})
    digits = _bytes(text).translate(None, _ALL_BUT_DIGITS).split(b"\0")
    return joined(part for part, count in zip(text.split(_NUL), map(len, digits), strict=True) if count >= at_least)


def parts_with_run(text: str, of: Alphabet) -> str:
    """Return the parts of a text with a run of at least `MIN_RUN` characters of an alphabet."""
    encoded = _bytes(text)
    shape = encoded.translate(of.alike)
    parts: list[str] = []
    start, found = 0, shape.find(_LONG)
    while found >= 0:
        start = shape.rfind(b"\0", start, found) + 1 or start
        end = shape.find(b"\0", found)
        end = len(shape) if end < 0 else end
        parts.append(encoded[start:end].decode())
        start, found = end, shape.find(_LONG, end)
    return joined(parts)


def long_runs(text: str, of: Alphabet) -> list[bytes]:
    """Return the runs of at least `MIN_RUN` characters of an alphabet, in their order."""
    return [run for run in _bytes(text).translate(of.themselves).split() if len(run) >= MIN_RUN]


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")
