"""`/console/exports/<export_id>`: one export with its ticket as the receiver gets it, its attempts and its timeline.

Only the operator sees the address, the worker and the response of an attempt; other users see what the API returns.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.base.timestamps import from_ms
from schemas.exports.delivery import Timings
from schemas.exports.record import Export, as_shown
from schemas.exports.state_machine import ExportStatus, Transition, allows
from schemas.exports.ticket import delivery_body
from schemas.targets.error_help import help_for
from schemas.targets.target import TargetStatus
from service.console.layout import ConsolePage
from service.console.pages.exports import EXPORTS, MOST_TARGETS
from service.console.sessions import ConsoleUser
from service.console.untrusted_text import pretty, pretty_body, safe_link
from service.http.paging import next_page, read_page
from storage.accounts import audit_log
from storage.accounts.audit_log import AuditEntry
from storage.db import identifiers
from storage.exports import attempts, queries
from storage.exports.queries import FrozenBody
from storage.targets import summaries
from storage.targets.summaries import TargetSummary

#: Far more entries than an export gets from a full retry schedule and some manual retries.
MOST_ENTRIES: Final = 200

#: Targets that the page names with the reason why they are not offered.
MOST_UNAVAILABLE: Final = 5

#: Refresh intervals of exports that a worker is about to send, and of one that waits for a retry.
_REFRESH_S: Final[Mapping[ExportStatus, int]] = {
    ExportStatus.APPROVED: 3,
    ExportStatus.DELIVERING: 3,
    ExportStatus.RETRY_SCHEDULED: 10,
}

#: Placeholders in the preview of a request body.
_TARGET_PLACEHOLDER: Final = "(the selected target)"
_TIME_PLACEHOLDER: Final = "(the approval time)"


class AttemptPhase(NamedTuple):
    """One phase of an attempt; `x` and `width` are percentages of the whole bar."""

    name: str
    ms: int
    x: float
    width: float


class TimelineEntry(NamedTuple):
    """An audit entry of the export; `recovery_id` is the recovery that caused it, if any."""

    entry: AuditEntry
    at: datetime
    actor: str
    recovery_id: str | None


class ExportPage(ConsolePage):
    """Shows one export of the account."""

    path = f"{EXPORTS}/{{export_id}}"
    template = "export.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the export, its ticket, its timeline and one page of its attempts. Raises ExportNotFound."""
        page = read_page(req, identifiers.ATTEMPT)
        export = as_shown(queries.get(ids["export_id"], user.account_id), utc_now())
        frozen = queries.get_frozen_body(export.id, user.account_id)
        found = attempts.list_traces_page(export.id, user.account_id, page.fetch_limit, page.before)
        entries = audit_log.list_for_subject(export.id, MOST_ENTRIES + 1)
        return {
            "export": export,
            "refresh_s": _REFRESH_S.get(export.status),
            "redacted_at": frozen.redacted_at,
            **_status_help(export),
            **_ticket(export, frozen),
            **_decisions(export, frozen, user),
            "timeline": [_timeline_entry(entry, user) for entry in entries[:MOST_ENTRIES]],
            "is_cut": len(entries) > MOST_ENTRIES,
            "most_entries": MOST_ENTRIES,
            "attempts": [(trace, phases_of(trace.attempt.timings)) for trace in found[: page.limit]],
            "next": next_page(page, [trace.attempt.id for trace in found]),
            "is_first": page.before is None,
        }


def phases_of(timings: Timings) -> list[AttemptPhase]:
    """Return the phases of an attempt that took time.

    The time to the first byte counts from the start of the attempt, so the phases before it are subtracted.
    """
    connecting = {"DNS": timings.dns_ms or 0, "connect": timings.connect_ms or 0, "TLS": timings.tls_ms or 0}
    before = sum(connecting.values())
    waited = 0 if timings.first_byte_ms is None else max(0, timings.first_byte_ms - before)
    phases = {**connecting, "first byte": waited, "rest": max(0, timings.total_ms - before - waited)}
    return list(_placed({name: ms for name, ms in phases.items() if ms}))


def _placed(phases: Mapping[str, int]) -> Iterator[AttemptPhase]:
    total, x = sum(phases.values()), 0.0
    for name, ms in phases.items():
        width = 100 * ms / total
        yield AttemptPhase(name, ms, round(x, 2), round(width, 2))
        x += width


def _status_help(export: Export) -> dict[str, Any]:
    """Return the reason for the export's status; if the attempts are exhausted, also that of the last one."""
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
    """Return the ticket and its request body; before the approval, a preview of the body."""
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


def _decisions(export: Export, frozen: FrozenBody, user: ConsoleUser) -> dict[str, Any]:
    """Return the actions that the export's status allows, and the targets to choose from."""
    target = None
    if export.target_id is not None:
        target = summaries.by_id([export.target_id], user.account_id).get(export.target_id)
    may_approve = allows(Transition.APPROVE, export.status) and not export.preview_problems
    offered: list[TargetSummary] = []
    unavailable: list[TargetSummary] = []
    if may_approve:
        offered = summaries.list_approvable(user.account_id, MOST_TARGETS + 1)
        unavailable = summaries.list_unapprovable(user.account_id, MOST_UNAVAILABLE + 1)
    return {
        "target": target,
        "may_approve": may_approve,
        "may_dismiss": allows(Transition.DISMISS, export.status),
        "may_retry": allows(Transition.RETRY, export.status) and frozen.redacted_at is None,
        "can_deliver": target is not None and target.status in {TargetStatus.ACTIVE, TargetStatus.BLOCKED},
        "offered": offered[:MOST_TARGETS],
        "has_more_targets": len(offered) > MOST_TARGETS,
        "unavailable": unavailable[:MOST_UNAVAILABLE],
        "has_more_unavailable": len(unavailable) > MOST_UNAVAILABLE,
    }


def _timeline_entry(entry: AuditEntry, user: ConsoleUser) -> TimelineEntry:
    """Return an audit entry for display. A worker's name contains its host, which only the operator sees."""
    kind = entry.actor.partition(":")[0]
    actor = entry.actor if kind == "user" or user.is_operator else kind
    is_recovery = (entry.reason or "").startswith(f"{identifiers.RECOVERY}_")
    return TimelineEntry(
        entry,
        from_ms(entry.at_ms),
        user.session.email if actor == user.principal.key else actor,
        entry.reason if is_recovery else None,
    )
