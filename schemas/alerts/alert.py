"""The record of an alert, and its text: what is wrong, and how to fix it.

A cause is a thing that can go wrong: one target, one rule, the workers. An alert is the record of a cause: it opens,
recovers and may open again. Names of targets and rules are untrusted text. They are kept apart from RiskRelay's own text, so
that each channel can escape them. An alert contains no text of a ticket.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from schemas.settings.alert_channels import AlertKind
from schemas.targets.error_help import help_for
from schemas.targets.target import FAILING, TargetStatus

#: Within this time, at most one message reports the same cause.
QUIET_FOR: Final = timedelta(hours=1)
#: Statuses that may become worse: deliveries are retried, the disk has some room.
_WARNINGS: Final = frozenset({FAILING, "low"})
#: Statuses of a target that end its exports.
_ENDS_EXPORTS: Final = frozenset({TargetStatus.BLOCKED.value, TargetStatus.DISABLED.value})


class AlertState(StrEnum):
    """Whether the cause of an alert persists."""

    OPEN = "open"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class AlertCause:
    """Something that is wrong now; `key` is the same while it persists, and when it occurs again.

    `subject_id` is the target, rule or request. `happened_at` is set for causes that can occur again while their alert is
    open; for other causes, a new `status` in `details` counts as a new occurrence. `account_id` is None if the cause affects
    the whole installation.
    """

    key: str
    kind: AlertKind
    details: Mapping[str, Any] = field(default_factory=dict)
    subject_id: str | None = None
    account_id: int | None = None
    happened_at: datetime | None = None

    def is_news(self, last_at: datetime, details: Mapping[str, Any]) -> bool:
        """Return whether the open alert, which has these `details`, must be sent again."""
        if self.happened_at is not None:
            return self.happened_at > last_at
        return self.details.get("status") != details.get("status")

    def is_worse(self, details: Mapping[str, Any]) -> bool:
        """Return whether the cause is worse than the open alert's `details`, so that its acknowledgment no longer counts."""
        return details.get("status") in _WARNINGS and self.details.get("status") not in _WARNINGS


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert as stored; `last_at` is when its cause last began or happened, or when it recovered."""

    id: str
    cause: str
    kind: AlertKind
    state: AlertState
    account_id: int | None
    subject_id: str | None
    details: Mapping[str, Any]
    first_at: datetime
    last_at: datetime
    count: int
    acknowledged_at: datetime | None
    acknowledged_by: str | None


class AlertText(NamedTuple):
    """An alert as text: `headline` and `advice` are RiskRelay's own, `subject` is untrusted, `path` is below the console."""

    headline: str
    subject: str
    advice: str
    path: str


def describe(alert: Alert) -> AlertText:
    """Return the text of an alert."""
    text = _DESCRIBE[alert.kind](alert.details, alert.subject_id)
    if alert.state is AlertState.OPEN or alert.kind is AlertKind.WEEKLY:
        return text
    return text._replace(headline=f"Over: {text.headline[:1].lower()}{text.headline[1:]}", advice=_next_step(alert))


def _next_step(alert: Alert) -> str:
    """Return the next step after an alert is over: exports that failed stay failed until they are retried."""
    has_ended_exports = alert.kind is AlertKind.TARGET and alert.details["status"] in _ENDS_EXPORTS
    if has_ended_exports or alert.kind is AlertKind.EXPORTS:
        return "Retry its exports that are still failed or blocked, if there are any."
    return "Nothing is left to do."


def _target(details: Mapping[str, Any], target_id: str | None) -> AlertText:
    status, reason = details["status"], details["reason"]
    path, subject = f"/targets/{target_id}", f"{details['name']} ({details['host']})"
    fix = help_for(reason).fix if reason else ""
    if status == FAILING:
        # If an error ends an export at once, its fix already mentions the retry.
        advice = fix if "retry" in fix else f"{fix} Deliveries are retried."
        return AlertText("Target fails", subject, advice if fix else "See the last attempts on its page.", path)
    needs_resume = status in _ENDS_EXPORTS and "resume the target" not in fix.lower()
    then = "Then resume the target: until then it gets nothing." if needs_resume else "Until then it gets nothing."
    return AlertText(f"Target {status}", subject, f"{fix or 'See its page.'} {then}", path)


def _exports(details: Mapping[str, Any], target_id: str | None) -> AlertText:
    number = details["count"]
    headline = f"{number}{'+' if details['is_cut'] else ''} {'export' if number == 1 else 'exports'} failed in a day"
    path = f"/deliveries?view=failed&target_id={target_id}"
    return AlertText(headline, details["name"], "See why, fix the cause, then retry them.", path)


def _rule(details: Mapping[str, Any], rule_id: str | None) -> AlertText:
    advice = f"Reason: {details['reason'].replace('_', ' ')}. New tickets wait for a person. Edit the rule or turn it on."
    return AlertText("Approval rule stopped", details["name"], advice, f"/rules/{rule_id}")


def _compliance(details: Mapping[str, Any], request_id: str | None) -> AlertText:
    topic = str(details["topic"]).replace("_", " ")
    headline = f"Compliance request ({topic}) is due on {details['due_on']}"
    advice = f"Check that a worker runs, and the error of the request: riskrelay compliance show {request_id}"
    return AlertText(headline, "", advice, "/compliance")


def _disk(details: Mapping[str, Any], _subject: str | None) -> AlertText:
    headline = "Disk full" if details["status"] == "full" else "Disk nearly full"
    advice = "Free space on the disk of DATA_DIR and the database: a full disk stops intake and deliveries."
    return AlertText(headline, details["host"], advice, "/queue")


def _worker(_details: Mapping[str, Any], _subject: str | None) -> AlertText:
    return AlertText("No worker is running", "", "Start a worker: nothing is delivered until then.", "/queue")


def _backup(details: Mapping[str, Any], _subject: str | None) -> AlertText:
    last = f"The last backup was made on {details['last_on']}." if details["last_on"] else "No backup was ever made."
    advice = f"{last} Run riskrelay backup, or check its cron job."
    return AlertText(f"No backup for {details['days']} days", "", advice, "")


def _weekly(details: Mapping[str, Any], _subject: str | None) -> AlertText:
    advice = (
        f"Attempts in 7 days: {details['delivered']} delivered, {details['failed']} failed. "
        f"Open alerts: {details['open_alerts']}. Targets that get nothing or fail: {details['targets']}. "
        f"Exports that failed in 7 days and were not retried: {details['exports']}."
    )
    if details["anchor"] is not None:
        advice += f" Anchor of the audit log, for audit verify --anchor: {details['anchor']}"
    return AlertText("Weekly summary", "", advice, "/overview")


_DESCRIBE: Final = {
    AlertKind.TARGET: _target,
    AlertKind.EXPORTS: _exports,
    AlertKind.RULE: _rule,
    AlertKind.COMPLIANCE: _compliance,
    AlertKind.DISK: _disk,
    AlertKind.WORKER: _worker,
    AlertKind.BACKUP: _backup,
    AlertKind.WEEKLY: _weekly,
}
