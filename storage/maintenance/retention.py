"""Retention: what has been over for long enough goes, a batch at a time, each batch one short transaction.

An export goes with its attempts, its handoff and the upload or email that it was prepared from, or all of it stays. Batches
are found without a lock, by the order of ids or by an index, and are removed as far as they still are what they were when
they were found: who retries, approves or recovers an export meanwhile keeps it, and what somebody else has locked stays for
the next time.

Never removed, however old: what waits, is being sent or is being recovered; findings, which are the memory that a problem
was told already, and scan runs, by which a late result finds its project; both ledgers and the journal of redactions.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from peewee import OperationalError

from schemas.base.timestamps import to_ms
from storage.db import identifiers
from storage.db.engine import execute, is_sqlite, rows, transaction, values_list
from storage.maintenance.archive import Archive, kept_columns

#: Exports of a batch, each with an attempt or two and perhaps what it came from: some 10 ms of SQLite's one writer.
EXPORTS_AT_ONCE: Final = 100
#: Rows of a batch of another table.
ROWS_AT_ONCE: Final = 250
#: After the last look of somebody: long enough to ask who was signed in when something was done.
SESSIONS_KEPT_FOR: Final = timedelta(days=30)
#: No limit.
ALL: Final = 2**63 - 1

#: A redaction locks the same rows in another order. Waiting for it so much shorter than PostgreSQL waits before it ends one
#: of two that wait for each other (a second), it is always the batch that gives way.
_LOCK_WAIT: Final = "SET LOCAL lock_timeout = '100ms'"
#: PostgreSQL's SQLSTATEs for a lock that did not come in time, and for two that waited for each other.
_BUSY: Final = frozenset({"55P03", "40P01"})

#: The sealed contents of the ledger's lines, which themselves stay.
REPORTS: Final = "compliance_reports"
#: What is counted, in the order in which it goes.
COUNTED: Final = (
    "exports",
    "attempts",
    "handoffs",
    "evidence_captures",
    "diagnostics",
    "inbound_emails",
    "page_results",
    "pings",
    "recoveries",
    "idempotency_keys",
    "delivery_hours",
    "console_sessions",
    "tokens",
    REPORTS,
)

#: Where an export's source is kept, by its type; a finding stays, and what is made by hand has no other row.
_SOURCES: Final = {"evidence_capture": "evidence_captures", "diagnostics": "diagnostics"}

# Whether an export `e` is over since before two cutoffs that are the same, and no recovery is to come to it.
_IS_OVER: Final = """(
    e.status = 'prepared' AND e.created_at < ?
    OR e.status IN ('exported', 'failed', 'blocked', 'dismissed') AND e.finished_at < ?
) AND NOT EXISTS (
    SELECT 1 FROM recoveries r WHERE r.target_id = e.target_id AND r.status = 'running'
    AND e.status IN ('failed', 'blocked') AND r.since <= e.finished_at
)"""
# Nothing ends before it begins, and ids sort by that: an export of a later id is not over yet.
_SLICE: Final = f"""
SELECT e.id, e.version, e.source_type, e.source_id, {_IS_OVER},
    (SELECT COUNT(*) FROM attempts a WHERE a.export_id = e.id),
    (SELECT COUNT(*) FROM handoffs h WHERE h.export_id = e.id),
    (SELECT COUNT(*) FROM inbound_emails m WHERE m.export_id = e.id)
FROM exports e WHERE e.id > ? AND e.id < ? ORDER BY e.id LIMIT ?"""  # noqa: S608 - our own names
_STILL_OVER: Final = f"SELECT e.id, e.version FROM exports e WHERE {_IS_OVER} AND e.id IN "  # noqa: S608 - our own names


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """Before when what was over goes; requests' answers, with what is of no use after them; and sessions, once seen last."""

    over: datetime
    answered: datetime
    sessions: datetime


def cutoffs(now: datetime, retention: timedelta, idempotency_ttl: timedelta) -> Cutoffs:
    """Return what goes at `now`.

    An export is kept as long as the stored answers that repeat its ticket, whatever `retention` says: a redaction finds them
    by their export.
    """
    over = now - max(retention, idempotency_ttl)
    # No later than its token, which nobody is seen with once it is over.
    return Cutoffs(over=over, answered=now - idempotency_ttl, sessions=max(over, now - SESSIONS_KEPT_FOR))


def planned(until: Cutoffs, limit: int = ALL) -> Counter[str]:
    """Count what `removed` would remove now, by table."""
    counts = Counter[str]()
    for part in _over(until):
        counts += _total(_within(part, limit - counts.total()))
    for shelf in _shelves(until):
        counts[shelf.told_as] += shelf.count(limit - counts.total())
    return counts


def removed(until: Cutoffs, limit: int = ALL, archive: Archive | None = None) -> Iterator[Counter[str]]:
    """Remove up to `limit` rows, batch by batch; yields after each what went with it, by table, which may be nothing.

    The caller holds a connection and no transaction while the next batch is asked for, and lets others have their turn
    between two. With an archive a batch is on the disk before it goes. Raises OSError where that cannot be written; then
    the batch stays.
    """
    left = limit
    for part in _over(until):
        counts = _remove(_within(part, left), until, archive)
        left -= counts.total()
        yield counts
        if not left:
            return
    for shelf in _shelves(until):
        for counts in shelf.emptied(left, archive):
            left -= counts.total()
            yield counts


@dataclass(frozen=True, slots=True)
class _Found:
    """An export that is over, as it was when it was found, and what goes with it."""

    id: str
    version: int
    source_type: str
    source_id: str
    #: Rows by table.
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class _Shelf:
    """A table of which single rows go."""

    table: str
    told_as: str
    #: Which rows go, and what stands in its places.
    condition: str
    parameters: tuple[Any, ...]
    #: A column that the condition's index is sorted by.
    order: str
    #: What is done to those that go, up to their ids.
    remove: str
    is_archived: bool = True
    #: What one row is known by.
    key: str = "id"

    def count(self, limit: int) -> int:
        """Count the rows that go, no further than `limit`."""
        counted = f"SELECT COUNT(*) FROM (SELECT 1 FROM {self.table} WHERE {self.condition} LIMIT ?) AS found"  # noqa: S608 - our own names
        return int(rows(counted, (*self.parameters, limit))[0][0])

    def emptied(self, limit: int, archive: Archive | None) -> Iterator[Counter[str]]:
        """Remove up to `limit` of its rows, as `removed` does."""
        asked = f"SELECT {self.key} FROM {self.table} WHERE {self.condition} ORDER BY {self.order} LIMIT ?"  # noqa: S608 - our own names
        while found := [row[0] for row in rows(asked, (*self.parameters, min(limit, ROWS_AT_ONCE)))]:
            if archive is not None and self.is_archived:
                _write(archive, self.table, self.key, found)
                archive.settle()
            counts = _unless_busy(partial(self._take, found))
            limit -= counts.total()
            yield counts
            if not counts:
                # All of them are in somebody's hands, and would be found again and again.
                return

    def _take(self, ids: Sequence[Any]) -> Counter[str]:
        within = values_list(len(ids), 1)
        still = f"SELECT {self.key} FROM {self.table} WHERE {self.condition} AND {self.key} IN {within}{_lock()}"  # noqa: S608 - our own names
        held = [row[0] for row in rows(still, (*self.parameters, *ids))]
        return Counter({self.told_as: execute(self.remove + values_list(len(held), 1), held)} if held else {})


def _shelves(until: Cutoffs) -> list[_Shelf]:
    """Return the tables but exports and what goes with them, in the order in which they are emptied."""
    over, answered = to_ms(until.over), to_ms(until.answered)
    recovery_id = identifiers.first_id(identifiers.RECOVERY, until.over)
    ping_id = identifiers.first_id(identifiers.PING, until.answered)
    # Sessions go before their tokens; a token waits for one that somebody holds. For NOT EXISTS PostgreSQL reads them all.
    unused = "(SELECT s.id FROM console_sessions s WHERE s.token_id = tokens.id ORDER BY s.id LIMIT 1) IS NULL"
    revoked = "revoked_at < ? AND (expires_at IS NULL OR expires_at >= ?)"
    return [
        _shelf("page_results", "received_at < ?", (over,), "received_at"),
        # Also one that never ended: nobody waits for it any more, and no worker sends one so old.
        _shelf("pings", "id < ?", (ping_id,), "id"),
        _shelf("recoveries", "id < ? AND finished_at < ?", (recovery_id, over), "id"),
        _shelf("idempotency_keys", "created_at < ?", (answered,), "created_at"),
        # Of several columns that name a row together none is its id; where the database has put it is.
        _shelf("delivery_hours", "hour_at < ?", (over,), "hour_at", "rowid" if is_sqlite() else "ctid"),
        _shelf("console_sessions", "seen_at < ?", (to_ms(until.sessions),), "seen_at"),
        _shelf("tokens", f"expires_at < ? AND {unused}", (over,), "expires_at"),
        _shelf("tokens", f"{revoked} AND {unused}", (over, over), "revoked_at"),
        _Shelf(
            table="compliance_requests",
            told_as=REPORTS,
            condition="finished_at < ? AND report_sealed IS NOT NULL",
            parameters=(over,),
            order="finished_at",
            remove="UPDATE compliance_requests SET report_sealed = NULL WHERE id IN ",
            is_archived=False,
        ),
    ]


def _shelf(table: str, condition: str, parameters: tuple[Any, ...], order: str, key: str = "id") -> _Shelf:
    remove = f"DELETE FROM {table} WHERE {key} IN "  # noqa: S608 - our own names
    return _Shelf(table, table, condition, parameters, order, remove, key=key)


def _over(until: Cutoffs) -> Iterator[list[_Found]]:
    """Look through the exports that are old enough; yields, slice by slice, those that are over."""
    over, after = to_ms(until.over), ""
    before = identifiers.first_id(identifiers.EXPORT, until.over)
    while slice_ := rows(_SLICE, (over, over, after, before, EXPORTS_AT_ONCE)):
        after = slice_[-1][0]
        yield [_found(row) for row in slice_ if row[4]]


def _found(row: tuple[Any, ...]) -> _Found:
    export_id, version, source_type, source_id, _, attempts, handoffs, emails = row
    counts = Counter(exports=1, attempts=attempts, handoffs=handoffs, inbound_emails=emails)
    if source_type in _SOURCES:
        # A redaction deletes both.
        counts[_SOURCES[source_type]] = handoffs
    return _Found(export_id, version, source_type, source_id, counts)


def _within(found: Sequence[_Found], limit: int) -> list[_Found]:
    """Return those that come to no more than `limit` rows together; one that is too large is passed over."""
    chosen = []
    for each in found:
        if each.counts.total() <= limit:
            limit -= each.counts.total()
            chosen.append(each)
    return chosen


def _total(found: Sequence[_Found]) -> Counter[str]:
    return sum((each.counts for each in found), Counter())


def _remove(found: Sequence[_Found], until: Cutoffs, archive: Archive | None) -> Counter[str]:
    if not found:
        return Counter()
    if archive is not None:
        _keep(found, archive)
    return _unless_busy(partial(_take, found, until))


def _keep(found: Sequence[_Found], archive: Archive) -> None:
    ids = [each.id for each in found]
    _write(archive, "exports", "id", ids)
    for table in ("attempts", "handoffs", "inbound_emails"):
        _write(archive, table, "export_id", ids)
    for source_type, table in _SOURCES.items():
        _write(archive, table, "id", [each.source_id for each in found if each.source_type == source_type])
    archive.settle()


def _write(archive: Archive, table: str, column: str, values: Sequence[Any]) -> None:
    if values:
        columns = kept_columns(table)
        asked = f"SELECT {', '.join(columns)} FROM {table} WHERE {column} IN {values_list(len(values), 1)}"  # noqa: S608 - our own names
        archive.write(table, columns, rows(asked, values))


def _take(found: Sequence[_Found], until: Cutoffs) -> Counter[str]:
    """Remove exports, as far as they are as they were found, with what goes with them; the caller holds the transaction."""
    held = _unchanged(found, until)
    ids = [each.id for each in held]
    counts = Counter({table: _delete(table, "export_id", ids) for table in ("attempts", "handoffs", "inbound_emails")})
    for source_type, table in _SOURCES.items():
        counts[table] = _delete(table, "id", [each.source_id for each in held if each.source_type == source_type])
    counts["exports"] = _delete("exports", "id", ids)
    return counts


def _unchanged(found: Sequence[_Found], until: Cutoffs) -> list[_Found]:
    """Return which are as they were found, and keep others from moving them.

    Who else might have won: a retry, an approval, a recovery; or a redaction, after which the row says something else.
    """
    ids, over = [each.id for each in found], to_ms(until.over)
    still = _STILL_OVER + values_list(len(ids), 1) + " ORDER BY e.id" + _lock(" OF e")
    held = dict(rows(still, (over, over, *ids)))
    return [each for each in found if held.get(each.id) == each.version]


def _delete(table: str, column: str, values: Sequence[Any]) -> int:
    return execute(f"DELETE FROM {table} WHERE {column} IN {values_list(len(values), 1)}", values) if values else 0  # noqa: S608 - our own names


def _lock(of: str = "") -> str:
    return "" if is_sqlite() else f" FOR UPDATE{of} SKIP LOCKED"


def _unless_busy(take: Callable[[], Counter[str]]) -> Counter[str]:
    """Take rows as one transaction; nothing where somebody else is at them and at what belongs to them."""
    try:
        with transaction():
            if not is_sqlite():
                execute(_LOCK_WAIT)
            return take()
    except OperationalError as failed:
        if getattr(failed.__cause__ or failed.__context__, "sqlstate", None) in _BUSY:
            return Counter()
        raise
