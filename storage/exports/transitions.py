"""Ticket exports: prepare, approve, claim, record, postpone. The only writer of an export's status.

Every move is a compare-and-swap on the row and leaves an audit entry in the same transaction. The moves a request makes
name the version they saw; the moves a worker makes name the lease it holds. Who comes too late changes nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.base.errors import Conflict, ExportNotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.timestamps import from_ms, rfc3339, to_ms
from schemas.exports.delivery import Claim, CompletedAttempt
from schemas.exports.record import Approval, Export, Preparation
from schemas.exports.state_machine import MOVES, ExportStatus, Move, allows
from schemas.exports.ticket import MANUAL, REDACTED_TICKET, Source, delivery_body, digest
from schemas.targets.target import APPROVABLE, TargetStatus
from schemas.targets.validations import Validation
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db import identifiers
from storage.db.bulk_sql import Rows, execute_over, rows_over
from storage.db.columns import JsonField
from storage.db.engine import execute, is_sqlite, rows, transaction, values_list
from storage.exports import delivery_hours
from storage.exports.rows import (
    ATTEMPT_COLUMNS,
    COLUMNS,
    DUE_COLUMNS,
    PREPARED_COLUMNS,
    RECORDED_COLUMNS,
    SOURCES,
    TARGET_PLACE,
    Draft,
    attempt_row,
    claim_from,
    export_from,
    prepared_row,
    recorded_row,
)
from storage.targets import targets

_GET: Final = f"SELECT {COLUMNS} FROM {SOURCES} WHERE e.id = ?"  # noqa: S608 - our own names
#: No limit, in a form that both databases take.
ALL: Final = 2**63 - 1
# One part for each status that is asked for, since an index gives the newest of one status in order, not of several.
_NEWEST: Final = f"""
SELECT {COLUMNS} FROM {SOURCES} WHERE e.id IN ({{parts}}) ORDER BY e.id DESC LIMIT ?"""  # noqa: S608 - our own names
_NEWEST_PART: Final = "SELECT id FROM (SELECT id FROM exports WHERE {condition} ORDER BY id DESC LIMIT ?) AS part"
# Word by word the condition of the index exports_recoverable, as below. The target is bounded, not equalled: that order only
# this index gives, and PostgreSQL does not go through the newest exports of all targets, where it may find none.
_UNSENT_PART: Final = """
SELECT id FROM (
    SELECT id FROM exports
    WHERE target_id >= ? AND (target_id, id) < (?, ?) AND status IN ('failed', 'blocked') AND redacted_at IS NULL
        AND EXISTS (SELECT 1 FROM targets WHERE targets.id = ? AND targets.account_id = ?) {more}
    ORDER BY target_id DESC, id DESC LIMIT ?
) AS part"""
#: Sorts behind every id in any collation: the greatest ULID there is.
_AFTER_ALL: Final = f"{identifiers.EXPORT}_7{'Z' * 25}"

# Whether an attempt may start for a target `t` at a moment.
_OPEN: Final = "t.status = 'active' AND (t.held_until IS NULL OR t.held_until <= ?)"
# The oldest due of each chosen target. PostgreSQL: row locks that two claimers do not wait for. SQLite: one writer and no
# locks; its LIMIT takes no column, so it reads as many of each target as the one that gets most, and CROSS JOIN keeps it to
# the order in which the tables stand here, whatever it has learned of them.
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
UPDATE exports SET status = ?, attempts = attempts + 1, lease = ?, due_at = ?, version = version + 1
FROM r WHERE exports.id = r.id"""

# The results of a tick: a row a result, matched against the lease it was sent under.
_RECORD: Final = f"""
WITH r ({", ".join(RECORDED_COLUMNS)}) AS ({{rows}})
UPDATE exports SET status = r.status, status_reason = r.reason, lease = NULL, version = version + 1,
    due_at = r.due_at, finished_at = r.finished_at, last_attempt_at = r.at, last_response_status = r.response_status,
    last_error_code = r.error_code, last_duration_ms = r.ms,
    provider_ticket_id = r.ticket_id, provider_ticket_url = r.ticket_url
FROM r WHERE exports.id = r.id AND exports.lease = r.lease AND exports.status = 'delivering'
RETURNING exports.id"""  # noqa: S608 - our own names

_WAITING_FOR_NOTHING: Final = """
SELECT e.id, e.status FROM targets t CROSS JOIN exports e
WHERE t.id IN {targets} AND t.status = ? AND e.target_id = t.id AND e.due_at IS NOT NULL
    AND (e.status <> 'delivering' OR e.due_at <= ?)
LIMIT ?"""
_END_WAITING: Final = """
UPDATE exports SET status = ?, status_reason = ?, lease = NULL, due_at = NULL, finished_at = ?, version = version + 1
WHERE id IN """

#: A claim as its holder knows it.
_LEASED: Final = ("TEXT", "TEXT")
_POSTPONE: Final = """
WITH r (id, lease) AS ({rows})
UPDATE exports SET status = ?, attempts = attempts - 1, lease = NULL, due_at = ?, version = version + 1
FROM r WHERE exports.id = r.id AND exports.lease = r.lease AND exports.status = 'delivering'
RETURNING exports.id"""
_RENEW: Final = """
WITH r (id, lease) AS ({rows})
UPDATE exports SET due_at = ?
FROM r WHERE exports.id = r.id AND exports.lease = r.lease AND exports.status = 'delivering'"""

# Word by word the condition of the index exports_recoverable, which both databases read for it.
_RECOVERABLE: Final = (
    "FROM exports WHERE target_id = ? AND id > ? AND finished_at >= ? "
    "AND status IN ('failed', 'blocked') AND redacted_at IS NULL"
)
#: Before every moment.
_EVER_MS: Final = 0
_RECOVER: Final = """
UPDATE exports SET status = ?, status_reason = NULL, due_at = ?, finished_at = NULL, schedule_began_at = ?,
    attempts_before = attempts, version = version + 1
WHERE id IN """

# An export made by hand names its source in its maker's own words. Ours have identifiers of ours.
_EMPTY: Final = """
UPDATE exports SET ticket = ?, ticket_digest = ?, preview_problems = '[]',
    body = CASE WHEN body IS NULL THEN body ELSE ? END, provider_ticket_id = NULL, provider_ticket_url = NULL,
    redacted_at = ?, version = version + 1,
    source_id = CASE WHEN source_type = ? THEN 'redacted' ELSE source_id END
WHERE id IN """
_END: Final = """
UPDATE exports SET status = ?, status_reason = 'redacted', lease = NULL, due_at = NULL, finished_at = ?
WHERE status IN {} AND id IN {}"""

_json: Final = JsonField()


@dataclass(frozen=True, slots=True)
class Frozen:
    """The bytes that every attempt sends, None before they are approved, and when they were emptied of a person."""

    body: bytes | None
    redacted_at: datetime | None


def prepare(drafts: Sequence[Draft], now: datetime, actor: str) -> list[str]:
    """Store each draft as a `prepared` export and return the ids, in order; the caller holds the transaction."""
    if not drafts:
        return []
    ids = [identifiers.new_id(identifiers.EXPORT, now) for _ in drafts]
    _insert("exports", PREPARED_COLUMNS, [prepared_row(*each, now) for each in zip(ids, drafts, strict=True)])
    prepared = ExportStatus.PREPARED.value
    append_all([AuditEntry(to_ms(now), actor, "prepare", export_id, None, prepared) for export_id in ids])
    return ids


def prepare_by_hand(preparation: Preparation, account_id: int, now: datetime, actor: str) -> Export:
    """Store a ticket that somebody wrote as a `prepared` export. Raises ValidationFailed on `/project_id`."""
    with transaction():
        _require_project(preparation.project_id, account_id)
        source = Source(MANUAL, preparation.source_id or "")
        [export_id] = prepare([Draft(account_id, preparation.project_id, source, preparation.ticket)], now, actor)
        return get(export_id)


def get(export_id: str, account_id: int | None = None) -> Export:
    """Return an export, of one account where `account_id` is given. Raises ExportNotFound."""
    found = rows(_GET, (export_id,)) if identifiers.is_id(identifiers.EXPORT, export_id) else []
    if not found or account_id not in {None, found[0][1]}:
        raise ExportNotFound
    return export_from(found[0])


def newest(
    account_id: int | None = None,
    limit: int = ALL,
    before: str | None = None,
    statuses: Collection[str] = (),
    source_type: str | None = None,
) -> list[Export]:
    """Return up to `limit` exports, the newest first, or those that come after the one with the id `before`.

    Of one account or of all, in any of `statuses` or in every one, from one type of source or from all.
    """
    asked = {"account_id = ?": account_id, "source_type = ?": source_type, "id < ?": before}
    return _newest([_part_of_newest({**asked, "status = ?": status}, limit) for status in statuses or (None,)], limit)


def newest_unsent(
    target_id: str,
    account_id: int,
    limit: int,
    before: str | None = None,
    status: str | None = None,
    source_type: str | None = None,
) -> list[Export]:
    """Return up to `limit` exports that failed or were blocked at an account's target, the newest first, as `newest` does.

    In one `status` of both where that is given, from one type of source or from all. Redacted ones are left out.
    """
    more = {"AND status = ?": status, "AND source_type = ?": source_type}
    known = {condition: value for condition, value in more.items() if value is not None}
    values = [target_id, target_id, before or _AFTER_ALL, target_id, account_id, *known.values(), limit]
    return _newest([(_UNSENT_PART.format(more=" ".join(known)), values)], limit)


def frozen(export_id: str, account_id: int) -> Frozen:
    """Return what was frozen of an account's export. Raises ExportNotFound."""
    asked = "SELECT body, redacted_at FROM exports WHERE id = ? AND account_id = ?"
    found = rows(asked, (export_id, account_id)) if identifiers.is_id(identifiers.EXPORT, export_id) else []
    if not found:
        raise ExportNotFound
    [(body, redacted_at)] = found
    return Frozen(None if body is None else bytes(body), from_ms(redacted_at))


def approve(export_id: str, account_id: int, approval: Approval, now: datetime, actor: str) -> Export:
    """Freeze the ticket's bytes for a target and make it due now; for the same target again, return what is there.

    Raises ExportNotFound, Conflict for an illegal move or another digest, ValidationFailed for the target or the preview.
    """
    with transaction():
        export = _held(export_id, account_id)
        if approval.ticket_digest not in {None, export.ticket_digest}:
            raise Conflict(f"The ticket of export {export.id} is not the one with this digest; read it again.")
        if export.target_id == approval.target_id:
            return export
        _require(Move.APPROVE, export)
        _require_approvable(approval.target_id, account_id)
        if export.preview_problems:
            raise ValidationFailed(problem("", "preview_not_safe"))
        body = delivery_body(export.id, approval.target_id, export.source, export.ticket, rfc3339(now))
        at = to_ms(now)
        changes = {"target_id": approval.target_id, "body": body, "approved_at": at, "due_at": at, "schedule_began_at": at}
        _move(export, Move.APPROVE, now, actor, changes)
        return get(export_id, account_id)


def dismiss(export_id: str, account_id: int | None, now: datetime, actor: str) -> Export:
    """Put a prepared export aside for good. Raises ExportNotFound, Conflict."""
    with transaction():
        export = _held(export_id, account_id)
        _require(Move.DISMISS, export)
        _move(export, Move.DISMISS, now, actor, {"finished_at": to_ms(now)})
        return get(export_id)


def blocked_url(export_id: str, account_id: int | None = None) -> str | None:
    """Return the address that has to be looked at anew before an export is retried: that of its target, if it is blocked.

    None where nothing can be retried, or nothing is blocked; `retry` says which.
    """
    asked = (
        "SELECT t.base_url, e.account_id FROM exports e JOIN targets t ON t.id = e.target_id "
        "WHERE e.id = ? AND e.status IN ('failed', 'blocked') AND t.status = 'blocked'"
    )
    found = rows(asked, (export_id,)) if identifiers.is_id(identifiers.EXPORT, export_id) else []
    return str(found[0][0]) if found and account_id in {None, found[0][1]} else None


def retry(
    export_id: str,
    account_id: int | None,
    now: datetime,
    actor: str,
    validation: Validation | None = None,
    *,
    has_default_secret: bool = True,
) -> Export:
    """Make a failed or blocked export due again, with its whole schedule, for a target that is active or paused.

    A blocked target is resumed with it if `validation`, a look at its `blocked_url` just now, has passed; without a default
    secret (WEBHOOK_SECRET) it needs one of its own. Raises ExportNotFound, Conflict.
    """
    with transaction():
        export = _held(export_id, account_id)
        _require(Move.RETRY, export)
        _require_unredacted(export)
        if validation is not None:
            _unblock(export, validation, now, actor, has_default_secret)
        _require_deliverable(export)
        restart = {"schedule_began_at": to_ms(now), "attempts_before": export.attempts}
        _move(export, Move.RETRY, now, actor, {"due_at": to_ms(now), "finished_at": None, "status_reason": None, **restart})
        return get(export_id)


def count_recoverable(target_id: str, since: datetime) -> int:
    """Return how many exports of a target `recover_batch` would come to, from the first on."""
    return int(rows(f"SELECT COUNT(*) {_RECOVERABLE}", (target_id, "", to_ms(since)))[0][0])


def recoverable_since(target_id: str, moments: Sequence[datetime], limit: int) -> list[int]:
    """Return how many exports a recovery since each of these moments would come to, among the newest `limit` that failed.

    One question that looks at no more than those, however many failed: it is asked whenever a target is looked at.
    """
    if not moments:
        return []
    counts = ", ".join("COUNT(CASE WHEN finished_at >= ? THEN 1 END)" for _ in moments)
    asked = f"SELECT {counts} FROM (SELECT finished_at {_RECOVERABLE} ORDER BY id DESC LIMIT ?) AS newest"  # noqa: S608 - our own names
    [found] = rows(asked, (*(to_ms(moment) for moment in moments), target_id, "", _EVER_MS, limit))
    return [int(count) for count in found]


def count_waiting(target_id: str, limit: int) -> int:
    """Return how many exports wait for a target or are being sent to it, counting no further than `limit`."""
    asked = "SELECT COUNT(*) FROM (SELECT 1 FROM exports WHERE target_id = ? AND due_at IS NOT NULL LIMIT ?) AS waiting"
    return int(rows(asked, (target_id, limit))[0][0])


def recover_batch(
    target_id: str, since: datetime, after_id: str, limit: int, now: datetime, actor: str, reason: str
) -> tuple[str | None, int]:
    """Make up to `limit` exports of a target due again that failed or were blocked at `since` or later, as `retry` does.

    In the order of their ids, behind `after_id`; redacted ones are left out, and what somebody moves meanwhile stays moved.
    Return the last one that was looked at, None where none is left, and how many are due again. The caller holds the
    transaction and has seen that the target takes exports; `reason` tells the ledger on whose behalf.
    """
    found = rows(f"SELECT id {_RECOVERABLE} ORDER BY id LIMIT ?", (target_id, after_id, to_ms(since), limit))
    if not found:
        return None, 0
    held = [each for each in _unredacted([row[0] for row in found]) if allows(Move.RETRY, ExportStatus(each[1]))]
    if held:
        ids, at = [export_id for export_id, _ in held], to_ms(now)
        execute(_RECOVER + values_list(len(ids), 1), (MOVES[Move.RETRY].target.value, at, at, *ids))
        append_all([_entry(now, actor, Move.RETRY, ExportStatus(status), each, reason) for each, status in held])
    return found[-1][0], len(held)


def redact(export_ids: Sequence[str], now: datetime, actor: str) -> int:
    """Empty exports of all that they say and let none be sent any more; return how many said something until now.

    What is still to be sent is dismissed or fails with the reason `redacted`; what is finished keeps its status. Who holds
    one of them can write nothing back. The caller holds the transaction.
    """
    found = _unredacted(export_ids)
    if not found:
        return 0
    ids, stub, at = [row[0] for row in found], REDACTED_TICKET.record(), to_ms(now)
    within = values_list(len(ids), 1)
    execute(_EMPTY + within, (_json.db_value(stub), digest(stub), b"", at, MANUAL, *ids))
    execute(f"UPDATE attempts SET answer = NULL WHERE export_id IN {within}", ids)  # noqa: S608 - our own names
    for move in (Move.DISMISS, Move.WITHDRAW):
        sources = sorted(MOVES[move].sources)
        execute(_END.format(values_list(len(sources), 1), within), (MOVES[move].target.value, at, *sources, *ids))
    append_all([_redact_entry(export_id, ExportStatus(status), now, actor) for export_id, status in found])
    return len(found)


def count_due(now: datetime, limit: int) -> int:
    """Return how many exports may be claimed at `now`, counting no further than `limit`."""
    return int(
        rows(
            "SELECT COUNT(*) FROM (SELECT 1 FROM targets t CROSS JOIN exports e "  # noqa: S608 - our own names
            f"WHERE e.target_id = t.id AND {_OPEN} AND e.due_at <= ? LIMIT ?) AS due",
            (to_ms(now), to_ms(now), limit),
        )[0][0]
    )


def claim_due(quotas: Mapping[str, int], now: datetime, lease_s: float, worker: str) -> list[Claim]:
    """Take due exports, each for one attempt: of each target up to its quota, the oldest due first.

    What is held, paused or turned off is left alone. A claim lapses `lease_s` seconds after `now`, unless `renew` is called;
    then the export is due again.
    """
    if not quotas:
        return []
    lease = identifiers.new_id(identifiers.LEASE, now)
    now_ms, until_ms = to_ms(now), to_ms(now + timedelta(seconds=lease_s))
    with transaction():
        due = _due(quotas, now_ms)
        if not due:
            return []
        # Row locks on PostgreSQL and the one writer of SQLite have kept others out since they were found due.
        execute_over(_TAKE, ("TEXT",), [row[:1] for row in due], (ExportStatus.DELIVERING.value, lease, until_ms))
        append_all([_claim_entry(row[0], row[1], now_ms, worker) for row in due])
    return [claim_from(row, lease, now) for row in due]


def look_again(claim: Claim, now: datetime) -> Claim | None:
    """Return a claim as it stands at `now`, with the secret that its target has by then.

    None where no attempt may start by it: its lease is gone, or its target takes none.
    """
    asked = (
        "SELECT t.secret_sealed FROM exports e JOIN targets t ON t.id = e.target_id "  # noqa: S608 - our own names
        f"WHERE e.id = ? AND e.lease = ? AND e.due_at > ? AND {_OPEN}"
    )
    found = rows(asked, (claim.export_id, claim.lease, to_ms(now), to_ms(now)))
    if not found:
        return None
    [(sealed,)] = found
    return claim._replace(secret_sealed=None if sealed is None else bytes(sealed))


def end_waiting(target_ids: Sequence[str], now: datetime, worker: str, limit: int) -> int:
    """End up to `limit` exports that wait for targets that were turned off: blocked or failed, as the target is.

    What is being sent at this moment is left to who sends it. The caller holds the transaction.
    """
    if not target_ids:
        return 0
    off = {TargetStatus.BLOCKED: Move.BLOCK, TargetStatus.DISABLED: Move.WITHDRAW}
    return sum(_end_waiting(status, move, target_ids, now, worker, limit) for status, move in off.items())


def renew(claims: Iterable[Claim], now: datetime, lease_s: float) -> None:
    """Let claims lapse `lease_s` seconds after `now` instead; those that somebody else took meanwhile stay taken."""
    # In the order of ids, as every lock of many exports: a redaction of the same ones waits, and never deadlocks.
    held = sorted((claim.export_id, claim.lease) for claim in claims)
    if not held:
        return
    until_ms = to_ms(now + timedelta(seconds=lease_s))
    with transaction():
        execute_over(_RENEW, _LEASED, held, (until_ms,))


def shorten_leases(now: datetime, lease_s: float) -> int:
    """Let no claim lapse later than `lease_s` seconds after `now`, as some would after a clock was set back; count them."""
    until_ms = to_ms(now + timedelta(seconds=lease_s))
    with transaction():
        return execute(
            "UPDATE exports SET due_at = ? "
            "WHERE status = 'delivering' AND due_at > ? AND target_id IN (SELECT id FROM targets)",
            (until_ms, until_ms),
        )


def record_attempts(attempts: Sequence[CompletedAttempt], now: datetime, worker: str) -> set[str]:
    """Write attempts and move their exports, all or nothing; return the ids of the exports that moved.

    An export whose lease lapsed belongs to somebody else by now: its attempt is not written, not even when it comes back
    beside the attempt of the later claim.
    """
    attempts = _latest_of_each(attempts)
    if not attempts:
        return set()
    with transaction():
        recorded = [recorded_row(attempt, now) for attempt in attempts]
        moved = {row[0] for row in rows_over(_RECORD, [*RECORDED_COLUMNS.values()], recorded)}
        held = [attempt for attempt in attempts if attempt.claim.export_id in moved]
        _insert("attempts", ATTEMPT_COLUMNS, [attempt_row(attempt, worker) for attempt in held])
        delivery_hours.count_attempts(held, worker)
        append_all([_verdict_entry(attempt, now, worker) for attempt in held])
    return moved


def postpone(claims: Sequence[Claim], now: datetime, worker: str) -> int:
    """Give claims back unsent: due again at once, the attempt not counted. Return how many were still held."""
    # In the order of ids, as every lock of many exports.
    held = sorted((claim.export_id, claim.lease) for claim in claims)
    if not held:
        return 0
    with transaction():
        waiting = (MOVES[Move.POSTPONE].target.value, to_ms(now))
        given_back = [row[0] for row in rows_over(_POSTPONE, _LEASED, held, waiting)]
        append_all([_entry(now, worker, Move.POSTPONE, ExportStatus.DELIVERING, export_id) for export_id in given_back])
    return len(given_back)


def _part_of_newest(asked: Mapping[str, Any], limit: int) -> tuple[str, list[Any]]:
    """Return the statement that finds the ids of a page, and its parameters; what is asked for as None is not asked."""
    known = {condition: value for condition, value in asked.items() if value is not None}
    return _NEWEST_PART.format(condition=" AND ".join(known) or "TRUE"), [*known.values(), limit]


def _newest(parts: Sequence[tuple[str, list[Any]]], limit: int) -> list[Export]:
    """Return the newest of what all parts find."""
    sql = _NEWEST.format(parts=" UNION ALL ".join(part for part, _ in parts))
    return [export_from(row) for row in rows(sql, [*(value for _, values in parts for value in values), limit])]


def _end_waiting(off: TargetStatus, move: Move, target_ids: Sequence[str], now: datetime, worker: str, limit: int) -> int:
    lock = "" if is_sqlite() else " FOR UPDATE OF e SKIP LOCKED"
    asked = _WAITING_FOR_NOTHING.format(targets=values_list(len(target_ids), 1)) + lock
    found = rows(asked, (*target_ids, off.value, to_ms(now), limit))
    if not found:
        return 0
    step, reason = MOVES[move].target, f"target_{off.value}"
    execute(_END_WAITING + values_list(len(found), 1), (step.value, reason, to_ms(now), *(row[0] for row in found)))
    append_all([_entry(now, worker, move, ExportStatus(status), export_id, reason) for export_id, status in found])
    return len(found)


def _due(quotas: Mapping[str, int], now_ms: int) -> list[tuple[Any, ...]]:
    """Read what `claim_due` takes; on PostgreSQL nobody else can take it until the transaction ends."""
    if not is_sqlite():
        return rows_over(_DUE_POSTGRESQL, ("TEXT", "BIGINT"), [*quotas.items()], (now_ms, now_ms))
    left = dict(quotas)
    asked = _DUE_SQLITE.format(targets=values_list(1, len(quotas)))
    chosen = []
    for row in rows(asked, [*quotas, now_ms, now_ms, max(quotas.values())]):
        left[row[TARGET_PLACE]] -= 1
        if left[row[TARGET_PLACE]] >= 0:
            chosen.append(row)
    return chosen


def _unredacted(export_ids: Sequence[str]) -> list[tuple[str, str]]:
    """Return which of these exports say something still, with their status, and keep others from moving them."""
    if not export_ids:
        return []
    within = values_list(len(export_ids), 1)
    lock = "" if is_sqlite() else " FOR UPDATE"
    statement = f"SELECT id, status FROM exports WHERE redacted_at IS NULL AND id IN {within} ORDER BY id{lock}"  # noqa: S608 - our own names
    return [(row[0], row[1]) for row in rows(statement, export_ids)]


def _latest_of_each(attempts: Sequence[CompletedAttempt]) -> list[CompletedAttempt]:
    """Drop what an earlier claim of the same export came to: a worker can take over from itself. In the order of ids."""
    by_age = sorted(attempts, key=lambda attempt: attempt.claim.attempt)
    latest = {attempt.claim.export_id: attempt for attempt in by_age}
    # As every lock of many exports: a redaction of the same ones waits, and never deadlocks.
    return [latest[export_id] for export_id in sorted(latest)]


def _held(export_id: str, account_id: int | None) -> Export:
    """Return an export and keep others from moving it until the transaction ends, so that a repeat sees the move."""
    if not is_sqlite() and identifiers.is_id(identifiers.EXPORT, export_id):
        rows("SELECT 1 FROM exports WHERE id = ? FOR UPDATE", (export_id,))
    return get(export_id, account_id)


def _require(move: Move, export: Export) -> None:
    if not allows(move, export.status):
        sources = " or ".join(sorted(MOVES[move].sources))
        raise Conflict(f"Export {export.id} is {export.status.value}; {move.value} needs {sources}.")


def _require_unredacted(export: Export) -> None:
    if rows("SELECT 1 FROM exports WHERE id = ? AND redacted_at IS NOT NULL", (export.id,)):
        raise Conflict(f"Export {export.id} was redacted; nothing is left of it to deliver.")


def _require_approvable(target_id: str, account_id: int) -> None:
    found = rows("SELECT status FROM targets WHERE id = ? AND account_id = ?", (target_id, account_id))
    if not found:
        raise ValidationFailed(problem("/target_id", "unknown_target"))
    if TargetStatus(found[0][0]) not in APPROVABLE:
        raise ValidationFailed(problem("/target_id", "target_not_active"))


def _require_deliverable(export: Export) -> None:
    """Refuse what would wait for ever: nothing is claimed for a target that is turned off, blocked or without a secret."""
    [(status,)] = rows("SELECT status FROM targets WHERE id = ?", (export.target_id,))
    if TargetStatus(status) not in APPROVABLE:
        raise Conflict(f"Target {export.target_id} is {status}; export {export.id} can be retried once it is resumed.")


def _unblock(export: Export, validation: Validation, now: datetime, actor: str, has_default_secret: bool) -> None:
    """Resume the blocked target of an export whose address may be used again; one in another state stays as it is."""
    target_id = str(export.target_id)
    if not validation.has_passed:
        raise Conflict(
            f"Target {target_id} stays blocked: {validation.reason}; export {export.id} cannot be delivered there."
        )
    # It also keeps others from turning the target meanwhile.
    targets.record_validation(target_id, export.account_id, validation, now, actor)
    if rows("SELECT 1 FROM targets WHERE id = ? AND status = 'blocked'", (target_id,)):
        targets.change_status(target_id, "resume", now, actor, Move.RETRY, has_default_secret=has_default_secret)


def _require_project(project_id: int | None, account_id: int) -> None:
    asked = "SELECT 1 FROM projects WHERE id = ? AND account_id = ?"
    if project_id is not None and not rows(asked, (project_id, account_id)):
        raise ValidationFailed(problem("/project_id", "unknown_project"))


def _move(export: Export, move: Move, now: datetime, actor: str, changes: dict[str, Any]) -> None:
    """Compare and swap by version. Who else might have won: another request for the same export, or a worker's claim."""
    status = MOVES[move].target
    columns = {"status": status.value, **changes}
    assignments = ", ".join(f"{name} = ?" for name in columns)
    swapped = execute(
        f"UPDATE exports SET {assignments}, version = version + 1 WHERE id = ? AND version = ? AND status = ?",  # noqa: S608 - our own names
        (*columns.values(), export.id, export.version, export.status.value),
    )
    if not swapped:
        raise Conflict(f"Export {export.id} changed meanwhile; read it again.")
    append_all([_entry(now, actor, move, export.status, export.id)])


def _entry(
    now: datetime, actor: str, move: Move, before: ExportStatus, export_id: str, reason: str | None = None
) -> AuditEntry:
    return AuditEntry(to_ms(now), actor, move.value, export_id, before.value, MOVES[move].target.value, reason)


def _redact_entry(export_id: str, before: ExportStatus, now: datetime, actor: str) -> AuditEntry:
    """Name the move that the redaction made, or `redact` where the export was finished and stays so."""
    move = next((each for each in (Move.DISMISS, Move.WITHDRAW) if allows(each, before)), None)
    if move is None:
        return AuditEntry(to_ms(now), actor, "redact", export_id, before.value, before.value, "redacted")
    return _entry(now, actor, move, before, export_id, "redacted")


def _claim_entry(export_id: str, status: str, now_ms: int, worker: str) -> AuditEntry:
    reason = "lease_lapsed" if status == ExportStatus.DELIVERING else None
    return AuditEntry(now_ms, worker, Move.CLAIM.value, export_id, status, ExportStatus.DELIVERING.value, reason)


def _verdict_entry(attempt: CompletedAttempt, now: datetime, worker: str) -> AuditEntry:
    verdict = attempt.verdict
    return _entry(now, worker, verdict.move, ExportStatus.DELIVERING, attempt.claim.export_id, verdict.reason)


def _insert(table: str, columns: Mapping[str, str], values: Rows) -> None:
    execute_over(f"INSERT INTO {table} ({', '.join(columns)}) {{rows}}", [*columns.values()], values)
