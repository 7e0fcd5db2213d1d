"""Claims of exports: claim, renew, give back, and record the results of attempts, many exports in each statement.

Every write after the claim names the export's lease: a stale lease updates no row. Each transition appends an audit entry in
the same transaction. Exports are locked in the order of their ids, so that a redaction of the same exports waits and cannot
deadlock.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from schemas.base.timestamps import format_rfc3339, to_ms
from schemas.exports.delivery import Claim, CompletedAttempt
from schemas.exports.receipt import attempt_digest
from schemas.exports.state_machine import TRANSITIONS, ExportStatus, Transition
from schemas.trackers.registry import GENERIC_WEBHOOK, LONGEST_LOOKUP_S
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db import identifiers
from storage.db.bulk_sql import execute_over, insert_records, rows_over
from storage.db.columns import column_types
from storage.db.engine import is_sqlite, rows, transaction, values_list
from storage.db.models import AttemptRow, ExportRow
from storage.exports import delivery_hours
from storage.exports.rows import DUE_COLUMNS, DueExport, attempt_values, claim_from, recorded_values
from storage.exports.transitions_sql import transition_entry
from storage.targets.delivery_options import OPTION_COLUMNS, options_from, read_job

# Whether an attempt may start for a target `t` at a given time.
_OPEN: Final = "t.status = 'active' AND (t.held_until IS NULL OR t.held_until <= ?)"
# The oldest due exports of each chosen target. PostgreSQL: two claiming workers skip each other's row locks. SQLite: one
# writer and no row locks. Its LIMIT accepts no column, so there is a statement for the targets of each quota. CROSS JOIN
# makes SQLite read the tables in this order, whatever ANALYZE has recorded.
_DUE_POSTGRESQL: Final = f"""
WITH q (target_id, quota) AS ({{rows}})
SELECT {DUE_COLUMNS}
FROM q
JOIN targets t ON t.id = q.target_id AND {_OPEN}
CROSS JOIN LATERAL (
    SELECT * FROM exports x WHERE x.target_id = q.target_id AND x.due_at <= ?
    ORDER BY x.due_at LIMIT q.quota FOR UPDATE SKIP LOCKED
) e
ORDER BY e.due_at"""  # noqa: S608 - our own names
_DUE_SQLITE: Final = f"""
WITH q (target_id) AS (VALUES {{targets}})
SELECT {DUE_COLUMNS}
FROM q CROSS JOIN targets t CROSS JOIN exports e
WHERE t.id = q.target_id AND {_OPEN} AND e.rowid IN (
    SELECT x.rowid FROM exports x WHERE x.target_id = q.target_id AND x.due_at <= ? ORDER BY x.due_at LIMIT ?
)
ORDER BY e.due_at"""  # noqa: S608 - our own names

_TAKE: Final = """
WITH r (id) AS ({rows})
UPDATE exports SET status = ?, attempts = attempts + 1, lease = ?, due_at = ?, version = version + 1,
    is_outcome_unknown = (is_outcome_unknown OR status = 'delivering')
FROM r WHERE exports.id = r.id"""
_RECHECK: Final = f"""
SELECT t.base_url, t.secret_sealed, {OPTION_COLUMNS} FROM exports e JOIN targets t ON t.id = e.target_id
WHERE e.id = ? AND e.lease = ? AND e.due_at > ? AND {_OPEN}"""  # noqa: S608 - our own names

_LEASED: Final = column_types(ExportRow, ("id", "lease"))
_DUE: Final = column_types(ExportRow, ("id", "lease", "due_at"))
_RENEW: Final = """
WITH r (id, lease) AS ({rows})
UPDATE exports SET due_at = ?
FROM r WHERE exports.id = r.id AND exports.lease = r.lease AND exports.status = 'delivering'
RETURNING exports.id"""
#: Skips rows that other transactions have locked: while it waited for one row, the other leases would expire.
_RENEW_UNLOCKED: Final = """
WITH r (id, lease) AS ({rows}), unlocked AS (
    SELECT e.id FROM r JOIN exports e ON e.id = r.id AND e.lease = r.lease
    WHERE e.status = 'delivering' FOR UPDATE OF e SKIP LOCKED
)
UPDATE exports SET due_at = ?
FROM unlocked WHERE exports.id = unlocked.id
RETURNING exports.id"""
_POSTPONE: Final = """
WITH r (id, lease, due_at) AS ({rows})
UPDATE exports SET status = ?, attempts = attempts - 1, lease = NULL, due_at = r.due_at, version = version + 1
FROM r WHERE exports.id = r.id AND exports.lease = r.lease AND exports.status = 'delivering'
RETURNING exports.id"""
_RECORD: Final = """
WITH r ({names}) AS ({{rows}})
UPDATE exports SET {changes}, lease = NULL, version = version + 1
FROM r WHERE exports.id = r.id AND exports.lease = r.lease AND exports.status = 'delivering'
RETURNING exports.id"""


def claim_due(quotas: Mapping[str, int], now: datetime, lease_s: float, worker: str) -> list[Claim]:
    """Claim due exports, each for one attempt: up to its quota for each target, the oldest due first.

    Skips targets that are held, paused or turned off. A claim expires `lease_s` seconds after `now` unless `renew` is
    called; then the export is due again.
    """
    if not quotas:
        return []
    lease = identifiers.new_id(identifiers.LEASE, now)
    now_ms, until_ms = to_ms(now), to_ms(now + timedelta(seconds=lease_s))
    with transaction():
        due = _due(quotas, now_ms)
        if not due:
            return []
        # No other process can have claimed these since they were read, because of PostgreSQL's row locks and SQLite's one
        # writer.
        execute_over(_TAKE, _LEASED[:1], [(each.id,) for each in due], (ExportStatus.DELIVERING.value, lease, until_ms))
        append_all([_claim_entry(each, now_ms, worker) for each in due])
    return [claim_from(each, lease, now) for each in due]


def recheck(claim: Claim, now: datetime) -> Claim | None:
    """Return a claim with the present URL, secret and options of its target.

    Returns None if no attempt may start: the lease is lost at `now`, or the target accepts no attempts.
    """
    found = rows(_RECHECK, (claim.export_id, claim.lease, to_ms(now), to_ms(now)))
    if not found:
        return None
    [(base_url, sealed, *options)] = found
    return claim._replace(base_url=base_url, secret_sealed=sealed, options=options_from(options))


def renew(claims: Iterable[Claim], now: datetime, lease_s: float) -> int:
    """Extend claims to `lease_s` seconds after `now`; return how many were extended.

    A claim that another worker has taken over is not changed. On PostgreSQL, neither is one that a transaction has locked.
    """
    held = sorted((claim.export_id, claim.lease) for claim in claims)
    if not held:
        return 0
    sql = _RENEW if is_sqlite() else _RENEW_UNLOCKED
    with transaction():
        return len(rows_over(sql, _LEASED, held, (to_ms(now + timedelta(seconds=lease_s)),)))


def postpone(claims: Sequence[Claim], now: datetime, worker: str) -> int:
    """Give claims back unsent: due since the same time as before, without counting the attempt. Return how many were valid.

    An export that another worker held when it died may have an issue at a tracker: it is due when a search would find that
    issue.
    """
    held = sorted((claim.export_id, claim.lease, _due_again(claim, now)) for claim in claims)
    if not held:
        return 0
    with transaction():
        waiting = (TRANSITIONS[Transition.POSTPONE].target.value,)
        given_back = [row[0] for row in rows_over(_POSTPONE, _DUE, held, waiting)]
        append_all([transition_entry(now, worker, Transition.POSTPONE, ExportStatus.DELIVERING, id_) for id_ in given_back])
    return len(given_back)


def record_attempts(attempts: Sequence[CompletedAttempt], now: datetime, worker: str) -> set[str]:
    """Write attempts and change their exports, all or nothing; return the ids of the exports that changed.

    An export whose lease expired belongs to another claim: its attempt is not written, not even beside that claim's attempt.
    """
    attempts = _latest_of_each(attempts)
    if not attempts:
        return set()
    with transaction():
        recorded = [recorded_values(attempt, now) for attempt in attempts]
        sql, types = _record(tuple(recorded[0]))
        moved = {row[0] for row in rows_over(sql, types, [tuple(values.values()) for values in recorded])}
        held = [attempt for attempt in attempts if attempt.claim.export_id in moved]
        records = [attempt_values(attempt, worker) for attempt in held]
        insert_records(AttemptRow, records)
        delivery_hours.count_attempts(held, worker)
        append_all([_result_entry(now, worker, *each) for each in zip(held, records, strict=True)])
    return moved


def _due_again(claim: Claim, now: datetime) -> int:
    if claim.has_lapsed and claim.options.provider_key != GENERIC_WEBHOOK:
        return to_ms(now) + LONGEST_LOOKUP_S * 1000
    # Not now: exports of the target that became due later would be sent first. The clock may have been set back meanwhile.
    return min(claim.due_at_ms, to_ms(now))


def _due(quotas: Mapping[str, int], now_ms: int) -> list[DueExport]:
    """Read the exports for `claim_due`, each target's oldest first; on PostgreSQL they are locked until the commit."""
    if not is_sqlite():
        found = rows_over(_DUE_POSTGRESQL, ("TEXT", "BIGINT"), [*quotas.items()], (now_ms, now_ms))
        return [read_job(DueExport, row) for row in found]
    by_quota: dict[int, list[str]] = defaultdict(list)
    for target_id, quota in quotas.items():
        by_quota[quota].append(target_id)
    return [
        read_job(DueExport, row)
        for quota, target_ids in by_quota.items()
        for row in rows(_DUE_SQLITE.format(targets=values_list(1, len(target_ids))), [*target_ids, now_ms, now_ms, quota])
    ]


@cache
def _record(names: tuple[str, ...]) -> tuple[str, list[str]]:
    changes = ", ".join(f"{name} = r.{name}" for name in names if name not in {"id", "lease"})
    return _RECORD.format(names=", ".join(names), changes=changes), column_types(ExportRow, names)


def _latest_of_each(attempts: Sequence[CompletedAttempt]) -> list[CompletedAttempt]:
    """Return the latest attempt of each export, by id: a worker may claim an export again after its lease expired."""
    by_age = sorted(attempts, key=lambda attempt: attempt.claim.attempt)
    latest = {attempt.claim.export_id: attempt for attempt in by_age}
    return [latest[export_id] for export_id in sorted(latest)]


def _claim_entry(due: DueExport, now_ms: int, worker: str) -> AuditEntry:
    reason = "lease_lapsed" if due.status == ExportStatus.DELIVERING else None
    return AuditEntry(now_ms, worker, Transition.CLAIM.value, due.id, due.status, ExportStatus.DELIVERING.value, reason)


def _result_entry(now: datetime, worker: str, attempt: CompletedAttempt, record: Mapping[str, Any]) -> AuditEntry:
    """Return the audit entry of an attempt's result; its digest is that of the attempt as receipts show it."""
    verdict, shown = attempt.verdict, {**record, "started_at": format_rfc3339(attempt.started_at)}
    before, export_id = ExportStatus.DELIVERING, attempt.claim.export_id
    return transition_entry(now, worker, verdict.transition, before, export_id, verdict.reason, attempt_digest(shown))
