"""Reads and writes the throttle states of targets, and finds the targets with due exports.

The search needs one index step for each target, with any number of waiting or finished exports. States of many targets are
read and written in the order of their ids, so that two workers that write the same targets never deadlock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from schemas.base.timestamps import from_ms, to_ms
from schemas.targets.target import BREAKER_OPEN
from schemas.targets.throttle_state import ThrottleState
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import column_types, reader, select_list
from storage.db.engine import is_sqlite, rows, transaction
from storage.db.models import TargetRow
from storage.db.queries import for_update, scalars

#: The columns whose fields have other names.
_RENAMED: Final = {"target_id": TargetRow.id, "connected": TargetRow.connected_status}
_COLUMNS: Final = select_list(ThrottleState, {"t": TargetRow}, target_id="t.id", connected="t.connected_status")
_read_state: Final = reader(ThrottleState, TargetRow, **_RENAMED)

# Goes from one target with waiting exports to the next. The index exports_waiting begins with the target, so each step is
# one seek.
_WAITING: Final = """
WITH RECURSIVE waiting (target_id) AS (
    SELECT (SELECT MIN(e.target_id) FROM exports e WHERE e.due_at IS NOT NULL AND e.target_id > ?)
    UNION ALL
    SELECT (SELECT MIN(e.target_id) FROM exports e WHERE e.due_at IS NOT NULL AND e.target_id > w.target_id)
    FROM waiting w WHERE w.target_id IS NOT NULL
), first (target_id, due_at) AS (
    SELECT w.target_id, (SELECT MIN(e.due_at) FROM exports e WHERE e.target_id = w.target_id AND e.due_at IS NOT NULL)
    FROM waiting w WHERE w.target_id IS NOT NULL
)"""
_FROM_DUE: Final = """
FROM first f CROSS JOIN targets t
WHERE t.id = f.target_id AND (t.status IN ('blocked', 'disabled') OR (
    t.status = 'active' AND f.due_at <= ? AND (t.held_until IS NULL OR t.held_until <= ?)
))"""
_DUE: Final = f"{_WAITING} SELECT {_COLUMNS} {_FROM_DUE} LIMIT ?"
# Ordered by the position within the account, so that the first rows contain some targets of each account.
_DUE_BY_ACCOUNT: Final = f"""{_WAITING}
SELECT {_COLUMNS} {_FROM_DUE}
ORDER BY ROW_NUMBER() OVER (PARTITION BY t.account_id ORDER BY t.id), t.id
LIMIT ?"""
_DUE_OF: Final = f"""
WITH r (id) AS ({{rows}})
SELECT {_COLUMNS} FROM r CROSS JOIN targets t
WHERE t.id = r.id AND t.status = 'active' AND (t.held_until IS NULL OR t.held_until <= ?)
    AND (SELECT MIN(e.due_at) FROM exports e WHERE e.target_id = t.id AND e.due_at IS NOT NULL) <= ?"""  # noqa: S608 - our own names
_READ: Final = f"""
WITH r (id) AS ({{rows}})
SELECT {_COLUMNS}, t.base_url, t.secret_sealed, t.provider_settings FROM r CROSS JOIN targets t
WHERE t.id = r.id ORDER BY t.id"""  # noqa: S608 - our own names
_NEXT: Final = f"""{_WAITING}, ready (at) AS (
    SELECT CASE WHEN t.held_until > f.due_at THEN t.held_until ELSE f.due_at END
    FROM first f CROSS JOIN targets t WHERE t.id = f.target_id AND t.status = 'active'
)
SELECT MIN(at) FROM ready WHERE at > ?"""  # noqa: S608 - our own names

#: The columns that attempts change, besides the status of the connection.
CHANGED_BY_ATTEMPTS: Final = (
    TargetRow.last_success_at,
    TargetRow.held_until,
    TargetRow.held_reason,
    TargetRow.concurrency,
    TargetRow.ramp,
    TargetRow.failures_in_row,
    TargetRow.failing_since,
    TargetRow.paced_until,
    TargetRow.undelivered_in_row,
)
#: The columns that `write` changes, by their names in a throttle state.
_WRITTEN: Final[Mapping[str, Any]] = {**_RENAMED, **{field.name: field for field in CHANGED_BY_ATTEMPTS}}
_WRITTEN_COLUMNS: Final = tuple(field.column_name for field in _WRITTEN.values())
_WRITTEN_TYPES: Final = column_types(TargetRow, _WRITTEN_COLUMNS)
_WRITE: Final = f"""
WITH r ({", ".join(_WRITTEN_COLUMNS)}) AS ({{rows}})
UPDATE targets SET {", ".join(f"{column} = r.{column}" for column in _WRITTEN_COLUMNS[1:])}
FROM r WHERE targets.id = r.id"""  # noqa: S608 - our own names

#: Not FOR UPDATE: an approval only checks that its target exists, so neither should wait for the other.
_LOCK: Final = "FOR NO KEY UPDATE"


class AddressedState(NamedTuple):
    """A target's throttle state, with the URL, the sealed secret and the settings for its next attempt."""

    state: ThrottleState
    base_url: str
    secret_sealed: bytes | None
    provider_settings: str


def due(after_id: str, limit: int, now: datetime) -> list[ThrottleState]:
    """Return up to `limit` targets after `after_id`, by id, for which an attempt may start at `now`.

    Includes targets that are blocked or disabled while exports wait for them.
    """
    return [_read_state(row) for row in rows(_DUE, (after_id, to_ms(now), to_ms(now), limit))]


def due_by_account(limit: int, now: datetime) -> list[ThrottleState]:
    """Return up to `limit` targets as `due` does: the first target of each account, then the second of each, and so on."""
    return [_read_state(row) for row in rows(_DUE_BY_ACCOUNT, ("", to_ms(now), to_ms(now), limit))]


def due_of(target_ids: Sequence[str], now: datetime) -> list[ThrottleState]:
    """Return those of these targets for which an attempt may start at `now`."""
    chosen = [(target_id,) for target_id in target_ids]
    return [_read_state(row) for row in rows_over(_DUE_OF, ("TEXT",), chosen, (to_ms(now), to_ms(now)))]


def next_ready(now: datetime) -> datetime | None:
    """Return when, after `now`, the next export becomes due or its target's hold ends; None if no export waits."""
    [(at,)] = rows(_NEXT, ("", to_ms(now)))
    return None if at is None else from_ms(int(at))


def read(target_ids: Collection[str], *, locked: bool = False, waits: bool = True) -> dict[str, ThrottleState]:
    """Return the throttle states of these targets; `locked` prevents changes of them until the transaction ends.

    Without `waits`, rows that another transaction has locked are left out.
    """
    return {target_id: each.state for target_id, each in read_addressed(target_ids, locked=locked, waits=waits).items()}


def read_addressed(target_ids: Collection[str], *, locked: bool = False, waits: bool = True) -> dict[str, AddressedState]:
    """Return the throttle states of these targets, read as `read` does, with their URLs, secrets and settings."""
    sql = _READ
    if locked and not is_sqlite():
        sql += f" {_LOCK} OF t" if waits else f" {_LOCK} OF t SKIP LOCKED"
    found = rows_over(sql, ("TEXT",), [(target_id,) for target_id in sorted(target_ids)])
    return {row[0]: AddressedState(_read_state(row[:-3]), *row[-3:]) for row in found}


def lock(seen: Mapping[str, AddressedState]) -> dict[str, AddressedState]:
    """Lock targets that this transaction has read as `seen`, and return their present states.

    On SQLite, a transaction is the only writer from its beginning, so the states have not changed.
    """
    return dict(seen) if is_sqlite() else read_addressed(seen, locked=True)


def write(states: Iterable[ThrottleState]) -> None:
    """Write throttle states without their status; the caller holds the transaction and has locked the rows with `read`."""
    values = [[field.db_value(getattr(state, name)) for name, field in _WRITTEN.items()] for state in states]
    execute_over(_WRITE, _WRITTEN_TYPES, values)


def shorten_holds(now: datetime, longest_s: float) -> None:
    """Shorten holds by rate limits and breakers to `longest_s` seconds; after a clock was set back, some are longer."""
    until = now + timedelta(seconds=longest_s)
    is_late = (TargetRow.held_reason == BREAKER_OPEN) & (TargetRow.held_until > until)
    with transaction():
        held = TargetRow.select(TargetRow.id).where((TargetRow.paced_until > until) | is_late).order_by(TargetRow.id)
        is_held = TargetRow.id.in_(scalars(for_update(held, _LOCK)))
        TargetRow.update(paced_until=until).where(is_held, TargetRow.paced_until > until).execute()
        TargetRow.update(held_until=until).where(is_held, is_late).execute()
