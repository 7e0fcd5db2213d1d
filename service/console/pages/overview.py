"""`/console`: the state of the installation, and what in the account needs attention."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.exports.state_machine import ExportStatus
from schemas.settings.definitions import RouteFamily
from schemas.targets.target import ASKED_FOR, BREAKER_OPEN, RESTORED, TargetStatus
from service.api.health import OK, VITAL, ReadinessChecks
from service.console import charts
from service.console.health_cards import lights
from service.console.layout import CONSOLE, Frame, Page
from service.console.sessions import Visitor
from service.console.wording import bounded
from storage.exports import delivery_hours, transitions, worker_heartbeats
from storage.reporting import dashboard_queries, metrics_snapshot
from storage.reporting.dashboard_queries import MOST_OF_A_STATUS, AccountCounts, UnavailableTarget

#: Enough to see what it is about; the lists have the rest.
SHOWN: Final = 5
#: A worker sends within a second of the due time, a busy one within minutes.
LATE_S: Final = 300.0

_NOT_SENT: Final = (ExportStatus.FAILED, ExportStatus.BLOCKED)
_ON_THEIR_WAY: Final = (ExportStatus.APPROVED, ExportStatus.DELIVERING, ExportStatus.RETRY_SCHEDULED)
#: What to do about a target, by its status or by why nothing is sent to it for now.
_TO_DO: Final[Mapping[str, str]] = {
    TargetStatus.BLOCKED: "Its address may not be delivered to. Mend that, then resume it.",
    TargetStatus.INACTIVE: "No secret signs for it. Give it one.",
    TargetStatus.PAUSED: "Somebody paused it; what is approved for it waits. Resume it when it may go on.",
    TargetStatus.DISABLED: "It is turned off; what is approved for it fails. Resume it, or leave it so.",
    RESTORED: "A backup was restored: see what its receiver has already, then resume it.",
    BREAKER_OPEN: "Too many attempts in a row failed. It is tried again by itself; ping it once its receiver is well.",
}
_ASKED_TO_WAIT: Final = "Its receiver asked to wait. It goes on by itself."


class Number(NamedTuple):
    """A number that leads to a list; `parts` say how it comes about."""

    name: str
    number: str
    query: str
    parts: tuple["Number", ...] = ()


class Trouble(NamedTuple):
    """A target that nothing is sent to: why, and what to do."""

    target: UnavailableTarget
    status: str
    reason: str | None
    to_do: str


class Overview(Page):
    """Shows lights, the last day's deliveries, and what needs somebody."""

    path = CONSOLE
    template = "overview.html"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, checks: ReadinessChecks) -> None:
        super().__init__(frame)
        self._checks = checks

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return the lights; the rest where the database can be asked, and the first steps where there is nothing yet."""
        found = self._checks.found()
        shown: dict[str, Any] = {"lights": lights(found, is_operator=visitor.is_operator), "is_asked": False}
        # Wrong keys keep nobody from looking.
        if any(found[check] != OK for check in VITAL - {"keys"}):
            return shown
        numbers = dashboard_queries.count_account(visitor.account_id)
        is_new = not (numbers.has_targets or numbers.has_exports)
        return {**shown, "is_asked": True, "is_new": is_new, **({} if is_new else _fares(visitor.account_id, numbers))}


class WithSlash:
    """Leads whoever writes a slash at the end to the overview."""

    path = f"{CONSOLE}/"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Lead on."""
        self._frame.go(resp, "")

    on_head = on_get


def _fares(account_id: int, numbers: AccountCounts) -> dict[str, Any]:
    now = utc_now()
    hours = delivery_hours.hours_of_account(account_id, now)
    troubles = dashboard_queries.list_unavailable_targets(account_id, now, SHOWN + 1)
    due_age_s = metrics_snapshot.due_age_s(now, account_id)
    return {
        "numbers": [*_numbers(numbers)],
        "has_targets": numbers.has_targets,
        "due_age_s": due_age_s,
        "is_late": due_age_s > LATE_S,
        "worker_seen_at": worker_heartbeats.last_seen(),
        "hours": hours,
        "total": delivery_hours.total(hours),
        "chart": charts.of_hours(hours),
        "failures": transitions.newest(account_id, SHOWN, None, _NOT_SENT),
        "troubles": [_trouble(target) for target in troubles[:SHOWN]],
        "has_more_troubles": len(troubles) > SHOWN,
    }


def _numbers(numbers: AccountCounts) -> Iterator[Number]:
    by_status = numbers.by_status
    parts = tuple(_number(status.value.replace("_", " "), by_status[status], status) for status in _ON_THEIR_WAY)
    yield _number("Waiting for a decision", by_status[ExportStatus.PREPARED], ExportStatus.PREPARED)
    yield Number("On their way", bounded(sum(by_status[status] for status in _ON_THEIR_WAY), MOST_OF_A_STATUS), "", parts)
    yield _number("Failed", by_status[ExportStatus.FAILED], ExportStatus.FAILED)
    yield _number("Blocked", by_status[ExportStatus.BLOCKED], ExportStatus.BLOCKED)


def _number(name: str, number: int, status: ExportStatus) -> Number:
    return Number(name, bounded(number, MOST_OF_A_STATUS), f"status={status.value}")


def _trouble(target: UnavailableTarget) -> Trouble:
    """Say of a target what it shows as, and what to do; a hold that its receiver asked for shows as a pause."""
    if target.status is TargetStatus.ACTIVE:
        is_asked = target.held_reason in ASKED_FOR
        status = TargetStatus.PAUSED if is_asked else TargetStatus.ACTIVE
        return Trouble(target, status.value, target.held_reason, _ASKED_TO_WAIT if is_asked else _TO_DO[BREAKER_OPEN])
    reason = target.status_reason
    to_do = _TO_DO[RESTORED] if reason == RESTORED else _TO_DO[target.status]
    return Trouble(target, target.status.value, reason, to_do)
