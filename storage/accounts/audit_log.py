"""The append-only audit log: who did what to which record, and the record's status before and after."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from peewee import Tuple

from schemas.base.timestamps import to_ms
from storage.accounts.audit_log_sql import AuditFilter, append_alike, kind_of
from storage.db.columns import record_of
from storage.db.models import AuditEntryRow, ExportRow, RecoveryRow, TargetRow
from storage.db.queries import newest_first, scalars, where_given


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the audit log; `at_ms` is milliseconds since 1970."""

    at_ms: int
    actor: str
    action: str
    subject_id: str
    status_before: str | None = None
    status_after: str | None = None
    reason: str | None = None
    #: `sha256:` and 64 hex digits: the digest of the approved ticket, of the record of an attempt, or of an event's body.
    digest: str | None = None
    #: Increases with every entry; 0 before it is stored.
    id: int = field(default=0, compare=False)


def append(now: datetime, actor: str, action: str, subject_id: str, reason: str | None = None) -> None:
    """Append one entry in the caller's transaction."""
    append_each(now, actor, action, [subject_id], reason)


def append_each(now: datetime, actor: str, action: str, subject_ids: Iterable[str], reason: str | None = None) -> None:
    """Append one entry for each of several records in the caller's transaction."""
    append_all([AuditEntry(to_ms(now), actor, action, each, reason=reason) for each in subject_ids])


def append_all(entries: Sequence[AuditEntry]) -> None:
    """Append entries in the caller's transaction; one statement for entries that differ only in subject and digest.

    All claims of a tick share one statement, and so do most deliveries. Otherwise each row would take eight values instead
    of two.
    """
    alike: dict[tuple[str, tuple[int | str | None, ...]], list[tuple[str, bytes | None]]] = {}
    for entry in entries:
        # Field by field: dataclasses.astuple makes deep copies, and was the slowest line when deliveries were recorded.
        shared = (entry.at_ms, entry.actor, entry.action, entry.status_before, entry.status_after, entry.reason)
        digest = None if entry.digest is None else bytes.fromhex(entry.digest.removeprefix("sha256:"))
        alike.setdefault((kind_of(entry.subject_id), shared), []).append((entry.subject_id, digest))
    for (_, columns), own in alike.items():
        append_alike(own, columns)


def list_for_subject(subject_id: str, limit: int) -> list[AuditEntry]:
    """Return up to `limit` entries about one record, the newest first; the caller has checked access to the record."""
    newest = newest_first(AuditEntryRow.select(), AuditEntryRow.id, limit)
    return [_entry(row) for row in newest.where(AuditEntryRow.subject_id == subject_id)]


def list_matching(filters: AuditFilter, limit: int, before: int | None) -> list[AuditEntry]:
    """Return up to `limit` entries that match, newest first, older than the entry `before`.

    Without an account, returns those of all accounts, in the order of their ids.
    """
    e = AuditEntryRow
    # A record has few entries, an account many. The sum keeps databases from using the index of accounts.
    account: Any = e.account_id if filters.subject_id is None else e.account_id + 0
    wanted = ((account, filters.account_id), (e.subject_id, filters.subject_id))
    query = where_given(e.select(), *wanted, (e.actor, filters.actor), (e.action, filters.action))
    if filters.after_ms is not None:
        query = query.where(e.at >= filters.after_ms)
    if filters.before_ms is not None:
        query = query.where(e.at < filters.before_ms)
    if filters.account_id is None and filters.subject_id is None:
        return [_entry(row) for row in newest_first(query, e.id, limit, before)]
    if before is not None:
        last = e.alias("last")
        query = query.where(Tuple(e.at, e.id) < Tuple(last.select(last.at).where(last.id == before), before))
    return [_entry(row) for row in query.order_by(e.at.desc(), e.id.desc()).limit(limit)]


def ids_of_account(account_id: int, subject_ids: Collection[str]) -> set[str]:
    """Return those of `subject_ids` that are exports, targets or recoveries of the account: they have a console page."""
    if not subject_ids:
        return set()
    exports = ExportRow.select(ExportRow.id).where(ExportRow.account == account_id, ExportRow.id.in_(subject_ids))
    is_listed = TargetRow.deleted_at.is_null() & TargetRow.id.in_(subject_ids)
    targets = TargetRow.select(TargetRow.id).where(TargetRow.account == account_id, is_listed)
    recoveries = (
        RecoveryRow.select(RecoveryRow.id)
        .join(TargetRow)
        .where(TargetRow.account == account_id, RecoveryRow.id.in_(subject_ids))
    )
    return {*scalars(exports + targets + recoveries)}


def _entry(row: AuditEntryRow) -> AuditEntry:
    digest = None if row.digest is None else f"sha256:{row.digest.hex()}"
    return record_of(AuditEntry, row, at_ms=to_ms(row.at), digest=digest)
