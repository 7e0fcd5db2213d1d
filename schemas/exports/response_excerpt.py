"""The part of a receiver's answer that is kept for the operator: its beginning, without what must never be stored.

A receiver may answer with anything: its own log, a whole page, the request it got. Secrets are taken out by the rules of
forbidden content, member by member where the answer is JSON, else line by line; what those rules find only in the whole
takes the whole away. The secret that signed is taken out of all that is read of an answer, however it is spelled. Nothing
of an answer ever reaches a client, but for `provider_ticket`.
"""

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, quote_plus

from schemas.content_policy.field_names import is_order_record, meaning
from schemas.content_policy.rules import find

#: The contract's 2 KiB, in characters.
MAX_KEPT: Final = 2048
#: What is looked at: what begins within the part that is kept is seen to its end.
_LOOKED_AT_BYTES: Final = 2 * MAX_KEPT
#: Deeper than any answer that somebody wants to read.
_MAX_DEPTH: Final = 16
REDACTED: Final = "[redacted]"

_NO_NAMES: Final = frozenset[str]()
#: A name as JSON and its relatives write it, with the backslashes it has where JSON stands in a text of JSON.
_NAME: Final = re.compile(r"""\\*["']([^"'\\]{1,64})\\*["']\s*:""")

#: What is encoded and shorter is met by chance.
_SHORTEST_ENCODED: Final = 8
#: Spellings of so many secrets are remembered, one for each target of a busy worker.
_KNOWN_SECRETS: Final = 1024
_PERCENT: Final = re.compile("%[0-9A-F]{2}")


def without_secret(body: bytes, secret: str) -> bytes:
    """Return an answer without the secret that signed the request: it may have come back, and encoded in the usual ways."""
    for spelling in _spellings(secret):
        if spelling in body:
            body = body.replace(spelling, REDACTED.encode())
    return body


def kept_answer(body: bytes) -> str | None:
    """Return what is kept of an answer, None of an empty one."""
    text = _printable(body[:_LOOKED_AT_BYTES].decode("utf-8", "replace")).strip()
    if not text:
        return None
    if _is_innocent(text):
        return text[:MAX_KEPT]
    cleaned = _cleaned(text, is_cut=len(body) > _LOOKED_AT_BYTES)
    return cleaned[:MAX_KEPT] if _is_innocent(cleaned) else REDACTED


def has_forbidden(text: str) -> bool:
    """Tell whether a single text of an answer holds what must not be stored."""
    return bool(find(text, _NO_NAMES)) or _names_what_is_forbidden(text)


def _cleaned(text: str, *, is_cut: bool) -> str:
    value = _json_or_text(text)
    if not isinstance(value, str):
        return json.dumps(_without_forbidden(value, 0), ensure_ascii=False)
    lines = [REDACTED if has_forbidden(line) else line for line in text.split("\n")]
    if is_cut:
        # It may be half of what its whole would give away, and has come nearer by what went before it.
        lines[-1] = REDACTED
    return "\n".join(lines)


def _without_forbidden(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        kept = {
            name: _without_forbidden(member, depth + 1)
            for name, member in value.items()
            if not (meaning(name).forbidden or has_forbidden(name))
        }
        return REDACTED if is_order_record(kept) else kept
    if isinstance(value, list):
        return [_without_forbidden(entry, depth + 1) for entry in value]
    return REDACTED if find(value, _NO_NAMES) or (isinstance(value, str) and _names_what_is_forbidden(value)) else value


def _is_innocent(text: str) -> bool:
    value = _json_or_text(text)
    if find(value, _NO_NAMES):
        return False
    # The names of JSON were judged as such, but for those of JSON within its texts.
    is_judged = not isinstance(value, str) and '\\"' not in text and "'" not in text
    return is_judged or not _names_what_is_forbidden(text)


def _names_what_is_forbidden(text: str) -> bool:
    """Tell whether a text names members of its own that must not be stored: JSON that is cut, quoted, or of another kind."""
    meanings = [meaning(name) for name in _NAME.findall(text)]
    # What is called "items" is only a list here: whether something was bought cannot be seen.
    parts = {each.part for each in meanings} - {None, "line items"}
    return len(parts) > 1 or any(each.forbidden for each in meanings)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_members) if text.startswith(("{", "[")) else text
    except (ValueError, RecursionError):
        return text


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; of one that is there twice, the first would be kept and not looked at."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("A member is there twice.")
    return members


def _printable(text: str) -> str:
    """Keep lines; a terminal and a database take no other control characters."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


@lru_cache(maxsize=_KNOWN_SECRETS)
def _spellings(secret: str) -> tuple[bytes, ...]:
    """Return how a secret may stand in an answer, the longest spelling first: one may begin like another."""
    written = {secret.encode()} | {text.encode() for text in _as_text(secret)}
    encoded = {text.encode() for text in _as_digits(secret.encode())}
    told = written | {each for each in encoded if len(each) >= _SHORTEST_ENCODED}
    return tuple(sorted(told - {b""}, key=lambda each: (-len(each), each)))


def _as_text(secret: str) -> Iterator[str]:
    """Yield what JSON, HTML and forms make of a secret."""
    for in_ascii in (True, False):
        in_json = json.dumps(secret, ensure_ascii=in_ascii)[1:-1]
        yield from (in_json, in_json.replace("/", "\\/"))
    yield from (html.escape(secret), html.escape(secret, quote=False))
    for in_a_form in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield from (in_a_form, _PERCENT.sub(lambda code: code[0].lower(), in_a_form))


def _as_digits(secret: bytes) -> Iterator[str]:
    """Yield a secret's hex digits, and its base64 wherever it begins in what is encoded."""
    yield from (secret.hex(), secret.hex().upper())
    for before, spoiled in ((0, 0), (1, 2), (2, 3)):
        # The first and last digits depend on the bytes around it.
        whole = b64encode(bytes(before) + secret).rstrip(b"=").decode()
        digits = whole[spoiled : -1 if (before + len(secret)) % 3 else None]
        yield from (digits, digits.replace("+", "-").replace("/", "_"))
