"""Counts the requests that the tables record, by what each response leaves behind, so that a missing one is detected."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from bench.handwritten.stores import open_store

#: What is under way when a load ends is done within this; the tables are looked at twice so far apart.
_SETTLE_S: Final = 0.1
_SETTLED_WITHIN_S: Final = 10.0

_KEYS: Final = ("idempotency_keys WHERE response_status IS NOT NULL", 1)
#: What one answer to each kind of question leaves behind: how many rows of what.
LEFT: Final[Mapping[str, Sequence[tuple[str, int]]]] = {
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


def stored(url: str, kind: str) -> list[int]:
    """Return how many answers to a kind of question the tables hold, as each of them tells it; nothing for a read."""
    if not LEFT[kind]:
        return []
    counts = ", ".join(f"(SELECT count(*) FROM {what})" for what, _ in LEFT[kind])  # noqa: S608 - our own names
    with closing(open_store(url)) as store:
        found = store.row(f"SELECT {counts}")
    assert found is not None
    return [count // rows for count, (_, rows) in zip(found, LEFT[kind], strict=True)]


def settled(url: str, kind: str) -> list[int]:
    """Return the same once nothing comes any more, which would disturb whoever is asked next."""
    gives_up_at, before = time.monotonic() + _SETTLED_WITHIN_S, None
    while (now := stored(url, kind)) != before and time.monotonic() < gives_up_at:
        before = now
        time.sleep(_SETTLE_S if now else 0)
    return now
