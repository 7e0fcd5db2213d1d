"""Compares the hand-written routes with the product: the same requests must get the same responses and leave the same rows.

Only values that are new each time may differ: ids, times, digests and values derived from them. Each is replaced by its
kind, so that a column that one side leaves empty, or fills with something else, is detected.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, Final

from bench.handwritten.stores import open_store
from bench.load.questions import APPROVABLE, APPROVABLE_DIGITS
from bench.load.repeated_requests import NUMBER, Numbers, Question

#: What the questions write to.
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

_CHANGING: Final = (
    (re.compile(r"\b(exp|tgt|fnd|evc|hof)_[0-9A-Za-z]{26}\b"), r"\1"),
    (re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z"), "TIME"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    # Each seeded customer of a process has an address of its own.
    (re.compile(r"\buser[0-9]+@example\.com"), "EMAIL"),
)
#: What the beginnings of objects and arrays are.
_JSON: Final = ("{", "[")
#: Of a SHA-256; every text that is stored as bytes is longer.
_DIGEST_BYTES: Final = 32
#: Milliseconds since 1970, and the quotes of a day later; nothing else here is as large.
_TIMES_FROM: Final = 10**12


def sent_once(kind: str, question: Question, number: int) -> bytes:
    """Return the bytes of a question of this kind with one number in it; no two questions may have the same number."""
    numbers = Numbers(APPROVABLE, APPROVABLE_DIGITS) if kind == "approval" else Numbers("one-")
    return question.sent.replace(NUMBER.encode(), f"{numbers.prefix}{number:0{numbers.digits}d}".encode())


def steady(value: Any) -> Any:
    """Return a value with a word in the place of whatever is new each time."""
    if isinstance(value, Mapping):
        return {name: steady(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [steady(member) for member in value]
    if isinstance(value, bytes | memoryview):
        return steady(bytes(value).hex() if len(value) == _DIGEST_BYTES else bytes(value).decode())
    if isinstance(value, str):
        # JSON may be spelled with blanks or without.
        return steady(json.loads(value)) if value.startswith(_JSON) else _steady_text(value)
    return "TIME" if isinstance(value, int) and value > _TIMES_FROM else value


def left_behind(url: str) -> dict[str, list[Any]]:
    """Return the rows of the tables, without values that are new each time and without row numbers."""
    with closing(open_store(url)) as store:
        return {table: sorted(map(repr, _steady_rows(store.rows(f"SELECT * FROM {table}")))) for table in TABLES}  # noqa: S608 - our own names


def difference(ours: Mapping[str, list[Any]], theirs: Mapping[str, list[Any]]) -> str:
    """Describe the rows that only one side has; empty if there are none."""
    differences = []
    for table in TABLES:
        differences += [f"{table}, the product alone: {row}" for row in ours[table] if row not in theirs[table]]
        differences += [f"{table}, by hand alone: {row}" for row in theirs[table] if row not in ours[table]]
    return "\n".join(differences)


def _steady_rows(rows: Iterable[Mapping[str, Any]]) -> Iterable[Any]:
    for row in rows:
        yield {name: steady(value) for name, value in row.items() if not (name == "id" and isinstance(value, int))}


def _steady_text(text: str) -> str:
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return text
