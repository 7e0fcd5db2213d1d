"""`/console/overview`: health of the installation, and the account's exports and targets that need attention."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.exports.export_filter import ExportQuery
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import ASKED_FOR, BREAKER_OPEN, RESTORED, TargetStatus
from service.api.health import OK, VITAL, ReadinessChecks
from service.console import charts
from service.console.health_cards import health_cards
from service.console.layout import CONSOLE, ConsolePage, PageLayout
from service.console.sessions import ConsoleUser
from service.console.wording import bounded
from storage.exports import delivery_hours, export_list, worker_heartbeats
from storage.reporting import dashboard_queries, metrics_snapshot
from storage.reporting.dashboard_queries import MOST_OF_A_STATUS, AccountCounts, UnavailableTarget

#: Rows of each table; the lists have the rest.
MOST_ROWS: Final = 5
#: An idle worker sends within a second of the due time, a busy one within minutes.
LATE_S: Final = 300.0

_NOT_SENT: Final = (ExportStatus.FAILED, ExportStatus.BLOCKED)
_IN_PROGRESS: Final = (ExportStatus.APPROVED, ExportStatus.DELIVERING, ExportStatus.RETRY_SCHEDULED)
#: What to do about a target, by its status or the reason of its pause.
_ADVICE: Final[Mapping[str, str]] = {
    TargetStatus.BLOCKED: "Its address is not allowed. Fix the address, then resume the target.",
    TargetStatus.INACTIVE: "It has no signing secret. Set one on the target's page.",
    TargetStatus.PAUSED: "It was paused, and its approved exports wait. Resume it when it may receive again.",
    TargetStatus.DISABLED: "It was disabled, and its approved exports fail. Resume it if it is still in use.",
    RESTORED: "It was restored from a backup. Check which tickets the receiver already has, then resume it.",
    BREAKER_OPEN: "Too many attempts in a row failed. Fix the receiver, then ping it; RiskRelay retries automatically.",
}
_WAIT: Final = "Its receiver asked RiskRelay to wait. Deliveries continue automatically."


class LinkedNumber(NamedTuple):
    """A number of exports that links to their list; its `parts` add up to it."""

    name: str
    number: str
    query: str
    parts: tuple["LinkedNumber", ...] = ()


class TargetAlert(NamedTuple):
    """A target that receives no deliveries, with the reason and the advice."""

    target: UnavailableTarget
    status: str
    reason: str | None
    advice: str


class OverviewPage(ConsolePage):
    """Shows component health, deliveries of the last day, failed exports and stopped targets."""

    path = f"{CONSOLE}/overview"
    template = "overview.html"

    def __init__(self, layout: PageLayout, checks: ReadinessChecks) -> None:
        super().__init__(layout)
        self._checks = checks

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return the health cards and, if the database is usable, the figures of the account."""
        found = self._checks.found()
        shown: dict[str, Any] = {"health": health_cards(found, is_operator=user.is_operator), "has_database": False}
        # Wrong encryption keys do not affect the figures.
        if any(found[check] != OK for check in VITAL - {"keys"}):
            return shown
        numbers = dashboard_queries.count_account(user.account_id)
        is_new = not (numbers.has_targets or numbers.has_exports)
        return {**shown, "has_database": True, "is_new": is_new, **({} if is_new else _figures(user.account_id, numbers))}


def _figures(account_id: int, numbers: AccountCounts) -> dict[str, Any]:
    now = utc_now()
    hours = delivery_hours.hours_of_account(account_id, now)
    stopped = dashboard_queries.list_unavailable_targets(account_id, now, MOST_ROWS + 1)
    due_age_s = metrics_snapshot.due_age_s(now, account_id)
    return {
        "numbers": [*_numbers(numbers)],
        "has_targets": numbers.has_targets,
        "due_age_s": due_age_s,
        "is_late": due_age_s > LATE_S,
        "worker_seen_at": worker_heartbeats.last_seen(),
        "hours": hours,
        "total": delivery_hours.total(hours),
        "chart": charts.hourly_chart(hours),
        "failures": export_list.list_page(ExportQuery(account_id, statuses=_NOT_SENT), limit=MOST_ROWS),
        "alerts": [_alert(target) for target in stopped[:MOST_ROWS]],
        "has_more_alerts": len(stopped) > MOST_ROWS,
    }


def _numbers(numbers: AccountCounts) -> Iterator[LinkedNumber]:
    by_status = numbers.by_status
    parts = tuple(_number(status.value.replace("_", " "), by_status[status], status) for status in _IN_PROGRESS)
    yield _number("Awaiting a decision", by_status[ExportStatus.PREPARED], ExportStatus.PREPARED)
    yield LinkedNumber(
        "In progress", bounded(sum(by_status[status] for status in _IN_PROGRESS), MOST_OF_A_STATUS), "", parts
    )
    yield _number("Failed", by_status[ExportStatus.FAILED], ExportStatus.FAILED)
    yield _number("Blocked", by_status[ExportStatus.BLOCKED], ExportStatus.BLOCKED)


def _number(name: str, number: int, status: ExportStatus) -> LinkedNumber:
    return LinkedNumber(name, bounded(number, MOST_OF_A_STATUS), f"status={status.value}")


def _alert(target: UnavailableTarget) -> TargetAlert:
    """Return the alert for a target. A hold that the receiver requested is shown as a pause."""
    if target.status is TargetStatus.ACTIVE:
        is_requested = target.held_reason in ASKED_FOR
        status = TargetStatus.PAUSED if is_requested else TargetStatus.ACTIVE
        return TargetAlert(target, status.value, target.held_reason, _WAIT if is_requested else _ADVICE[BREAKER_OPEN])
    reason = target.status_reason
    advice = _ADVICE[RESTORED] if reason == RESTORED else _ADVICE[target.status]
    return TargetAlert(target, target.status.value, reason, advice)
