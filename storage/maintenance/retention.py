"""Retention: removes records that have been finished for long enough, in batches of one short transaction each.

An export goes with its attempts, its events, its handoff and the upload or email that it was prepared from, or all of it
stays; the copies of a ticket for several targets go together. Batches are found without a lock, by the order of ids or by an
index, and a row is removed only if it has not changed since: an export that is retried, approved or recovered meanwhile
stays, and a locked row stays until the next run.

Never removed, at any age: what waits, is being sent or is being recovered; findings, which keep a known problem from being
reported again, and scan runs, by which a late result finds its project; the audit log, compliance requests and the erasure
log.
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

#: Exports of a batch, each with an attempt or two and perhaps its source: some 10 ms of SQLite's one writer.
EXPORTS_AT_ONCE: Final = 100
#: Rows of a batch of another table.
ROWS_AT_ONCE: Final = 250
#: After a session was last used: long enough to find out who was signed in when something was done.
SESSIONS_KEPT_FOR: Final = timedelta(days=30)
#: The summary of this week must be found, or it would be sent again: a week, and a day for clocks that differ.
_SUMMARIES_KEPT_FOR: Final = timedelta(days=8)
#: No limit.
ALL: Final = 2**63 - 1

#: An erasure locks the same rows in another order. PostgreSQL ends one of two transactions that wait for each other after a
#: second; this shorter timeout makes the batch fail first.
_LOCK_WAIT: Final = "SET LOCAL lock_timeout = '100ms'"
#: PostgreSQL's SQLSTATEs for a lock that did not come in time, and for two that waited for each other.
_BUSY: Final = frozenset({"55P03", "40P01"})
_SKIP_LOCKED: Final = "FOR UPDATE SKIP LOCKED"
#: Where the first id of the JSON array of siblings begins, and how long it is.
_FIRST_SIBLING: Final = (len('["') + 1, len(f"{identifiers.EXPORT}_{LAST_ULID}"))

#: The encrypted reports of compliance requests; the requests themselves stay.
REPORTS: Final = "compliance_reports"
#: The encrypted ID tokens of console sessions; the sessions themselves stay longer.
ID_TOKENS: Final = "id_tokens"

#: The table of an export's source by its type; a finding stays, and a ticket written by hand has no other row.
_SOURCES: Final[Mapping[str, Any]] = {"evidence_capture": EvidenceCaptureRow, "diagnostics": DiagnosticRow}
#: The tables whose rows go with their export. Their foreign keys would delete events and changes too, but archive and count
#: neither. The terms of the search need neither; items of bulk jobs keep their exports.
_OF_EXPORT: Final[Sequence[Any]] = (AttemptRow, TicketEventRow, TicketChangeRow, HandoffRow, InboundEmailRow)


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """Times before which records are removed: `over`: finished, `responses`: stored responses, `sessions`: last use."""

    over: datetime
    responses: datetime
    sessions: datetime
    #: The time from which the cutoffs were computed.
    now: datetime


def cutoffs(now: datetime, retention: timedelta, idempotency_ttl: timedelta) -> Cutoffs:
    """Return the cutoffs at `now`.

    An export is kept as long as the stored responses that repeat its ticket, whatever `retention` is: an erasure finds them
    by their export. Those under a natural key are kept for a day, whatever `idempotency_ttl` is.
    """
    stored_for = max(idempotency_ttl, NATURAL_KEY_TTL)
    over = now - max(retention, stored_for)
    # Sessions go no later than their token, which is removed by `over`.
    return Cutoffs(over=over, responses=now - stored_for, sessions=max(over, now - SESSIONS_KEPT_FOR), now=now)


def counted(until: Cutoffs) -> list[str]:
    """Return the names of what is counted, in the order in which it is removed."""
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
    """Remove up to `limit` rows in batches; yields after each batch the rows removed by table, which may be none.

    While the next batch is asked for, the caller holds a connection and no transaction; between two batches it lets others
    write. With an archive a batch is on the disk before it is removed. Raises OSError if that cannot be written; then the
    batch stays. On PostgreSQL it begins with the partitions: those that the last run emptied are dropped.
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
    """An export that may be removed, as it was when it was found."""

    id: str
    version: int
    source_type: str
    source_id: str
    #: Rows that are removed with it, by table.
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class PurgeRule:
    """Which rows of a table are removed one by one, without others."""

    model: Any
    condition: Any
    #: A column that the condition's index is sorted by.
    order: Any
    #: What identifies one row.
    key: Any
    counted_as: str
    #: The column to empty; without one the rows are deleted.
    empties: Any = None

    def count(self, limit: int) -> int:
        """Count the rows that match, `limit` at most."""
        return int(self.model.select(SQL("1")).where(self.condition).limit(limit).count())

    def purge(self, limit: int, archive: Archive | None) -> Iterator[Counter[str]]:
        """Remove up to `limit` of the rows that match, as the function `purge` does."""
        query = self.model.select(self.key).where(self.condition).order_by(self.order)
        while found := scalars(query.limit(min(limit, ROWS_AT_ONCE))):
            if archive is not None and self.empties is None:
                _write(archive, self.model, self.key, found)
                archive.settle()
            counts = _unless_busy(partial(self._take, found))
            limit -= counts.total()
            yield counts
            if not counts:
                # Other transactions have locked all of them; they would be found again and again.
                return

    def _take(self, ids: Sequence[Any]) -> Counter[str]:
        still = self.model.select(self.key).where(self.condition, self.key.in_(ids))
        locked = scalars(for_update(still, _SKIP_LOCKED))
        if not locked:
            return Counter()
        removal = self.model.delete() if self.empties is None else self.model.update({self.empties: None})
        return Counter({self.counted_as: removal.where(self.key.in_(locked)).execute()})


def _rules(until: Cutoffs) -> list[PurgeRule]:
    """Return the rules for all tables but exports and what goes with them, in the order in which they are applied."""
    # Sessions go before their tokens; a token stays while it has a session. For NOT EXISTS PostgreSQL reads all sessions.
    session = ConsoleSessionRow.select(ConsoleSessionRow.id).where(ConsoleSessionRow.token == TokenRow.id)
    is_unused = Expression(session.order_by(ConsoleSessionRow.id).limit(1), OP.IS, None)
    expires_later = TokenRow.expires_at.is_null() | (TokenRow.expires_at >= until.over)
    reports = ComplianceRequestRow
    # No column of several that make up a key is an id; the database's own row address is.
    address = SQL("rowid" if is_sqlite() else "ctid")
    # By their runs, which are few: an index by time would be written for every finding of every run.
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
        # Unfinished ones as well: no request waits for them any more, and no worker sends a ping that old.
        _rule(PingRow, _is_before(PingRow, identifiers.PING, until.responses), PingRow.id),
        *(_rule(job, _is_before(job, kind, until.over) & (job.finished_at < until.over), job.id) for job, kind in jobs),
        _rule(IdempotencyKeyRow, IdempotencyKeyRow.created_at < until.responses, IdempotencyKeyRow.created_at),
        PurgeRule(DeliveryHourRow, DeliveryHourRow.hour_at < until.over, DeliveryHourRow.hour_at, address, "delivery_hours"),
        _id_token_rule(until.now),
        _rule(ConsoleSessionRow, ConsoleSessionRow.seen_at < until.sessions, ConsoleSessionRow.seen_at),
        _rule(TokenRow, (TokenRow.expires_at < until.over) & is_unused, TokenRow.expires_at),
        _rule(TokenRow, (TokenRow.revoked_at < until.over) & expires_later & is_unused, TokenRow.revoked_at),
        _rule(AlertRow, _is_old_alert(until), AlertRow.last_at),
        # Those of channels that are no longer configured; others are dropped after a day.
        _rule(AlertMessageRow, _is_before(AlertMessageRow, identifiers.ALERT_MESSAGE, until.responses), AlertMessageRow.id),
        # Requests that no worker claimed; others are deleted when they are used or too old.
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
    """Return the rule that empties the ID tokens of sessions that nobody ended, and that are idle or too old.

    The end of a session empties its own. Open sessions have an index, and a user has a few of them at most.
    """
    s = ConsoleSessionRow
    condition = s.ended_at.is_null() & s.id_token_sealed.is_null(False) & ~is_fresh(now)
    return PurgeRule(s, condition, s.id, s.id, ID_TOKENS, empties=s.id_token_sealed)


def _is_counted(until: Cutoffs) -> Any:
    """Return the condition that a fix or a reopening is one of a finding that was reopened lately.

    Trends count each reopening and each fix before it: one without the other would count the finding twice, or not at all.
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
    """Return the condition that a row was created before a moment, by its id."""
    return model.id < identifiers.first_id(kind, moment)


def _name(model: Any) -> str:
    return str(model._meta.table_name)


def _is_over(until: Cutoffs) -> Any:
    """Return the condition that an export finished before the cutoff, and that no recovery, job or finding will reach it.

    A prepared group that grew lately waits for a decision, and findings that joined a frozen one would be lost with it. What
    somebody restored, snoozed or edited lately waits as if it were new, and what is snoozed until a time waits longer. An
    export stays until its events are delivered or given up: one may ask the receiver to erase the ticket. While scan runs
    report one of its findings, an export stays: it is not over for people, except a delivered one without events.
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
    # The findings of a ticket for several targets name only the first of its exports.
    first = fn.COALESCE(fn.SUBSTR(export.siblings, *_FIRST_SIBLING), export.id)
    finding = FindingRow.select(SQL("1")).where(FindingRow.export_id == first)
    joined = finding.where(FindingRow.first_seen_at >= until.over)
    # Without an event an export has null, or an empty list of those that its approval covers.
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
    # Without an alias SQLite would name such a column after its last word, and Peewee would read it as the id.
    counts = [
        model.select(fn.COUNT(SQL("*"))).where(model.export == export.id).alias(f"{_name(model)}_count")
        for model in _OF_EXPORT
    ]
    of_export = (export.id, export.version, export.source_type, export.source_id, *counts)
    query = (
        export.select(*of_export, export.siblings, _is_over(until).alias("is_over"))
        # Nothing ends before it begins, and ids sort by that: an export of a later id is not over yet.
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
    """Return those of the exports that are not over.

    The copies of a ticket for several targets go together: findings name the first of them alone, and by it an erasure finds
    the others.
    """
    if not export_ids:
        return set()
    export = ExportRow
    return {*scalars(export.select(export.id).where(export.id.in_(list(export_ids)), ~_is_over(until)))}


def _expired_export(export_id: str, version: int, source_type: str, source_id: str, *of_export: int) -> _ExpiredExport:
    counts = Counter({"exports": 1} | dict(zip(map(_name, _OF_EXPORT), of_export, strict=True)))
    if source_type in _SOURCES:
        # An erasure deletes both.
        counts[_name(_SOURCES[source_type])] = counts[_name(HandoffRow)]
    return _ExpiredExport(export_id, version, source_type, source_id, counts)


def _within(found: Sequence[_ExpiredExport], limit: int) -> list[_ExpiredExport]:
    """Return those that have no more than `limit` rows together; one that is too large is passed over."""
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
        archive.settle()
    return _unless_busy(partial(_take, found, until))


def _write(archive: Archive, model: Any, key: Any, values: Sequence[Any]) -> None:
    if values:
        archive.write(model, tuples(model.select(*archived_fields(model)).where(key.in_(values))))


def _take(found: Sequence[_ExpiredExport], until: Cutoffs) -> Counter[str]:
    """Remove the exports that have not changed since they were found, with what belongs to them."""
    locked = _unchanged(found, until)
    ids = [each.id for each in locked]
    counts = Counter({_name(model): _delete(model, model.export, ids) for model in _OF_EXPORT})
    for source_type, model in _SOURCES.items():
        counts[_name(model)] = _delete(model, model.id, _source_ids(locked, source_type))
    _forget_undelivered(ids)
    counts["exports"] = _delete(ExportRow, ExportRow.id, ids)
    return counts


def _forget_undelivered(export_ids: Sequence[str]) -> None:
    """Let findings get another ticket once they are reported again, if theirs was neither delivered nor dismissed.

    Otherwise they would be open for good without a ticket: they are not new. Of a ticket for several targets, one may have
    delivered it.
    """
    is_undelivered = ExportRow.status.in_([ExportStatus.PREPARED, ExportStatus.FAILED, ExportStatus.BLOCKED])
    is_single = ExportRow.siblings.is_null()
    undelivered = ExportRow.select(ExportRow.id).where(ExportRow.id.in_(export_ids), is_undelivered, is_single)
    is_open = FindingRow.fixed_at.is_null()
    FindingRow.update(export_id=NO_EXPORT).where(FindingRow.export_id.in_(undelivered), is_open).execute()


def _unchanged(found: Sequence[_ExpiredExport], until: Cutoffs) -> list[_ExpiredExport]:
    """Lock the exports that have not changed since they were found, and return them.

    A retry, an approval or a recovery may have won; or an erasure, after which the row holds something else. Copies of a
    ticket for several targets go together: one that must stay keeps the others.
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
    """Remove rows in one transaction; none if another transaction has locked rows that belong to them."""
    try:
        with transaction():
            if not is_sqlite():
                execute(_LOCK_WAIT)
            return take()
    except OperationalError as failed:
        if sqlstate_of(failed) in _BUSY:
            return Counter()
        raise
