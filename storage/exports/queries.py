"""Reads exports: one, those of a target, and bounded counts. `storage.exports.search.export_list` reads lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from peewee import JOIN, SQL, Case, Join, Query, Select, chunked, fn

from schemas.base.errors import ExportNotFound
from schemas.base.timestamps import to_ms
from schemas.exports.polled_record import PolledExport
from schemas.exports.record import Export
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import TargetStatus
from storage.db import identifiers
from storage.db.engine import database, is_sqlite
from storage.db.models import ExportRow, TargetRow
from storage.db.queries import in_query, tuples
from storage.exports.poll_sql import read_exports
from storage.exports.rows import EXPORT_COLUMNS, EXPORT_JOINS, export_from

# Exactly the condition of the index exports_recoverable: with parameters, neither database would use the index.
_IS_RECOVERABLE: Final = SQL("status IN ('failed', 'blocked') AND redacted_at IS NULL")
#: How many waiting exports are searched for an error; exports before their first attempt have none.
_LATEST: Final = 32
#: The most ids in one statement; PostgreSQL takes 65,535 parameters, SQLite 32,766.
_MAX_IDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class FrozenBody:
    """The bytes that every attempt sends, None before approval, and when they were redacted."""

    body: bytes | None
    redacted_at: datetime | None


def get(export_id: str, account_id: int | None = None) -> Export:
    """Return an export; with `account_id`, only if it belongs to that account. Raises ExportNotFound."""
    return get_all([export_id], account_id)[0]


def get_all(export_ids: Sequence[str], account_id: int | None = None) -> list[Export]:
    """Return exports in the order of `export_ids`, as `get` returns one."""
    found = {each.id: each for each in read_exports(export_ids) if account_id in {None, each.account_id}}
    if len(found) < len({*export_ids}):
        raise ExportNotFound
    return [export_from(found[each]) for each in export_ids]


def projects_of(export_ids: Sequence[str]) -> dict[str, int | None]:
    """Return the project of each export that exists; None for one that belongs to no project."""
    known = [each for each in export_ids if identifiers.is_id(identifiers.EXPORT, each)]
    return dict(tuples(ExportRow.select(ExportRow.id, ExportRow.project).where(ExportRow.id.in_(known)))) if known else {}


def list_by_ids(ids: Any, order: str) -> list[Export]:
    """Return the exports with these ids, or with the ids from a query; `order` is SQL with columns of exports `e`."""
    if not isinstance(ids, Query) and len(ids) > _MAX_IDS:
        return [each for some in chunked(ids, _MAX_IDS) for each in list_by_ids(list(some), order)]
    is_listed = in_query(SQL("e.id"), ids) if isinstance(ids, Query) else SQL("e.id").in_(ids)
    page = ExportRow.select(SQL(EXPORT_COLUMNS)).from_(SQL(f"exports e {EXPORT_JOINS}")).where(is_listed)
    found = database.execute(page.order_by(SQL(order)))
    return [export_from(PolledExport._make(row)) for row in found.fetchall()]


def list_named(ids: Sequence[str], account_id: int) -> list[Export]:
    """Return those exports among these ids that belong to an account, newest first."""
    found = list_by_ids(list(ids), "e.id DESC") if ids else []
    return [export for export in found if export.account_id == account_id]


def get_frozen_body(export_id: str, account_id: int) -> FrozenBody:
    """Return the frozen body of an account's export. Raises ExportNotFound."""
    found = _find(ExportRow.select(ExportRow.body, ExportRow.redacted_at).where(ExportRow.account == account_id), export_id)
    if found is None:
        raise ExportNotFound
    return FrozenBody(*found)


def blocked_url(export_id: str, account_id: int | None = None, target_id: str | None = None) -> str | None:
    """Return the URL to validate before an export is retried: the URL of its target, if the target is blocked.

    Returns None if nothing can be retried or nothing is blocked; `retry` reports which. Also returns None if `target_id` is
    given and is not the export's target.
    """
    same = True if target_id is None else ExportRow.target == target_id
    undelivered = ExportRow.status.in_((ExportStatus.FAILED.value, ExportStatus.BLOCKED.value))
    blocked = ExportRow.select(TargetRow.base_url, ExportRow.account).join(TargetRow)
    found = _find(blocked.where(undelivered, same, TargetRow.status == TargetStatus.BLOCKED.value), export_id)
    return str(found[0]) if found is not None and account_id in {None, found[1]} else None


def recoverable(target_id: str, since: datetime | None = None, after_id: str = "") -> Any:
    """Return the query of the ids of a target's exports that failed or were blocked, at `since` or later, after an id."""
    wanted = [ExportRow.target == target_id, ExportRow.id > after_id, _IS_RECOVERABLE]
    if since is not None:
        wanted.append(ExportRow.finished_at >= since)
    return ExportRow.select(ExportRow.id).where(*wanted)


def count_recoverable_since(target_id: str, moments: Sequence[datetime], limit: int) -> list[int]:
    """Return how many exports a recovery since each of `moments` would make due again, among the newest `limit` that failed.

    One query, bounded by `limit`, because it runs whenever a target is shown, and before each recovery.
    """
    if not moments:
        return []
    newest = recoverable(target_id).select(ExportRow.finished_at).order_by(ExportRow.id.desc()).limit(limit).alias("newest")
    counts = [fn.COUNT(Case(None, [(newest.c.finished_at >= to_ms(moment), 1)])) for moment in moments]
    [found] = Select([newest], counts).bind(ExportRow._meta.database).tuples()
    return [int(count) for count in found]


def last_error(target_id: Any) -> Any:
    """Return the query for the error code of a target's last undelivered attempts; `target_id` may be a column.

    The error of an export that waits for its next attempt comes first, then that of the newest export that failed or was
    blocked.
    """
    e = ExportRow
    # The latest due times belong to retries. An export that waits for its first attempt was due when it was approved.
    waiting = e.select(e.last_error_code, e.due_at).where(e.target == target_id, e.due_at.is_null(False))
    latest = waiting.order_by(e.due_at.desc()).limit(_LATEST).alias("latest")
    of_waiting = Select([latest], [latest.c.last_error_code]).where(latest.c.last_error_code.is_null(False))
    # Two bounds instead of an equality: only this index has that order. Otherwise PostgreSQL might read the newest exports
    # of all targets, and find none.
    of_target = (e.target >= target_id) & (e.target <= target_id)
    newest = e.select(fn.COALESCE(e.last_error_code, e.status_reason)).where(of_target, _IS_RECOVERABLE)
    return fn.COALESCE(
        of_waiting.order_by(latest.c.due_at.desc()).limit(1), newest.order_by(e.target.desc(), e.id.desc()).limit(1)
    )


def last_error_of(target_id: str) -> str | None:
    """Return the error code of a target's last undelivered attempts; None if there is none."""
    [(found,)] = Select(columns=[last_error(target_id)]).bind(ExportRow._meta.database).tuples()
    return None if found is None else str(found)


def count_waiting(target_id: str, limit: int) -> int:
    """Return how many exports wait for a target or are being sent to it, up to `limit`."""
    waiting = ExportRow.select(SQL("1")).where(ExportRow.target == target_id, ExportRow.due_at.is_null(False))
    return count_up_to(waiting, limit)


def count_due(now: datetime, limit: int, *, held_back: bool = False) -> int:
    """Return how many exports may be claimed at `now`, or are `held_back` by their targets, up to `limit`."""
    is_free = TargetRow.held_until.is_null() | (TargetRow.held_until <= now)
    is_open = (TargetRow.status == TargetStatus.ACTIVE.value) & is_free
    of_targets = ~is_open if held_back else is_open
    if is_sqlite():
        # Reads targets first, then their exports: only CROSS JOIN makes SQLite keep this order.
        due = TargetRow.select(SQL("1")).join(ExportRow, JOIN.CROSS)
        return count_up_to(due.where(ExportRow.target == TargetRow.id, ExportRow.due_at <= now, of_targets), limit)
    # A limit for each target: with one limit outside, PostgreSQL might read all exports instead.
    x = ExportRow.alias("x")
    of_target = x.select(SQL("1").alias("one")).where(x.target == TargetRow.id, x.due_at <= now).limit(limit).alias("e")
    due = TargetRow.select(SQL("1")).from_(Join(TargetRow, of_target, JOIN.LEFT_LATERAL, SQL("TRUE")))
    return count_up_to(due.where(of_target.c.one.is_null(False), of_targets), limit)


def any_waits_for_inactive_target() -> bool:
    """Return whether an export waits for a target that is blocked or disabled; a worker ends such exports, due or not."""
    is_off = TargetRow.status.in_((TargetStatus.BLOCKED.value, TargetStatus.DISABLED.value))
    waiting = TargetRow.select(SQL("1")).join(ExportRow, JOIN.CROSS).where(ExportRow.target == TargetRow.id)
    return bool(count_up_to(waiting.where(is_off, ExportRow.due_at.is_null(False)), 1))


def count_up_to(query: Any, limit: int) -> int:
    """Return how many rows a query finds, up to `limit`."""
    return int(query.limit(limit).count())


def _find(query: Any, export_id: str) -> tuple[Any, ...] | None:
    if not identifiers.is_id(identifiers.EXPORT, export_id):
        return None
    return next(iter(tuples(query.where(ExportRow.id == export_id))), None)
