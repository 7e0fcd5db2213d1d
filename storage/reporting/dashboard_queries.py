"""Dashboard queries: the state of an account and of the whole installation, for the console's pages.

Counts are bounded by what a page shows: each query takes a bounded number of steps of an index, or reads targets, of which
there are thousands at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from peewee import SQL, Case, Select, fn

from schemas.exports.state_machine import IN_PROGRESS, ExportStatus
from schemas.intake.scanner import SEVERITIES
from schemas.targets.target import FAILING, TargetStatus
from storage.db.columns import columns, read
from storage.db.engine import database
from storage.db.models import AccountRow, ExportRow, TargetRow
from storage.exports.queries import last_error
from storage.reporting import menu_counts
from storage.targets import targets

#: A larger count is shown as `10 000+`, because nobody reviews so many by hand.
MAX_COUNTED: Final = 10_000
#: The bound for one account and one status. Lower, because PostgreSQL may read the page of every row that it counts.
MAX_OF_A_STATUS: Final = 1_000
#: Of how many waiting exports the severities are counted: as many as the menu counts.
MAX_WAITING: Final = menu_counts.MAX_IN_MENU + 1

#: The statuses of exports that are in progress or failed.
_COUNTED: Final = (*IN_PROGRESS, ExportStatus.FAILED, ExportStatus.BLOCKED)


@dataclass(frozen=True, slots=True)
class AccountCounts:
    """The counts of an account; exports in progress or failed are counted up to MAX_OF_A_STATUS + 1 for each status."""

    has_targets: bool
    has_exports: bool
    by_status: Mapping[ExportStatus, int]


@dataclass(frozen=True, slots=True)
class UnavailableTarget:
    """A target to which nothing is sent for now, or that fails; `held_reason` and `held_until` if a hold will end by itself.

    `last_error` is the error code of an export that waits for its next attempt, otherwise of the newest one that failed or
    was blocked.
    """

    id: str
    name: str
    status: TargetStatus
    status_reason: str | None
    base_url: str
    validation_status: str | None
    validation_reason: str | None
    held_reason: str | None
    held_until: datetime | None
    last_error: str | None


def count_account(account_id: int) -> AccountCounts:
    """Return the counts of an account, by one query."""
    has_targets = fn.EXISTS(TargetRow.select(SQL("1")).where(TargetRow.account == account_id, targets.IS_NOT_REMOVED))
    last_export = ExportRow.select(fn.MAX(ExportRow.id)).where(ExportRow.account == account_id)
    parts = [menu_counts.of_status(account_id, status).limit(MAX_OF_A_STATUS + 1).alias("part") for status in _COUNTED]
    counts = [Select([part], [fn.COUNT(SQL("*"))]) for part in parts]
    [(target, export, *found)] = Select(columns=[has_targets, last_export, *counts]).bind(database).tuples()
    return AccountCounts(bool(target), bool(export), dict(zip(_COUNTED, found, strict=True)))


def list_unavailable_targets(account_id: int, now: datetime, limit: int) -> list[UnavailableTarget]:
    """Return up to `limit` of an account's targets that fail or receive nothing at `now`, those that need a person first."""
    t = TargetRow
    # Nothing can be sent to blocked and inactive targets. Active ones with a hold continue by themselves. A person has
    # paused or disabled the last ones.
    urgency = Case(t.status, (("blocked", 0), ("inactive", 1), ("active", 2), ("paused", 3)), 4)
    is_unavailable = (t.status != TargetStatus.ACTIVE.value) | (t.held_until > now) | (t.connected_status == FAILING)
    wanted = t.select(*columns(UnavailableTarget, t, last_error=last_error(t.id)))
    found = wanted.where(t.account == account_id, targets.IS_NOT_REMOVED, is_unavailable)
    listed = read(UnavailableTarget, found.order_by(urgency, t.id.desc()).limit(limit))
    return [
        each if each.held_until and each.held_until > now else replace(each, held_reason=None, held_until=None)
        for each in listed
    ]


def waiting_by_severity(account_id: int, now: datetime) -> dict[str, int]:
    """Return how many of the worst MAX_WAITING exports that wait for a decision have each severity, the worst first."""
    part = menu_counts.waiting(account_id, now).select(ExportRow.severity_rank).limit(MAX_WAITING).alias("part")
    counted = Select([part], [part.c.severity_rank, fn.COUNT(part.c.severity_rank)]).group_by(part.c.severity_rank)
    found = {int(rank): int(number) for rank, number in counted.bind(database).tuples()}
    return {SEVERITIES[rank]: found[rank] for rank in sorted(found, reverse=True)}


def count_leases() -> int:
    """Return how many exports of all accounts workers hold."""
    x = ExportRow.alias("x")
    held = x.select(fn.COUNT(SQL("*"))).where(x.account == AccountRow.id, x.status == ExportStatus.DELIVERING.value)
    # No join, because SQLite might first read all exports to build a filter. Workers hold some thousands at most.
    counted = AccountRow.select(held.alias("held")).alias("counted")
    return int(Select([counted], [fn.COALESCE(fn.SUM(counted.c.held), 0)]).bind(database).scalar())
