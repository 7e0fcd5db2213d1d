"""One ticket for a decision: the reason for its status, its text as it is sent, and the decisions that it allows."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from schemas.base.principal import Ability
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Export
from schemas.exports.state_machine import ExportStatus, Transition, allows
from schemas.exports.tickets.ticket import MANUAL, delivery_body
from schemas.findings.life_cycle import RunOutcome
from schemas.intake.artifacts import artifact_url
from schemas.targets.error_help import help_for
from schemas.targets.target import TargetStatus
from schemas.triage.approval_rules import glob_of
from service.console.choices import MAX_TARGETS
from service.console.permissions import is_allowed_in
from service.console.sessions import ConsoleUser
from service.console.triage.places import places_with_findings
from service.console.untrusted_text import SafeLink, pretty, pretty_body, safe_link
from storage.exports import queries
from storage.exports.queries import FrozenBody
from storage.intake import finding_history
from storage.targets import summaries
from storage.targets.summaries import TargetSummary

#: Maximum number of unavailable targets that the page lists, each with the reason.
MAX_UNAVAILABLE: Final = 5
#: Number of places that are shown at once; the others are folded.
FEW_PLACES: Final = 3
#: Maximum number of scan runs, and of other findings on the page, that are listed.
MAX_LISTED: Final = 20

#: Refresh intervals in seconds: short for exports that a worker is about to send, longer for exports that wait for a retry.
REFRESH_S: Final[Mapping[ExportStatus, int]] = {
    ExportStatus.APPROVED: 3,
    ExportStatus.DELIVERING: 3,
    ExportStatus.RETRY_SCHEDULED: 10,
}
#: Texts for the source of a ticket.
SOURCES: Final[Mapping[str, str]] = {
    "finding": "scan",
    "evidence_capture": "browser extension",
    "diagnostics": "diagnostics",
    "inbound_email": "email",
    MANUAL: "written by hand",
}
#: Texts for the reasons of a dismissal, in the order of the form.
REASONS: Final[Mapping[str, str]] = {
    DismissalReason.FALSE_POSITIVE.value: "False positive",
    DismissalReason.WONT_FIX.value: "Won't fix",
    DismissalReason.DUPLICATE.value: "Duplicate",
    DismissalReason.TEST.value: "Only a test",
    DismissalReason.OTHER.value: "Other",
}
#: Texts for the length of a snooze, by days; the empty key means until a finding is seen again.
SNOOZES: Final[Mapping[str, str]] = {"1": "for a day", "7": "for a week", "30": "for 30 days", "": "until it is seen again"}

#: Placeholders in the preview of a request body.
_TARGET_PLACEHOLDER: Final = "(the selected target)"
_TIME_PLACEHOLDER: Final = "(the approval time)"


def ticket_content(
    export: Export, user: ConsoleUser, last_target_id: str | None, artifacts_base_url: str, now: datetime
) -> dict[str, Any]:
    """Return the variables of `ticket.html` for an export of the user's account, which `as_shown` has returned."""
    frozen = queries.get_frozen_body(export.id, user.account_id)
    return {
        "export": export,
        "refresh_s": REFRESH_S.get(export.status),
        "redacted_at": frozen.redacted_at,
        "details": _finding_details(export, artifacts_base_url),
        "most_listed": MAX_LISTED,
        "places": places_with_findings(export),
        "few_places": FEW_PLACES,
        "rule_glob": glob_of(export.rule) if export.rule else None,
        "sources": SOURCES,
        **_status_help(export),
        **_ticket(export, frozen),
        **_decisions(export, frozen, user, last_target_id, now),
    }


def _status_help(export: Export) -> dict[str, Any]:
    """Return the reason for the export's status; if its attempts are exhausted, also the reason of the last attempt."""
    last = export.last_attempt
    last_code = last.error_code if last else None
    reason = export.status_reason or (last_code if export.status is ExportStatus.RETRY_SCHEDULED else None)
    return {
        "reason": reason,
        "help": help_for(reason) if reason else None,
        "last_help": help_for(last_code) if last_code and reason == "attempts_exhausted" else None,
        "last_code": last_code,
        "last_status": last.response_status if last else None,
    }


def _ticket(export: Export, frozen: FrozenBody) -> dict[str, Any]:
    """Return the ticket and its request body; before the approval, the body is a preview."""
    body = frozen.body
    if body is None:
        body = delivery_body(export.id, _TARGET_PLACEHOLDER, export.source, export.ticket, _TIME_PLACEHOLDER)
    evidence = export.ticket.get("evidence")
    return {
        "ticket": export.ticket,
        "page_link": safe_link(export.ticket.get("page_url")),
        "provider_link": safe_link(export.provider_ticket_url),
        "evidence": pretty(evidence) if evidence else None,
        "body": pretty_body(body) if body else None,
        "body_bytes": len(body),
        "is_frozen": frozen.body is not None,
    }


def _finding_details(export: Export, artifacts_base_url: str) -> dict[str, Any] | None:
    """Return the details of an export's finding, or of a group's first one; None for other sources. Makes two queries.

    The texts come from the scanner; a link is None if its text must not be a link. The lists have one more entry than the
    page shows, if there are more. `reopened_at` is when one of the listed scan runs last reported the finding again.
    """
    if export.finding is None:
        return None
    finding_id = export.finding.finding_id
    sightings = finding_history.list_runs(finding_id, MAX_LISTED + 1)
    evidence = export.ticket.get("evidence")
    help_url, screenshot = _text(evidence, "help_url"), _text(evidence, "screenshot")
    return {
        "help_url": help_url,
        "help_link": safe_link(help_url),
        "screenshot": screenshot,
        "screenshot_link": _screenshot_link(screenshot, artifacts_base_url),
        "sightings": sightings,
        "others": finding_history.list_others_of_page(finding_id, MAX_LISTED + 1),
        "reopened_at": max((each.seen_at for each in sightings if each.outcome is RunOutcome.REOPENED), default=None),
    }


def _screenshot_link(screenshot: str | None, base_url: str) -> SafeLink | None:
    """Return the link to a screenshot; a ticket contains its URL if ARTIFACTS_BASE_URL was set when it was written."""
    is_url = screenshot and base_url and screenshot.startswith(f"{base_url.rstrip('/')}/")
    return safe_link(screenshot if is_url else artifact_url(base_url, screenshot))


def _text(evidence: Any, name: str) -> str | None:
    value = evidence.get(name) if isinstance(evidence, Mapping) else None
    return value if isinstance(value, str) and value else None


def _decisions(
    export: Export, frozen: FrozenBody, user: ConsoleUser, last_target_id: str | None, now: datetime
) -> dict[str, Any]:
    """Return the actions that the export's status allows, and the targets to choose from."""
    may_decide = is_allowed_in(export.project_id, Ability.APPROVE_EXPORTS, user.principal)
    is_prepared = allows(Transition.APPROVE, export.status)
    may_approve = may_decide and is_prepared and not export.preview_problems
    may_retry = may_decide and allows(Transition.RETRY, export.status) and frozen.redacted_at is None
    offered = summaries.list_approvable(user.account_id, MAX_TARGETS + 1) if may_approve or may_retry else []
    unavailable = summaries.list_unapprovable(user.account_id, MAX_UNAVAILABLE + 1) if may_approve else []
    target = _target(export, offered, user)
    return {
        "target": target,
        "may_approve": may_approve,
        "may_decide": may_decide,
        "may_edit": may_decide and is_prepared and frozen.redacted_at is None,
        "may_split": may_decide and is_prepared and export.findings is not None and export.findings[0] > 1,
        "may_dismiss": may_decide and allows(Transition.DISMISS, export.status),
        "may_restore": may_decide and allows(Transition.RESTORE, export.status) and frozen.redacted_at is None,
        "is_snoozed": is_prepared and export.snooze is not None and not export.snooze.is_over(now),
        "may_retry": may_retry,
        "can_deliver": target is not None and target.status in {TargetStatus.ACTIVE, TargetStatus.BLOCKED},
        "reasons": REASONS,
        "snoozes": SNOOZES,
        "chosen_target_id": chosen_target(offered, last_target_id),
        "offered": offered[:MAX_TARGETS],
        "other_targets": [each for each in offered[:MAX_TARGETS] if each.id != export.target_id],
        "has_more_targets": len(offered) > MAX_TARGETS,
        "unavailable": unavailable[:MAX_UNAVAILABLE],
        "has_more_unavailable": len(unavailable) > MAX_UNAVAILABLE,
    }


def chosen_target(offered: list[TargetSummary], last_target_id: str | None) -> str | None:
    """Return the target to preselect: the last one chosen if it is offered, or the only one."""
    if last_target_id in {each.id for each in offered}:
        return last_target_id
    return offered[0].id if len(offered) == 1 else None


def _target(export: Export, offered: list[TargetSummary], user: ConsoleUser) -> TargetSummary | None:
    if export.target_id is None:
        return None
    among = [each for each in offered if each.id == export.target_id]
    return among[0] if among else summaries.by_id([export.target_id], user.account_id).get(export.target_id)
