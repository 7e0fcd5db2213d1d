"""Retention: removes records that have been finished for long enough, in batches of one short transaction each.

An export is removed together with its attempts, its events, its handoff and the upload or email from which it was prepared,
or all of it stays. The copies of a ticket for several targets are removed together. Batches are read without a lock, in the
order of ids or by an index, and a row is removed only if it has not changed since: an export that is retried, approved or
recovered meanwhile stays, and a locked row stays until the next run.

Never removed, at any age: exports that wait, are being sent or are being recovered; findings, because they keep a known
problem from being reported again; scan runs, because a late result finds its project by its run; the audit log, compliance
requests and the erasure log.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, reduce
from operator import or_
from typing import Any, Final

from peewee import OP, SQL, Expression, OperationalError, fn

from schemas.alerts.alert import AlertState
from schemas.exports.recoveries import RecoveryStatus
from schemas.exports.state_machine import FINISHED, ExportStatus
from schemas.exports.tickets.ticket_events import TicketEventStatus
from schemas.findings.life_cycle import RunOutcome
from schemas.settings.alert_channels import AlertKind
from storage.accounts.sessions import is_fresh
from storage.db import identifiers
from storage.db.columns import LAST_ULID
from storage.db.engine import execute, is_sqlite, sqlstate_of, transaction
from storage.db.models import (
    NO_EXPORT,
    AlertMessageRow,
    AlertRow,
    AttemptRow,
    AuditEntryRow,
    BulkJobItemRow,
    BulkJobRow,
    ComplianceRequestRow,
    ConsoleSessionRow,
    DeliveryHourRow,
    DiagnosticRow,
    EvidenceCaptureRow,
    ExportRow,
    FindingRow,
    FindingSightingRow,
    HandoffRow,
    IdempotencyKeyRow,
    InboundEmailRow,
    PageResultRow,
    PingRow,
    RecoveryRow,
    ReportUploadRow,
    ScanRunRow,
    SignInLinkRow,
    TicketChangeRow,
    TicketEventRow,
    TokenRow,
)
from storage.db.queries import for_update, scalars, tuples
from storage.exports.idempotency import NATURAL_KEY_TTL
from storage.exports.search import export_words_sql
from storage.maintenance import partitions_sql
from storage.maintenance.archive import Archive, archived_fields

#: How many exports a batch has, each with an attempt or two and perhaps its source: some 10 ms of SQLite's one writer.
EXPORTS_AT_ONCE: Final = 100
#: How many rows a batch of another table has.
ROWS_AT_ONCE: Final = 250
#: After the last use of a session: long enough to find out who was signed in at the time of an action.
SESSIONS_KEPT_FOR: Final = timedelta(days=30)
#: The summary of this week must be found, or it would be sent again: a week, and a day because clocks may differ.
_SUMMARIES_KEPT_FOR: Final = timedelta(days=8)
#: The limit that never applies.
ALL: Final = 2**63 - 1

#: An erasure locks the same rows in another order. In a deadlock, PostgreSQL rolls one of both transactions back after a
#: second; this shorter timeout makes the batch fail first.
_LOCK_WAIT: Final = "SET LOCAL lock_timeout = '100ms'"
#: PostgreSQL's SQLSTATEs for a lock timeout and for a deadlock.
_BUSY: Final = frozenset({"55P03", "40P01"})
_SKIP_LOCKED: Final = "FOR UPDATE SKIP LOCKED"
#: The position of the first id in the JSON array of siblings, and its length.
_FIRST_SIBLING: Final = (len('["') + 1, len(f"{identifiers.EXPORT}_{LAST_ULID}"))

#: The encrypted reports of compliance requests; the requests themselves stay.
REPORTS: Final = "compliance_reports"
#: The encrypted ID tokens of console sessions; the sessions themselves stay longer.
ID_TOKENS: Final = "id_tokens"

#: The table of an export's source by its type. Findings are not removed, and a manual ticket has no other row.
_SOURCES: Final[Mapping[str, Any]] = {"evidence_capture": EvidenceCaptureRow, "diagnostics": DiagnosticRow}
#: The tables whose rows are removed with their export. Foreign keys would delete events and changes too, but would not
#: archive or count them. The search terms need neither. Exports in the items of bulk jobs stay.
_OF_EXPORT: Final[Sequence[Any]] = (AttemptRow, TicketEventRow, TicketChangeRow, HandoffRow, InboundEmailRow)


class _Reported(Exception):
    """A finding whose export was about to be removed was reported meanwhile."""


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """Times before which finished records (`over`), stored responses, and sessions by their last use are removed."""

    over: datetime
    responses: datetime
    sessions: datetime
    #: The time from which the cutoffs were computed.
    now: datetime


def cutoffs(now: datetime, retention: timedelta, idempotency_ttl: timedelta) -> Cutoffs:
    """Return the cutoffs at `now`.

    Whatever `retention` is, an export is kept as long as the stored responses that repeat its ticket, because an erasure
    finds them by their export. Whatever `idempotency_ttl` is, responses under a natural key are kept for a day.
    """
    stored_for = max(idempotency_ttl, NATURAL_KEY_TTL)
    over = now - max(retention, stored_for)
    # Sessions are removed no later than their token, which is removed by `over`.
    return Cutoffs(over=over, responses=now - stored_for, sessions=max(over, now - SESSIONS_KEPT_FOR), now=now)


def counted(until: Cutoffs) -> list[str]:
    """Return the names of the counts of `purge`, in the order of removal."""
    with_exports = map(_name, (ExportRow, *_OF_EXPORT, *_SOURCES.values()))
    return list(dict.fromkeys((*with_exports, *(rule.counted_as for rule in _rules(until)))))


def count_expired(until: Cutoffs, limit: int = ALL) -> Counter[str]:
    """Count the rows that `purge` would remove now, by table."""
    counts = Counter[str]()
    for part in _expired_exports(until):
        for each in _within(part, limit - counts.total()):
            counts += each.counts
    for rule in _rules(until):
        counts[rule.counted_as] += rule.count(limit - counts.total())
    return counts


def purge(until: Cutoffs, limit: int = ALL, archive: Archive | None = None) -> Iterator[Counter[str]]:
    """Remove up to `limit` rows in batches; yield after each batch the removed rows by table, which may be none.

    When the caller requests the next batch, it holds a connection and no transaction; between two batches it lets others
    write. With an archive, a batch is synced to the disk before it is removed. Raises OSError if it cannot be written; then
    the batch stays. On PostgreSQL, begins with the partitions, and drops those that the last run emptied.
    """
    partitions_sql.maintain(until.now, until.over)
    left, removed = limit, 0
    for part in _expired_exports(until):
        counts = _remove(_within(part, left), until, archive)
        left -= counts.total()
        removed += counts["exports"]
        yield counts
        if not left:
            break
    if removed:
        export_words_sql.overwrite_removed()
    if not left:
        return
    for rule in _rules(until):
        for counts in rule.purge(left, archive):
            left -= counts.total()
            yield counts


@dataclass(frozen=True, slots=True)
class _ExpiredExport:
    """An export that may be removed, as it was read."""

    id: str
    version: int
    source_type: str
    source_id: str
    #: The rows that are removed with the export, by table.
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class PurgeRule:
    """Which rows of a table are removed one by one, without related rows."""

    model: Any
    condition: Any
    #: The column by which the condition's index is sorted.
    order: Any
    #: The column that identifies a row.
    key: Any
    counted_as: str
    #: The column to empty; if None, the rows are deleted.
    empties: Any = None

    def count(self, limit: int) -> int:
        """Count the rows that match, up to `limit`."""
        return int(self.model.select(SQL("1")).where(self.condition).limit(limit).count())

    def purge(self, limit: int, archive: Archive | None) -> Iterator[Counter[str]]:
        """Remove up to `limit` of the rows that match, as the function `purge` does."""
        query = self.model.select(self.key).where(self.condition).order_by(self.order)
        while found := scalars(query.limit(min(limit, ROWS_AT_ONCE))):
            if archive is not None and self.empties is None:
                _write(archive, self.model, self.key, found)
                archive.sync()
            counts = _unless_busy(partial(self._delete_unlocked, found))
            limit -= counts.total()
            yield counts
            if not counts:
                # Other transactions have locked all these rows; the next query would return them again.
                return

    def _delete_unlocked(self, ids: Sequence[Any]) -> Counter[str]:
        still = self.model.select(self.key).where(self.condition, self.key.in_(ids))
        locked = scalars(for_update(still, _SKIP_LOCKED))
        if not locked:
            return Counter()
        removal = self.model.delete() if self.empties is None else self.model.update({self.empties: None})
        return Counter({self.counted_as: removal.where(self.key.in_(locked)).execute()})


def _rules(until: Cutoffs) -> list[PurgeRule]:
    """Return the rules for all tables except exports and their rows, in the order in which they are applied."""
    # Sessions are removed before their tokens, because a token stays while it has a session. With NOT EXISTS, PostgreSQL
    # would read all sessions.
    session = ConsoleSessionRow.select(ConsoleSessionRow.id).where(ConsoleSessionRow.token == TokenRow.id)
    is_unused = Expression(session.order_by(ConsoleSessionRow.id).limit(1), OP.IS, None)
    expires_later = TokenRow.expires_at.is_null() | (TokenRow.expires_at >= until.over)
    reports = ComplianceRequestRow
    # The database's own row address, because these tables have a key of several columns and none of them identifies a row.
    address = SQL("rowid" if is_sqlite() else "ctid")
    # By their scan runs, which are few. An index by time would be written for every finding of every run.
    sighted = FindingSightingRow.scan_run
    old_runs = ScanRunRow.select(ScanRunRow.id).where(ScanRunRow.updated_at < until.over)
    jobs = (
        (RecoveryRow, identifiers.RECOVERY),
        (BulkJobRow, identifiers.BULK_JOB),
        (ReportUploadRow, identifiers.REPORT_UPLOAD),
    )
    return [
        _rule(PageResultRow, PageResultRow.received_at < until.over, PageResultRow.received_at),
        PurgeRule(FindingSightingRow, sighted.in_(old_runs) & ~_is_counted(until), sighted, address, "finding_sightings"),
        # Unfinished pings too: no request waits for them any more, and no worker sends a ping that old.
        _rule(PingRow, _is_before(PingRow, identifiers.PING, until.responses), PingRow.id),
        *(_rule(job, _is_before(job, kind, until.over) & (job.finished_at < until.over), job.id) for job, kind in jobs),
        _rule(IdempotencyKeyRow, IdempotencyKeyRow.created_at < until.responses, IdempotencyKeyRow.created_at),
        PurgeRule(DeliveryHourRow, DeliveryHourRow.hour_at < until.over, DeliveryHourRow.hour_at, address, "delivery_hours"),
        _id_token_rule(until.now),
        _rule(ConsoleSessionRow, ConsoleSessionRow.seen_at < until.sessions, ConsoleSessionRow.seen_at),
        _rule(TokenRow, (TokenRow.expires_at < until.over) & is_unused, TokenRow.expires_at),
        _rule(TokenRow, (TokenRow.revoked_at < until.over) & expires_later & is_unused, TokenRow.revoked_at),
        _rule(AlertRow, _is_old_alert(until), AlertRow.last_at),
        # Messages of channels that are no longer configured; other messages are dropped after a day.
        _rule(AlertMessageRow, _is_before(AlertMessageRow, identifiers.ALERT_MESSAGE, until.responses), AlertMessageRow.id),
        # Requests that no worker claimed; other requests are deleted when they are used or too old.
        _rule(SignInLinkRow, _is_before(SignInLinkRow, identifiers.SIGN_IN_LINK, until.responses), SignInLinkRow.id),
        PurgeRule(
            reports,
            (reports.finished_at < until.over) & reports.report_sealed.is_null(False),
            reports.finished_at,
            reports.id,
            REPORTS,
            empties=reports.report_sealed,
        ),
    ]


def _id_token_rule(now: datetime) -> PurgeRule:
    """Return the rule that empties the ID tokens of sessions that nobody ended, but that are idle or too old.

    The end of a session empties its ID token. Open sessions have an index, and a user has only a few.
    """
    s = ConsoleSessionRow
    condition = s.ended_at.is_null() & s.id_token_sealed.is_null(False) & ~is_fresh(now)
    return PurgeRule(s, condition, s.id, s.id, ID_TOKENS, empties=s.id_token_sealed)


def _is_counted(until: Cutoffs) -> Any:
    """Return the condition that the outcome is a fix or a reopening of a finding that was reopened recently.

    Trends count each reopening and the fix before it: with only one of them, the finding would count twice or not at all.
    """
    outcomes = [RunOutcome.FIXED.value, RunOutcome.REOPENED.value]
    later = FindingSightingRow.alias()
    reopened = later.select(SQL("1")).where(
        later.finding == FindingSightingRow.finding,
        later.outcome == RunOutcome.REOPENED.value,
        later.scan_run.in_(ScanRunRow.select(ScanRunRow.id).where(ScanRunRow.updated_at >= until.over)),
    )
    return FindingSightingRow.outcome.in_(outcomes) & fn.EXISTS(reopened)


def _is_old_alert(until: Cutoffs) -> Any:
    a = AlertRow
    is_needed = (a.kind == AlertKind.WEEKLY.value) & (a.last_at >= until.now - _SUMMARIES_KEPT_FOR)
    return (a.state == AlertState.RECOVERED.value) & (a.last_at < until.over) & ~is_needed


def _rule(model: Any, condition: Any, order: Any) -> PurgeRule:
    return PurgeRule(model, condition, order, model.id, _name(model))


def _is_before(model: Any, kind: str, moment: datetime) -> Any:
    """Return the condition that a row was created before `moment`, by its id."""
    return model.id < identifiers.first_id(kind, moment)


def _name(model: Any) -> str:
    return str(model._meta.table_name)


def _is_over(until: Cutoffs) -> Any:
    """Return the condition that an export finished before the cutoff, and that no recovery, job or finding needs it.

    A prepared group that grew recently waits for a decision; findings that recently joined a frozen group would be lost with
    it. A ticket that somebody restored, snoozed or edited recently waits as if it were new; one that is snoozed until a time
    waits longer. An export stays until its events are delivered or have failed, because one of them may tell the receiver to
    erase the ticket. While scan runs report one of its findings, an export stays, because people still need it; this does
    not apply to a delivered export without events.
    """
    export = ExportRow
    item = BulkJobItemRow.select(BulkJobItemRow.export).where(BulkJobItemRow.export == export.id)
    recovery = RecoveryRow.select(RecoveryRow.id).where(
        RecoveryRow.target == export.target,
        RecoveryRow.status == RecoveryStatus.RUNNING,
        export.status.in_([ExportStatus.FAILED, ExportStatus.BLOCKED]),
        RecoveryRow.since <= export.finished_at,
    )
    decided = AuditEntryRow.select(SQL("1")).where(AuditEntryRow.subject_id == export.id, AuditEntryRow.at >= until.over)
    is_prepared = (export.status == ExportStatus.PREPARED) & (export.created_at < until.over)
    is_awake = export.snoozed_until.is_null() | (export.snoozed_until < until.over)
    is_old = is_prepared & is_awake & ~fn.EXISTS(decided)
    is_finished = export.status.in_(sorted(FINISHED)) & (export.finished_at < until.over)
    # Findings of a ticket for several targets name only its first export.
    first = fn.COALESCE(fn.SUBSTR(export.siblings, *_FIRST_SIBLING), export.id)
    finding = FindingRow.select(SQL("1")).where(FindingRow.export_id == first)
    joined = finding.where(FindingRow.first_seen_at >= until.over)
    # An export without events has NULL or an empty list of covered events.
    has_effect = (export.status != ExportStatus.EXPORTED) | fn.COALESCE(export.events != SQL("'[]'"), SQL("FALSE"))
    is_reported = has_effect & fn.EXISTS(finding.where(FindingRow.fixed_at.is_null(), FindingRow.last_seen_at >= until.over))
    event = TicketEventRow.select(SQL("1")).where(
        TicketEventRow.export == export.id, TicketEventRow.status == TicketEventStatus.PENDING.value
    )
    needed_by = [fn.EXISTS(each) for each in (recovery, item, joined, event)]
    return (is_old | is_finished) & ~reduce(or_, needed_by, is_reported)


def _expired_exports(until: Cutoffs) -> Iterator[list[_ExpiredExport]]:
    """Read the exports that are old enough; yields, slice by slice, those that may be removed."""
    export, after = ExportRow, ""
    # Without an alias, SQLite would name such a column by its last word, and Peewee would treat it as the id.
    counts = [
        model.select(fn.COUNT(SQL("*"))).where(model.export == export.id).alias(f"{_name(model)}_count")
        for model in _OF_EXPORT
    ]
    of_export = (export.id, export.version, export.source_type, export.source_id, *counts)
    query = (
        export.select(*of_export, export.siblings, _is_over(until).alias("is_over"))
        # Ids sort by creation, and an export cannot finish before its creation: an export with a later id is too new.
        .where(export.id < identifiers.first_id(identifiers.EXPORT, until.over))
        .order_by(export.id)
        .limit(EXPORTS_AT_ONCE)
    )
    while slice_ := tuples(query.where(export.id > after)):
        after = slice_[-1][0]
        over = {row[0]: row[-2] or [] for row in slice_ if row[-1]}
        needed = _still_needed({each for siblings in over.values() for each in siblings}, until)
        yield [_expired_export(*row[:-2]) for row in slice_ if row[0] in over and needed.isdisjoint(over[row[0]])]


def _still_needed(export_ids: Collection[str], until: Cutoffs) -> set[str]:
    """Return the exports that are not over.

    The copies of a ticket for several targets are removed together: findings name only the first copy, and an erasure finds
    the others by it.
    """
    if not export_ids:
        return set()
    export = ExportRow
    return {*scalars(export.select(export.id).where(export.id.in_(list(export_ids)), ~_is_over(until)))}


def _expired_export(export_id: str, version: int, source_type: str, source_id: str, *of_export: int) -> _ExpiredExport:
    counts = Counter({"exports": 1} | dict(zip(map(_name, _OF_EXPORT), of_export, strict=True)))
    if source_type in _SOURCES:
        # A source exists only as long as its handoff, because an erasure deletes both.
        counts[_name(_SOURCES[source_type])] = counts[_name(HandoffRow)]
    return _ExpiredExport(export_id, version, source_type, source_id, counts)


def _within(found: Sequence[_ExpiredExport], limit: int) -> list[_ExpiredExport]:
    """Return exports that have no more than `limit` rows together; skip an export that has too many."""
    chosen = []
    for each in found:
        if each.counts.total() <= limit:
            limit -= each.counts.total()
            chosen.append(each)
    return chosen


def _remove(found: Sequence[_ExpiredExport], until: Cutoffs, archive: Archive | None) -> Counter[str]:
    if not found:
        return Counter()
    if archive is not None:
        ids = [each.id for each in found]
        _write(archive, ExportRow, ExportRow.id, ids)
        for model in _OF_EXPORT:
            _write(archive, model, model.export, ids)
        for source_type, model in _SOURCES.items():
            _write(archive, model, model.id, _source_ids(found, source_type))
        archive.sync()
    return _unless_busy(partial(_delete_unchanged, found, until))


def _write(archive: Archive, model: Any, key: Any, values: Sequence[Any]) -> None:
    if values:
        archive.write(model, tuples(model.select(*archived_fields(model)).where(key.in_(values))))


def _delete_unchanged(found: Sequence[_ExpiredExport], until: Cutoffs) -> Counter[str]:
    """Remove the exports that have not changed since they were read, with their rows."""
    locked = _unchanged(found, until)
    ids = [each.id for each in locked]
    counts = Counter({_name(model): _delete(model, model.export, ids) for model in _OF_EXPORT})
    for source_type, model in _SOURCES.items():
        counts[_name(model)] = _delete(model, model.id, _source_ids(locked, source_type))
    _allow_new_tickets(ids, until)
    counts["exports"] = _delete(ExportRow, ExportRow.id, ids)
    return counts


def _allow_new_tickets(export_ids: Sequence[str], until: Cutoffs) -> None:
    """Allow a new ticket when findings are reported again, if their ticket was neither delivered nor dismissed.

    Otherwise, because these findings are not new, they would be open for good without a ticket. Tickets for several targets
    are left out, because one of the targets may have received the ticket. Raises _Reported if a postback has just reported
    one of them: its export stays.
    """
    is_undelivered = ExportRow.status.in_([ExportStatus.PREPARED, ExportStatus.FAILED, ExportStatus.BLOCKED])
    is_single = ExportRow.siblings.is_null()
    undelivered = ExportRow.select(ExportRow.id).where(ExportRow.id.in_(export_ids), is_undelivered, is_single)
    is_open = FindingRow.fixed_at.is_null()
    allowed = FindingRow.update(export_id=NO_EXPORT).where(FindingRow.export_id.in_(undelivered), is_open)
    # This waits for a postback that is reporting one of these findings.
    if any(seen_at >= until.over for seen_at in scalars(allowed.returning(FindingRow.last_seen_at))):
        raise _Reported


def _unchanged(found: Sequence[_ExpiredExport], until: Cutoffs) -> list[_ExpiredExport]:
    """Lock the exports that have not changed since they were read, and return them.

    A retry, an approval or a recovery may have won, or an erasure, after which the row has other contents. Copies of a
    ticket for several targets are removed together: if one of them must stay, so must the others.
    """
    export = ExportRow
    over = export.select(export.id, export.version, export.siblings).where(_is_over(until)).order_by(export.id)
    locked = tuples(for_update(over.where(export.id.in_([each.id for each in found])), _SKIP_LOCKED))
    versions = {export_id: version for export_id, version, _ in locked}
    unchanged = {each.id for each in found if versions.get(each.id) == each.version}
    copies = {export_id: {*(siblings or ())} for export_id, _, siblings in locked}
    others = sorted({each for siblings in copies.values() for each in siblings} - unchanged)
    if others:
        unlocked = for_update(over.where(export.id.in_(sorted({*others} - versions.keys()))), _SKIP_LOCKED)
        may_go = {*scalars(unlocked)}
        staying = {*scalars(export.select(export.id).where(export.id.in_(others)))} - may_go
        unchanged = {each for each in unchanged if staying.isdisjoint(copies[each])}
    return [each for each in found if each.id in unchanged]


def _source_ids(found: Sequence[_ExpiredExport], source_type: str) -> list[str]:
    return [each.source_id for each in found if each.source_type == source_type]


def _delete(model: Any, key: Any, values: Sequence[Any]) -> int:
    return int(model.delete().where(key.in_(values)).execute()) if values else 0


def _unless_busy(take: Callable[[], Counter[str]]) -> Counter[str]:
    """Remove rows in one transaction; none if another transaction has locked or changed rows that belong to them."""
    try:
        with transaction():
            if not is_sqlite():
                execute(_LOCK_WAIT)
            return take()
    except _Reported:
        return Counter()
    except OperationalError as failed:
        if sqlstate_of(failed) in _BUSY:
            return Counter()
        raise
