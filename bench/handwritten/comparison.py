"""Compares the hand-written routes with the product: the same requests must get the same responses and store the same rows.

Only values that are new each time may differ: ids, times, digests and values derived from them. They are replaced by the
name of their kind, so that a column that one side leaves empty, or fills with another kind of value, is detected.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, Final

from bench.handwritten.stores import open_store
from bench.load.repeated_requests import NUMBER, Numbers, RequestTemplate
from bench.load.request_templates import APPROVABLE, APPROVABLE_DIGITS

#: The tables that the requests write to.
TABLES: Final = (
    "scan_runs",
    "page_results",
    "findings",
    "finding_sightings",
    "exports",
    "export_terms",
    "export_search",
    "audit_entries",
    "idempotency_keys",
    "targets",
    "evidence_captures",
    "handoffs",
)

_REPLACEMENTS: Final = (
    (re.compile(r"\b(exp|tgt|fnd|evc|hof)_[0-9A-Za-z]{26}\b"), r"\1"),
    (re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z"), "TIME"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    # Each seeded customer of a process has another email address.
    (re.compile(r"\buser[0-9]+@example\.com"), "EMAIL"),
)
_JSON_BEGINNINGS: Final = ("{", "[")
#: The length of a SHA-256 digest; every text that is stored as bytes is longer.
_DIGEST_BYTES: Final = 32
#: Larger integers are times in milliseconds since 1970; no other integer here is as large.
_TIMES_FROM: Final = 10**12


def numbered_request(kind: str, template: RequestTemplate, number: int) -> bytes:
    """Return the bytes of a request of this kind with `number` in it; no two requests may have the same number."""
    numbers = Numbers(APPROVABLE, APPROVABLE_DIGITS) if kind == "approval" else Numbers("one-")
    return template.content.replace(NUMBER.encode(), f"{numbers.prefix}{number:0{numbers.digits}d}".encode())


def normalize(value: Any) -> Any:
    """Return a value in which a word replaces each id, time, digest and email address."""
    if isinstance(value, Mapping):
        return {name: normalize(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [normalize(member) for member in value]
    if isinstance(value, bytes | memoryview):
        return normalize(bytes(value).hex() if len(value) == _DIGEST_BYTES else bytes(value).decode())
    if isinstance(value, str):
        # Parsed, since JSON may be written with or without spaces.
        return normalize(json.loads(value)) if value.startswith(_JSON_BEGINNINGS) else _normalize_text(value)
    return "TIME" if isinstance(value, int) and value > _TIMES_FROM else value


def stored_rows(url: str) -> dict[str, list[Any]]:
    """Return the normalized rows of TABLES, without row numbers."""
    with closing(open_store(url)) as store:
        return {table: sorted(map(repr, _normalize_rows(store.rows(f"SELECT * FROM {table}")))) for table in TABLES}  # noqa: S608 - our own names


def difference(ours: Mapping[str, list[Any]], theirs: Mapping[str, list[Any]]) -> str:
    """Describe the rows that only one side has; empty if there are none."""
    differences = []
    for table in TABLES:
        differences += [f"{table}, only in the product: {row}" for row in ours[table] if row not in theirs[table]]
        differences += [
            f"{table}, only in the hand-written routes: {row}" for row in theirs[table] if row not in ours[table]
        ]
    return "\n".join(differences)


def _normalize_rows(rows: Iterable[Mapping[str, Any]]) -> Iterable[Any]:
    for row in rows:
        yield {name: normalize(value) for name, value in row.items() if not (name == "id" and isinstance(value, int))}


def _normalize_text(text: str) -> str:
    for pattern, word in _REPLACEMENTS:
        text = pattern.sub(word, text)
    return text
