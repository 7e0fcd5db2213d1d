"""Limits on the rows of an account: findings, waiting exports, targets, uploads of a day.

Counting a million rows takes a tenth of a second, and a stored count would have to be written by every delivery. So each
process counts an account's rows every RECOUNT_AFTER, and adds only its own rows in between. It does not see the rows that
other processes add meanwhile, so these rows may exceed a limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from peewee import SQL, fn

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.exports.state_machine import FINISHED, ExportStatus
from schemas.settings.definitions import Settings
from storage.db import identifiers
from storage.db.models import ExportRow, FindingRow, HandoffRow, ProjectRow, ReportUploadRow, TargetRow
from storage.db.queries import tuples, where_given

RECOUNT_AFTER: Final = timedelta(seconds=10)
#: At a limit, a count up to this age refuses requests, so that a client that repeats requests causes one count a second. A
#: count to which rows were added is taken again first.
REFUSE_FOR: Final = timedelta(seconds=1)
#: The most cached counts, one for each account and limit. When there are more, all are deleted and counted again.
_MAX_COUNTS: Final = 10_000
_DAY: Final = timedelta(days=1)


class Limited(StrEnum):
    """The limits, by the names of their settings."""

    FINDINGS = "MAX_FINDINGS_PER_ACCOUNT"
    WAITING_EXPORTS = "MAX_WAITING_EXPORTS_PER_ACCOUNT"
    TARGETS = "MAX_TARGETS_PER_ACCOUNT"
    UPLOADS = "MAX_UPLOADS_PER_DAY"


#: The names of the counted rows in records.
STORED: Final[Mapping[Limited, str]] = {
    Limited.FINDINGS: "findings",
    Limited.WAITING_EXPORTS: "waiting_exports",
    Limited.TARGETS: "targets",
    Limited.UPLOADS: "uploads_24h",
}
#: For the error message: the names of the counted rows, and what the account's users can do themselves.
_TEXTS: Final[Mapping[Limited, tuple[str, str]]] = {
    Limited.FINDINGS: ("findings", ""),
    Limited.WAITING_EXPORTS: ("exports that wait: prepared, approved or to be retried", ", or dismiss prepared exports"),
    Limited.TARGETS: ("targets", ""),
    Limited.UPLOADS: ("uploads in 24 hours", ", or upload later"),
}
_WAITING: Final = [status.value for status in ExportStatus if status not in FINISHED]


@dataclass(frozen=True, slots=True)
class Usage:
    """How many rows an account has, and its limit."""

    limited: Limited
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class _Count:
    used: int
    at: datetime
    #: Whether rows were added to the count since. A dry run, or another transaction that rolled back, has stored none of
    #: them.
    is_estimate: bool


class AccountLimits:
    """Refuses requests that would exceed an account's limits; one for each process."""

    def __init__(self, limits: Mapping[Limited, int]) -> None:
        self._limits = dict(limits)
        self._counts: dict[tuple[int, Limited], _Count] = {}

    def require_room(self, account_id: int, limited: Limited, added: int, now: datetime) -> None:
        """Refuse rows beyond a limit, in the transaction that has just inserted `added` of them.

        Raises ValidationFailed, which rolls the transaction back.
        """
        limit = self._limits.get(limited)
        if limit is None or not added:
            return
        count = self._counts.get((account_id, limited))
        age = RECOUNT_AFTER if count is None else abs(now - count.at)
        refuses = count is not None and count.used + added > limit
        if count is None or age >= RECOUNT_AFTER or (refuses and (count.is_estimate or age >= REFUSE_FOR)):
            count = _Count(_read_count(limited, now, account_id) - added, now, is_estimate=False)
        used = count.used + added
        if len(self._counts) >= _MAX_COUNTS:
            self._counts.clear()
        is_refused = used > limit
        self._counts[account_id, limited] = count if is_refused else _Count(used, count.at, is_estimate=True)
        if is_refused:
            raise ValidationFailed(_problem(limited, limit))

    def usage(self, account_ids: Sequence[int], now: datetime) -> dict[int, list[Usage]]:
        """Return how much of each limit accounts use, by account; with several of them, counts the rows of all accounts."""
        one = account_ids[0] if len(account_ids) == 1 else None
        counts: dict[Limited, dict[int, int]] = {each: dict(tuples(_counts(each, now, one))) for each in self._limits}
        return {
            account_id: [Usage(each, counts[each].get(account_id, 0), limit) for each, limit in self._limits.items()]
            for account_id in account_ids
        }


UNLIMITED: Final = AccountLimits({})


def account_limits(settings: Settings) -> AccountLimits:
    """Return the limits from the settings."""
    return AccountLimits({limited: getattr(settings, limited.lower()) for limited in Limited})


def _problem(limited: Limited, limit: int) -> FieldProblem:
    name, other_fix = _TEXTS[limited]
    message = (
        f"This account may store {limit} {name} ({limited}); nothing of this request was stored. "
        f"Ask the operator to raise {limited}{other_fix}."
    )
    return FieldProblem("", "limit_reached", message)


def _read_count(limited: Limited, now: datetime, account_id: int) -> int:
    found = tuples(_counts(limited, now, account_id))
    return int(found[0][1]) if found else 0


def _counts(limited: Limited, now: datetime, account_id: int | None = None) -> Any:
    """Return the query for account ids, or one, with the number of their rows; each number is read from an index."""
    if limited is Limited.UPLOADS:
        return _upload_counts(now - _DAY, account_id)
    query: Any
    if limited is Limited.FINDINGS:
        account = ProjectRow.account
        query = FindingRow.select(account, fn.COUNT(FindingRow.id)).join(ProjectRow)
    elif limited is Limited.WAITING_EXPORTS:
        account = ExportRow.account
        query = ExportRow.select(account, fn.COUNT(ExportRow.id)).where(ExportRow.status.in_(_WAITING))
    else:
        account = TargetRow.account
        query = TargetRow.select(account, fn.COUNT(TargetRow.id)).where(TargetRow.deleted_at.is_null())
    return where_given(query, (account, account_id)).group_by(account)


def _upload_counts(since: datetime, account_id: int | None) -> Any:
    """Return the query for account ids, or one, with the number of their captures, diagnostics and reports."""
    # Identifiers are in the order of their creation, and so is their index.
    handoffs: Any = HandoffRow.select(ProjectRow.account.alias("account_id")).join(ProjectRow)
    handoffs = handoffs.where(HandoffRow.id >= identifiers.first_id(identifiers.HANDOFF, since))
    handoffs = where_given(handoffs, (ProjectRow.account, account_id))
    reports: Any = ReportUploadRow.select(ReportUploadRow.account.alias("account_id"))
    reports = reports.where(ReportUploadRow.id >= identifiers.first_id(identifiers.REPORT_UPLOAD, since))
    reports = where_given(reports, (ReportUploadRow.account, account_id))
    counted = ReportUploadRow.select(SQL("account_id"), fn.COUNT(SQL("*"))).from_((handoffs + reports).alias("uploads"))
    return counted.group_by(SQL("account_id"))
