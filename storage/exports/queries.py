"""Reads exports: one, pages of many, and bounded counts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final

from peewee import JOIN, SQL, Case, Select, Tuple, fn

from schemas.base.errors import ExportNotFound
from schemas.base.timestamps import to_ms
from schemas.exports.polled_record import PolledExport
from schemas.exports.record import Export
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import TargetStatus
from storage.db import identifiers
from storage.db.columns import LAST_ULID
from storage.db.engine import database, is_sqlite
from storage.db.models import ExportRow, TargetRow
from storage.db.queries import tuples
from storage.exports.poll_sql import read_export
from storage.exports.rows import EXPORT_COLUMNS, EXPORT_JOINS, export_from

_AFTER_ALL: Final = f"{identifiers.EXPORT}_{LAST_ULID}"
# Word by word the condition of the index exports_recoverable: as parameters, both databases would not read that index.
_IS_RECOVERABLE: Final = SQL("status IN ('failed', 'blocked') AND redacted_at IS NULL")


@dataclass(frozen=True, slots=True)
class FrozenBody:
    """The bytes that every attempt sends, None before approval, and when they were redacted."""

    body: bytes | None
    redacted_at: datetime | None


def get(export_id: str, account_id: int | None = None) -> Export:
    """Return an export, of one account where `account_id` is given. Raises ExportNotFound."""
    found = read_export(export_id)
    if found is None or account_id not in {None, found.account_id}:
        raise ExportNotFound
    return export_from(found)


@dataclass(frozen=True, slots=True)
class ExportFilter:
    """Which exports a list has: those with any of the values of each member; an empty member has no effect."""

    account_id: int | None = None
    statuses: Collection[str] = ()
    source_type: str | None = None
    severities: Collection[str] = ()
    project_ids: Collection[int] = ()
    target_ids: Collection[str] = ()


def list_page(
    account_id: int | None = None,
    limit: int | None = None,
    before: str | None = None,
    statuses: Collection[str] = (),
    source_type: str | None = None,
) -> list[Export]:
    """Return up to `limit` exports, the newest first, or those that follow the one with the id `before`.

    Of one account or of all, in any of `statuses` or in every one, from one type of source or from all.
    """
    return list_matching(ExportFilter(account_id, statuses, source_type), limit, before)


def list_matching(wanted: ExportFilter, limit: int | None = None, before: str | None = None) -> list[Export]:
    """Return up to `limit` of the exports that a filter has, the newest first, or those that follow the id `before`."""
    parts = _parts(wanted, ExportRow.id < (before or _AFTER_ALL))
    return _page([_ids(part).order_by(ExportRow.id.desc()) for part in parts], limit)


def count_matching(wanted: ExportFilter, limit: int) -> int:
    """Return how many exports a filter has, counting no further than `limit`."""
    parts = [_ids(part) for part in _parts(wanted, ExportRow.id < _AFTER_ALL)]
    return int(_union(parts, limit).limit(limit).count(database))


def list_undelivered(
    target_id: str,
    account_id: int,
    limit: int,
    before: str | None = None,
    status: str | None = None,
    source_type: str | None = None,
) -> list[Export]:
    """Return up to `limit` exports that failed or were blocked at an account's target, the newest first.

    Those that follow the one with the id `before`, in one `status` of both, from one type of source or from all. Redacted
    ones are left out.
    """
    # The target is bounded, not equalled: only this index has that order, and PostgreSQL does not go through the newest
    # exports of all targets, where it may find none.
    wanted = [
        ExportRow.target >= target_id,
        Tuple(ExportRow.target, ExportRow.id) < Tuple(target_id, before or _AFTER_ALL),
        _IS_RECOVERABLE,
        fn.EXISTS(TargetRow.select(SQL("1")).where(TargetRow.id == target_id, TargetRow.account == account_id)),
        *_equal((ExportRow.status, status), (ExportRow.source_type, source_type)),
    ]
    return _page([_ids(wanted).order_by(ExportRow.target.desc(), ExportRow.id.desc())], limit)


def get_frozen_body(export_id: str, account_id: int) -> FrozenBody:
    """Return what was frozen of an account's export. Raises ExportNotFound."""
    found = _find(ExportRow.select(ExportRow.body, ExportRow.redacted_at).where(ExportRow.account == account_id), export_id)
    if found is None:
        raise ExportNotFound
    body, redacted_at = found
    return FrozenBody(None if body is None else bytes(body), redacted_at)


def blocked_url(export_id: str, account_id: int | None = None) -> str | None:
    """Return the URL to validate before an export is retried: that of its target, where the target is blocked.

    None where nothing can be retried, or nothing is blocked; `retry` reports which.
    """
    undelivered = ExportRow.status.in_((ExportStatus.FAILED.value, ExportStatus.BLOCKED.value))
    asked = ExportRow.select(TargetRow.base_url, ExportRow.account).join(TargetRow)
    found = _find(asked.where(undelivered, TargetRow.status == TargetStatus.BLOCKED.value), export_id)
    return str(found[0]) if found is not None and account_id in {None, found[1]} else None


def recoverable(target_id: str, since: datetime | int, after_id: str = "") -> Any:
    """Return the query of the ids of a target's exports that failed or were blocked at `since` or later, from an id on."""
    wanted = (ExportRow.target == target_id, ExportRow.id > after_id, ExportRow.finished_at >= since, _IS_RECOVERABLE)
    return ExportRow.select(ExportRow.id).where(*wanted)


def count_recoverable_since(target_id: str, moments: Sequence[datetime], limit: int) -> list[int]:
    """Return how many exports a recovery since each moment would make due again, among the newest `limit` that failed.

    One query, bounded by `limit`: it runs each time a target is shown, and before a recovery.
    """
    if not moments:
        return []
    newest = (
        recoverable(target_id, 0).select(ExportRow.finished_at).order_by(ExportRow.id.desc()).limit(limit).alias("newest")
    )
    counts = [fn.COUNT(Case(None, [(newest.c.finished_at >= to_ms(moment), 1)])) for moment in moments]
    [found] = Select([newest], counts).bind(ExportRow._meta.database).tuples()
    return [int(count) for count in found]


def count_waiting(target_id: str, limit: int) -> int:
    """Return how many exports wait for a target or are being sent to it, counting no further than `limit`."""
    return count_up_to(
        ExportRow.select(SQL("1")).where(ExportRow.target == target_id, ExportRow.due_at.is_null(False)), limit
    )


def count_due(now: datetime, limit: int) -> int:
    """Return how many exports may be claimed at `now`, counting no further than `limit`."""
    # From target to target: only CROSS JOIN keeps SQLite to this order.
    due = TargetRow.select(SQL("1")).join(ExportRow, JOIN.CROSS).where(ExportRow.target == TargetRow.id)
    return count_up_to(due.where(is_open(now), ExportRow.due_at <= now), limit)


def is_open(now: datetime) -> Any:
    """Return the condition that an attempt may start for a target at `now`."""
    is_free = TargetRow.held_until.is_null() | (TargetRow.held_until <= now)
    return (TargetRow.status == TargetStatus.ACTIVE.value) & is_free


def count_up_to(query: Any, limit: int) -> int:
    """Return how many rows a query finds, counting no further than `limit`."""
    return int(query.limit(limit).count())


def _find(query: Any, export_id: str) -> tuple[Any, ...] | None:
    if not identifiers.is_id(identifiers.EXPORT, export_id):
        return None
    return next(iter(tuples(query.where(ExportRow.id == export_id))), None)


def _equal(*given: tuple[Any, Any]) -> list[Any]:
    return [column == value for column, value in given if value is not None]


def _parts(wanted: ExportFilter, bound: Any) -> list[list[Any]]:
    """Return the conditions of each part of a list: an index has the newest of one value in order, not of several."""
    shared = [*_equal((ExportRow.account, wanted.account_id), (ExportRow.source_type, wanted.source_type)), bound]
    if wanted.severities:
        shared.append(_severity().in_(tuple(wanted.severities)))
    given: list[tuple[Any, Collection[Any]]] = [
        (each, values)
        for each, values in (
            (ExportRow.target, wanted.target_ids),
            (ExportRow.project, wanted.project_ids),
            (ExportRow.status, wanted.statuses),
        )
        if values
    ]
    if not given:
        return [shared]
    (first, values), *others = given
    shared += [column.in_(tuple(allowed)) for column, allowed in others]
    if first is ExportRow.target:
        # The index of an account's targets; a target belongs to one account.
        return [[*shared, first == value, ExportRow.account == _account_of(value)] for value in values]
    return [[*shared, first == value] for value in values]


def _account_of(target_id: str) -> Any:
    return TargetRow.select(TargetRow.account).where(TargetRow.id == target_id)


def _severity() -> Any:
    """Return the severity in the ticket; the parts narrow the list by indexes, and this is read of what is left."""
    if is_sqlite():
        return fn.json_extract(ExportRow.ticket, "$.severity")
    return fn.json_extract_path_text(ExportRow.ticket.cast("json"), "severity")


def _ids(wanted: Sequence[Any]) -> Any:
    return ExportRow.select(ExportRow.id).where(*wanted)


def _page(parts: Sequence[Any], limit: int | None) -> list[Export]:
    """Return the newest of the exports whose ids the parts find."""
    ids = SQL("e.id").in_(_union(parts, limit))
    page = ExportRow.select(SQL(EXPORT_COLUMNS)).from_(SQL(f"exports e {EXPORT_JOINS}")).where(ids)
    found = database.execute(page.order_by(SQL("e.id DESC")).limit(limit))
    return [export_from(PolledExport._make(row)) for row in found.fetchall()]


def _union(parts: Sequence[Any], limit: int | None) -> Any:
    """Return one query for the ids that the parts find, up to `limit` of each."""
    selects: list[Any] = [Select([part.limit(limit).alias("part")], [SQL("id")]) for part in parts]
    return reduce(lambda one, other: one.union_all(other), selects)
