"""Counts requests by the rows that they stored, to detect a response whose rows are missing."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from bench.handwritten.stores import open_store

#: Interval between two counts: a request in progress at the end of the load is stored within this time.
_POLL_S: Final = 0.1
_TIMEOUT_S: Final = 10.0

_KEYS: Final = ("idempotency_keys WHERE response_status IS NOT NULL", 1)
#: The rows that one request of each kind stores: table (with a condition) and number.
ROWS_PER_REQUEST: Final[Mapping[str, Sequence[tuple[str, int]]]] = {
    "status": (),
    "not_modified": (),
    **{
        kind: (
            ("page_results", 1),
            ("findings", issues),
            ("finding_sightings", issues),
            ("exports WHERE source_type = 'finding'", issues),
            ("export_search", issues),
            ("audit_entries WHERE action = 'prepare' AND actor = 'scanner'", issues),
            _KEYS,
        )
        for kind, issues in (("postback", 1), ("postback_100", 100))
    },
    "target_create": (("targets", 1), ("audit_entries WHERE action = 'create_target'", 1), _KEYS),
    "approval": (("exports WHERE status = 'approved'", 1), ("audit_entries WHERE action = 'approve'", 1), _KEYS),
    "upload": (
        ("evidence_captures", 1),
        ("handoffs", 1),
        ("exports WHERE source_type = 'evidence_capture'", 1),
        ("export_search", 1),
        ("audit_entries WHERE action = 'hand_off'", 1),
        _KEYS,
    ),
}


def count_recorded(url: str, kind: str) -> list[int]:
    """Return the number of requests of a kind, once by the rows of each of its tables; an empty list for reads."""
    if not ROWS_PER_REQUEST[kind]:
        return []
    counts = ", ".join(f"(SELECT count(*) FROM {source})" for source, _ in ROWS_PER_REQUEST[kind])  # noqa: S608 - our own names
    with closing(open_store(url)) as store:
        found = store.row(f"SELECT {counts}")
    assert found is not None
    return [count // rows for count, (_, rows) in zip(found, ROWS_PER_REQUEST[kind], strict=True)]


def count_when_stable(url: str, kind: str) -> list[int]:
    """Return the counts once they no longer change: a request in progress would disturb the next measurement."""
    deadline, before = time.monotonic() + _TIMEOUT_S, None
    while (count := count_recorded(url, kind)) != before and time.monotonic() < deadline:
        before = count
        time.sleep(_POLL_S if count else 0)
    return count
