"""The excerpt of a receiver's response that is kept for the operator, without secrets and other forbidden content.

A response can contain anything: a log, a whole page, the request itself. The rules of forbidden content redact it, field by
field if it is JSON, else line by line; if only the whole text violates a rule, everything is redacted. The signing secret is
removed in all its encodings. Clients never see a response, except `provider_ticket`.
"""

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, quote_plus

from schemas.base.strict_json import unique_members
from schemas.content_policy.detectors.order_values import is_order_record
from schemas.content_policy.field_names import meaning
from schemas.content_policy.rules import find

#: The documented limit of 2 KiB, in bytes of UTF-8.
MAX_EXCERPT: Final = 2048
#: Bytes that are checked, so that everything that starts in the excerpt is checked to its end.
_CHECKED_BYTES: Final = 2 * MAX_EXCERPT
#: Deeper nesting is redacted.
_MAX_DEPTH: Final = 16
REDACTED: Final = "[redacted]"

_NO_NAMES: Final = frozenset[str]()
#: A field name in JSON and similar syntax, with the backslashes of JSON inside a JSON text.
_NAME: Final = re.compile(r"""\\*["']([^"'\\]{1,64})\\*["']\s*:""")

#: Shorter encoded secrets would match by chance.
_SHORTEST_ENCODED: Final = 8
#: Cached secrets: one for each target of a busy worker.
_MAX_CACHED_SECRETS: Final = 1024
_PERCENT: Final = re.compile("%[0-9A-F]{2}")


def without_secret(body: bytes, secret: str) -> bytes:
    """Return a response without the signing secret, raw or in a common encoding."""
    for spelling in _spellings(secret):
        if spelling in body:
            body = body.replace(spelling, REDACTED.encode())
    return body


def response_excerpt(body: bytes) -> str | None:
    """Return the excerpt of a response; None if it is empty."""
    text = _printable(body[:_CHECKED_BYTES].decode("utf-8", "replace")).strip()
    if not text:
        return None
    if _is_clean(text):
        return _cut(text)
    # Again, because the escapes of JSON are characters now.
    cleaned = _printable(_cleaned(text, is_cut=len(body) > _CHECKED_BYTES))
    return _cut(cleaned) if _is_clean(cleaned) else REDACTED


def has_forbidden(text: str) -> bool:
    """Return whether a text of a response has forbidden content."""
    return bool(find(text, _NO_NAMES)) or _has_forbidden_names(text)


def _cut(text: str) -> str:
    return text.encode()[:MAX_EXCERPT].decode(errors="ignore")


def _cleaned(text: str, *, is_cut: bool) -> str:
    value = _json_or_text(text)
    if not isinstance(value, str):
        return json.dumps(_without_forbidden(value, 0), ensure_ascii=False)
    lines = [REDACTED if has_forbidden(line) else line for line in text.split("\n")]
    if is_cut:
        # The last line is cut: it may contain a violation whose end is missing.
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
    return REDACTED if find(value, _NO_NAMES) or (isinstance(value, str) and _has_forbidden_names(value)) else value


def _is_clean(text: str) -> bool:
    value = _json_or_text(text)
    if find(value, _NO_NAMES):
        return False
    # Field names of JSON were checked, except those of JSON inside its texts.
    is_checked = not isinstance(value, str) and '\\"' not in text and "'" not in text
    return is_checked or not _has_forbidden_names(text)


def _has_forbidden_names(text: str) -> bool:
    """Return whether a text has forbidden field names: in JSON that is truncated or escaped, or in similar syntax."""
    meanings = [meaning(name) for name in _NAME.findall(text)]
    # A field named "items" is only a list here: its entries are unknown.
    parts = {each.part for each in meanings} - {None, "line items"}
    return len(parts) > 1 or any(each.forbidden for each in meanings)


def _json_or_text(text: str) -> Any:
    # If a name occurs twice, its first value would not be checked.
    try:
        return json.loads(text, object_pairs_hook=unique_members) if text.startswith(("{", "[")) else text
    except (ValueError, RecursionError):
        return text


def _printable(text: str) -> str:
    """Keep line breaks and replace other control characters, which terminals and databases reject."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


@lru_cache(maxsize=_MAX_CACHED_SECRETS)
def _spellings(secret: str) -> tuple[bytes, ...]:
    """Return the encodings of a secret, longest first: one may be a prefix of another."""
    written = {secret.encode()} | {text.encode() for text in _as_text(secret)}
    encoded = {text.encode() for text in _as_digits(secret.encode())}
    spellings = written | {each for each in encoded if len(each) >= _SHORTEST_ENCODED}
    return tuple(sorted(spellings - {b""}, key=lambda each: (-len(each), each)))


def _as_text(secret: str) -> Iterator[str]:
    """Yield a secret as JSON, HTML and form encoding write it."""
    for in_ascii in (True, False):
        in_json = json.dumps(secret, ensure_ascii=in_ascii)[1:-1]
        yield from (in_json, in_json.replace("/", "\\/"))
    yield from (html.escape(secret), html.escape(secret, quote=False))
    for in_a_form in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield from (in_a_form, _PERCENT.sub(lambda code: code[0].lower(), in_a_form))


def _as_digits(secret: bytes) -> Iterator[str]:
    """Yield a secret in hex, and in base64 as it appears at each possible position in the encoded bytes."""
    yield from (secret.hex(), secret.hex().upper())
    for before, spoiled in ((0, 0), (1, 2), (2, 3)):
        # The first and last digits also encode the bytes around the secret.
        whole = b64encode(bytes(before) + secret).rstrip(b"=").decode()
        digits = whole[spoiled : -1 if (before + len(secret)) % 3 else None]
        yield from (digits, digits.replace("+", "-").replace("/", "_"))
