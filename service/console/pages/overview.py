"""`/console/overview`: waiting decisions, trends, and problems that need a person."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import falcon

from runtime.clock import utc_now
from schemas.exports.state_machine import IN_PROGRESS, ExportStatus
from schemas.targets.error_help import help_for
from schemas.targets.target import FAILING, PAUSES_BY_RECEIVER, TargetStatus
from schemas.targets.validations import FAILED as VALIDATION_FAILED
from schemas.triage.approval_rules import ApprovalRule
from schemas.triage.export_filter import ExportQuery
from service.api.health import OK, VITAL
from service.console import charts
from service.console.charts import ChartedTrend
from service.console.choices import offered_projects
from service.console.health_cards import HealthCard, health_cards
from service.console.layout import CONSOLE, ConsolePage, PageLayout
from service.console.sessions import ConsoleUser
from service.console.triage.rules import STOPS
from service.console.wording import bounded, count, duration
from storage.exports import delivery_hours
from storage.exports.search import export_list
from storage.reporting import dashboard_queries, finding_trends, metrics_snapshot
from storage.reporting.dashboard_queries import MAX_OF_A_STATUS, AccountCounts, UnavailableTarget
from storage.reporting.menu_counts import MAX_IN_MENU

#: Maximum number of targets, and of rules, in the list; their own pages list all of them.
MAX_ROWS: Final = 5
#: Length of a trend in days, including today.
TREND_DAYS: Final = 30
#: Maximum number of accounts whose trends are cached, some kilobytes each.
_MAX_TRENDS: Final = 500
#: Trends are cached for this many times the duration of reading them, so at most a fortieth of the time is spent reading.
_CACHED_FOR: Final = 40

#: The list of deliveries that failed or were blocked.
_FAILED_PATH: Final = "/deliveries?view=failed"
#: The charts of findings of the last TREND_DAYS.
_TRENDS_PATH: Final = f"/findings/trends?days={TREND_DAYS}"
_SECOND: Final = timedelta(seconds=1)
#: The reason and the fix for a failing target whose attempts have no error code.
_UNEXPLAINED: Final = (
    "Its last deliveries failed.",
    "Open one of its deliveries to see the receiver's response. Fix the receiver, then ping the target.",
)


class Number(NamedTuple):
    """A number with a link to its list. Each tag is a tone and a text with further information."""

    number: str
    name: str
    path: str
    tags: tuple[tuple[str, str], ...] = ()


class Attention(NamedTuple):
    """A problem that needs a person: its subject, a status with its reason, and the fix.

    `path` and `verb` are of its button.
    """

    what: str
    about: str
    status: str
    tone: str
    why: str
    to_do: str
    path: str = ""
    verb: str = "Open"
    #: The time when the problem ends automatically; shown after `why`.
    until: datetime | None = None


class Trends(NamedTuple):
    """Attempts by day, and the findings that were not fixed at the end of each day; oldest first.

    `fix` is the median time to fix in these days, `fix_before` in the same number of days before.
    """

    deliveries: ChartedTrend
    unfixed: ChartedTrend
    fix: timedelta | None
    fix_before: timedelta | None


class OverviewPage(ConsolePage):
    """Shows numbers, two trends, problems that need attention, and the health checks of the installation."""

    path = f"{CONSOLE}/overview"
    template = "overview.html"

    def __init__(self, layout: PageLayout) -> None:
        super().__init__(layout)
        #: The cached trends by account, with the time (`time.monotonic`) at which they expire.
        self._cached: dict[int, tuple[float, Trends]] = {}

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return the health cards and, if the database is usable, the figures of the account."""
        found = self._layout.checks.results()
        cards = health_cards(found, is_operator=user.is_operator)
        shown: dict[str, Any] = {"health": cards, "has_database": False}
        # Wrong encryption keys do not affect the figures.
        if any(found[check] != OK for check in VITAL - {"keys", "disk"}):
            return shown
        counts = dashboard_queries.count_account(user.account_id)
        is_new = not (counts.has_targets or counts.has_exports)
        shown_projects = offered_projects(user) if user.may("/findings") else []
        figures = self._figures(user, counts, cards)
        return {**shown, "has_database": True, "is_new": is_new, "projects": shown_projects, **figures}

    def _figures(self, user: ConsoleUser, counts: AccountCounts, cards: Sequence[HealthCard]) -> dict[str, Any]:
        account_id, now = user.account_id, utc_now()
        trend = self._trends(account_id, now)
        due_age_s = metrics_snapshot.due_age_s(now, account_id)
        targets = dashboard_queries.list_unavailable_targets(account_id, now, MAX_ROWS + 1)
        rules = self._operations.approval_rules.list_page(user.principal)
        return {
            "numbers": [*_numbers(account_id, counts, trend, due_age_s, now)],
            "attention": [
                *(_card_attention(card) for card in cards if card.status != OK),
                *_export_attention(account_id, counts, due_age_s),
                *(_target_attention(target) for target in targets[:MAX_ROWS]),
                *islice(_rule_attention(rules), MAX_ROWS),
            ],
            "has_more_targets": len(targets) > MAX_ROWS,
            "deliveries": trend.deliveries,
            "unfixed": trend.unfixed,
        }

    def _trends(self, account_id: int, now: datetime) -> Trends:
        """Return the trends of the last TREND_DAYS of an account. Those of a large account are cached for some seconds."""
        until, cached = self._cached.get(account_id, (0.0, None))
        began = time.monotonic()
        if cached is None or began >= until:
            if len(self._cached) >= _MAX_TRENDS:
                self._cached.clear()
            cached = _read_trends(account_id, now)
            ended = time.monotonic()
            self._cached[account_id] = ended + _CACHED_FOR * (ended - began), cached
        return cached


def _read_trends(account_id: int, now: datetime) -> Trends:
    first = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=TREND_DAYS - 1)
    attempts = delivery_hours.days_of_account(account_id, first, now + timedelta(milliseconds=1))
    trend = finding_trends.read_trend(account_id, None, first, TREND_DAYS)
    return Trends(
        charts.daily_attempts(attempts),
        charts.severity_trend(trend.days),
        trend.median_fix,
        finding_trends.median_fix(account_id, None, first - timedelta(days=TREND_DAYS), first),
    )


def _numbers(account_id: int, counts: AccountCounts, trend: Trends, due_age_s: float, now: datetime) -> Iterator[Number]:
    """Yield the numbers at the top: waiting decisions, findings, current deliveries and failed deliveries."""
    severities, by_status = dashboard_queries.waiting_by_severity(account_id, now), counts.by_status
    waiting = sum(severities.values())
    yield Number(
        bounded(waiting, MAX_IN_MENU),
        "waits for a decision" if waiting == 1 else "wait for a decision",
        "/inbox",
        tuple((f"sev {name}", f"{bounded(number, MAX_IN_MENU)} {name}") for name, number in severities.items()),
    )
    before, unfixed = (sum(trend.unfixed.stacks[place].numbers) for place in (0, -1))
    name = "finding not fixed" if unfixed == 1 else "findings not fixed"
    yield Number(count(unfixed), name, _TRENDS_PATH, tuple(_unfixed_tags(before, unfixed)))
    if trend.fix is not None:
        yield Number(duration(trend.fix), "median time to fix", _TRENDS_PATH, tuple(_fix_tags(trend.fix, trend.fix_before)))
    retries = by_status[ExportStatus.RETRY_SCHEDULED]
    late = (("status warn", f"oldest due {duration(due_age_s)} ago"),) if due_age_s > metrics_snapshot.LATE_S else ()
    waits = (("status warn", f"{bounded(retries, MAX_OF_A_STATUS)} scheduled for retry"),) if retries else ()
    open_ = sum(by_status[status] for status in IN_PROGRESS)
    name = "delivery on its way" if open_ == 1 else "deliveries on their way"
    yield Number(bounded(open_, MAX_OF_A_STATUS), name, "/deliveries", (*late, *waits))
    failed, blocked = by_status[ExportStatus.FAILED], by_status[ExportStatus.BLOCKED]
    tags = (("status bad", f"{bounded(blocked, MAX_OF_A_STATUS)} blocked"),) if blocked else ()
    name = "delivery failed" if failed + blocked == 1 else "deliveries failed"
    yield Number(bounded(failed + blocked, MAX_OF_A_STATUS), name, _FAILED_PATH, tags)


def _unfixed_tags(before: int, now: int) -> Iterator[tuple[str, str]]:
    """Yield a tag that compares the current number of findings with the number at the end of the first day."""
    if now < before:
        yield "status good", f"{count(before - now)} fewer in {TREND_DAYS} days"
    elif now > before:
        yield "status warn", f"{count(now - before)} more in {TREND_DAYS} days"


def _fix_tags(fix: timedelta, before: timedelta | None) -> Iterator[tuple[str, str]]:
    """Yield a tag that compares the median time to fix with the median of the same number of days before."""
    if before is None or abs(fix - before) < _SECOND:
        return
    tone, word = ("good", "faster") if fix < before else ("warn", "slower")
    yield f"status {tone}", f"{duration(abs(fix - before))} {word} than in the {TREND_DAYS} days before"


def _card_attention(card: HealthCard) -> Attention:
    return Attention(
        card.name, "", card.status.replace("_", " "), "bad", card.meaning, card.advice, "/overview#health", "Checks"
    )


def _export_attention(account_id: int, counts: AccountCounts, due_age_s: float) -> Iterator[Attention]:
    if due_age_s > metrics_snapshot.LATE_S:
        why = f"The oldest is due {duration(due_age_s)} ago."
        yield Attention(
            "Deliveries", "", "late", "warn", why, "Check that a worker is running, and check its log.", "/deliveries"
        )
    for status in (ExportStatus.FAILED, ExportStatus.BLOCKED):
        if counts.by_status[status]:
            yield _failure_attention(account_id, status, counts.by_status[status])


def _failure_attention(account_id: int, status: ExportStatus, number: int) -> Attention:
    """Return the problem of the exports with a final status, with the reason of the newest export."""
    newest = export_list.list_page(ExportQuery(account_id, statuses=(status,)), limit=1)
    reason = newest[0].status_reason if newest else None
    attempt = newest[0].last_attempt if newest else None
    code = attempt.error_code if attempt and attempt.error_code else reason
    why = f"The newest: {(reason or 'unknown').replace('_', ' ')}"
    if attempt and attempt.response_status:
        why += f" (HTTP {attempt.response_status})"
    what = f"{bounded(number, MAX_OF_A_STATUS)} {'delivery' if number == 1 else 'deliveries'}"
    to_do = help_for(code).fix if code else "Open the newest one to see the receiver's response, then retry."
    return Attention(what, "", status.value, "bad", f"{why}.", to_do, _FAILED_PATH)


def _target_attention(target: UnavailableTarget) -> Attention:
    """Return the problem of a target, in the words of the target's page; a hold ends automatically."""
    path, host = f"/targets/{target.id}", urlsplit(target.base_url).hostname or ""
    if target.status is not TargetStatus.ACTIVE:
        tone = "warn" if target.status is TargetStatus.PAUSED else "bad"
        return Attention(target.name, host, target.status.value, tone, *help_for(target.status_reason or ""), path)
    if target.held_until is not None:
        tone, why_and_fix = "warn" if target.held_reason in PAUSES_BY_RECEIVER else "bad", help_for(target.held_reason or "")
        return Attention(target.name, host, "held", tone, *why_and_fix, path, until=target.held_until)
    reason = target.validation_reason if target.validation_status == VALIDATION_FAILED else target.last_error
    return Attention(target.name, host, FAILING, "bad", *(help_for(reason) if reason else _UNEXPLAINED), path)


def _rule_attention(rules: Iterable[ApprovalRule]) -> Iterator[Attention]:
    """Yield the problems of stopped rules, in the words of the list of rules."""
    for rule in rules:
        if rule.stopped_reason is not None:
            yield Attention(rule.name, "Approval rule", "stopped", "bad", *STOPS[rule.stopped_reason], "/rules")
