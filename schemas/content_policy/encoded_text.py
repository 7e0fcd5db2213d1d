"""Decodes a text once: percent encoding, HTML entities and base64, each separately; and drops invisible characters.

Base64 counts if it decodes to UTF-8 text; each line is decoded separately.
"""

import re
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Iterator
from functools import lru_cache
from html import unescape
from typing import Final
from urllib.parse import unquote

from schemas.content_policy.text_parts import MIN_RUN, alphabet, beyond_ascii, joined, long_runs, parts_with, parts_with_run

_PERCENT: Final = re.compile(r"%[0-9A-Fa-f]{2}")
#: Bounded, because the standard library reads a number of any length as one integer. A name without a semicolon is the next
#: parameter of a query.
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,10};?|#[xX][0-9A-Fa-f]{1,8};?|[A-Za-z][A-Za-z0-9]{1,31};)")

#: Invisible characters: soft hyphens, joiners, marks of direction, variation selectors, fillers, tags.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20e3\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
#: A page repeats a few entities thousands of times.
_MAX_CACHED: Final = 1024
_character: Final = lru_cache(maxsize=_MAX_CACHED)(unescape)
#: Both alphabets of base64, without the padding, which is not needed for decoding.
_BASE64: Final = alphabet("+/-_")
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
#: In a URL, encoded parts are separated by slashes, hyphens or underscores.
_PIECES: Final = bytes.maketrans(b"/-_", b"   ")
#: The base64 of text never begins with these characters: no text begins with the bytes that they encode.
_SEPARATORS: Final = b"/-_+"
#: `decode` replaces bytes that are not UTF-8 with this character.
_NOT_TEXT: Final = "\ufffd"


def once_decoded(text: str) -> Iterator[str]:
    """Yield the decoded forms of a text that differ from it; of a joined text, only the parts that change.

    If a form has invisible characters, it is yielded once more without them; so is the text itself.
    """
    yield from _without_invisible(text)
    for decoded in _decoded(text):
        yield decoded
        yield from _without_invisible(decoded)


def _without_invisible(text: str) -> Iterator[str]:
    if _INVISIBLE.search(beyond_ascii(text)):
        yield _INVISIBLE.sub("", text)


def _decoded(text: str) -> Iterator[str]:
    yield from _changed(text, "%", _PERCENT, unquote)
    yield from _changed(text, "&", _ENTITY, _without_entities)
    plain = joined(_decoded_base64(parts_with_run(text, _BASE64)))
    if plain:
        yield plain


def _changed(text: str, mark: str, code: re.Pattern[str], decode: Callable[[str], str]) -> Iterator[str]:
    if mark not in text or not code.search(text):
        return
    encoded = parts_with(text, mark)
    decoded = decode(encoded)
    if decoded != encoded:
        yield decoded


def _without_entities(text: str) -> str:
    return _ENTITY.sub(lambda entity: _character(entity[0]), text)


def _decoded_base64(text: str) -> Iterator[str]:
    for run in long_runs(text, _BASE64):
        plain = _plain(run)
        if plain:
            yield plain
            continue
        yield from filter(None, map(_plain, _pieces(run)))


def _pieces(run: bytes) -> Iterator[bytes]:
    """Yield long parts of a run that differ from it: the run without leading separators, the parts between separators."""
    bare = run.lstrip(_SEPARATORS)
    if len(bare) < MIN_RUN:
        return
    if bare != run:
        yield bare
    pieces = bare.translate(_PIECES).split()
    if len(pieces) > 1:
        yield from (piece for each in pieces if len(piece := each.lstrip(_SEPARATORS)) >= MIN_RUN)


def _plain(run: bytes) -> str:
    """Return the decoded text, or "" if a run is not base64 of text; an incomplete last character is dropped."""
    whole = run.translate(_STANDARD)[: len(run) - (len(run) % 4 == 1)]
    try:
        plain = a2b_base64(whole + b"=" * (-len(whole) % 4)).decode(errors="replace")
    except NotBase64:
        return ""
    return "" if _NOT_TEXT in plain else plain
