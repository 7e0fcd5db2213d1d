"""The part of a receiver's answer that is kept for the operator: its beginning, without what must never be stored.

A receiver may answer with anything: its own log, a whole page, the request it got. Secrets are taken out by the rules of
forbidden content, member by member where the answer is JSON, else line by line; what those rules find only in the whole
takes the whole away. Nothing of an answer ever reaches a client, but for `provider_ticket`.
"""

import json
from typing import Any, Final

from schemas.forbidden import find
from schemas.forbidden_names import is_order_record, meaning

#: The contract's 2 KiB, in characters.
MAX_KEPT: Final = 2048
#: What is looked at: what begins within the part that is kept is seen to its end.
_LOOKED_AT_BYTES: Final = 2 * MAX_KEPT
#: Deeper than any answer that somebody wants to read.
_MAX_DEPTH: Final = 16
REDACTED: Final = "[redacted]"

_NO_NAMES: Final = frozenset[str]()


def kept_answer(body: bytes, secret: str | None = None) -> str | None:
    """Return what is kept of an answer, None of an empty one; `secret` signed the request and may have come back."""
    text = body[:_LOOKED_AT_BYTES].decode("utf-8", "replace")
    if secret:
        text = text.replace(secret, REDACTED)
    text = _printable(text).strip()
    if not text:
        return None
    if _is_innocent(text):
        return text[:MAX_KEPT]
    cleaned = _cleaned(text)
    return cleaned[:MAX_KEPT] if _is_innocent(cleaned) else REDACTED


def _cleaned(text: str) -> str:
    value = _json_or_text(text)
    if isinstance(value, str):
        return "\n".join(REDACTED if find(line, _NO_NAMES) else line for line in text.split("\n"))
    return json.dumps(_without_forbidden(value, 0), ensure_ascii=False)


def _without_forbidden(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        kept = {
            name: _without_forbidden(member, depth + 1)
            for name, member in value.items()
            if not (meaning(name).forbidden or find(name, _NO_NAMES))
        }
        return REDACTED if is_order_record(kept) else kept
    if isinstance(value, list):
        return [_without_forbidden(entry, depth + 1) for entry in value]
    return REDACTED if find(value, _NO_NAMES) else value


def _is_innocent(text: str) -> bool:
    return not find(_json_or_text(text), _NO_NAMES)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text) if text.startswith(("{", "[")) else text
    except (ValueError, RecursionError):
        return text


def _printable(text: str) -> str:
    """Keep lines; a terminal and a database take no other control characters."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)
