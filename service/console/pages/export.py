"""`/console/exports/<export_id>`: one ticket as its receiver will read it, and all that has happened to it.

Where an attempt went, which worker made it and what the receiver said are the operator's: whoever is none sees of an attempt
what the API tells.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import falcon

from schemas.base.timestamps import from_ms
from schemas.exports.delivery import Timings
from schemas.exports.record import Export
from schemas.exports.state_machine import ExportStatus, Move, allows
from schemas.exports.ticket import delivery_body
from schemas.settings.definitions import RouteFamily
from schemas.targets.target import APPROVABLE, TargetStatus
from service.console.error_help import told
from service.console.layout import Page
from service.console.pages.exports import EXPORTS, MOST_TARGETS
from service.console.sessions import Visitor
from service.console.untrusted_text import pretty, pretty_body, way_to
from service.http.paging import next_page, read_page
from storage.accounts import audit_log
from storage.accounts.audit_log import AuditEntry
from storage.db import identifiers
from storage.exports import attempts, transitions
from storage.exports.transitions import Frozen
from storage.targets import summaries
from storage.targets.summaries import TargetSummary

#: What happened to an export that is tried until it is given up, and retried by hand now and then, is far less.
MOST_ENTRIES: Final = 200

#: How soon a page is looked at again of an export that a worker is about to move, and of one that waits.
_REFRESH_S: Final[Mapping[ExportStatus, int]] = {
    ExportStatus.APPROVED: 3,
    ExportStatus.DELIVERING: 3,
    ExportStatus.RETRY_SCHEDULED: 10,
}

#: What stands in the body where it is not known yet.
_TARGET_LEFT_OPEN: Final = "(the target that is chosen)"
_MOMENT_LEFT_OPEN: Final = "(when it is approved)"


class Part(NamedTuple):
    """A part of the time that an attempt took; `x` and `width` are hundredths of the whole bar."""

    name: str
    ms: int
    x: float
    width: float


class Step(NamedTuple):
    """A line of the ledger, for a page of an export."""

    entry: AuditEntry
    at: datetime
    actor: str
    #: The recovery that it was done in.
    recovery_id: str | None


class ExportPage(Page):
    """Shows one export of the account."""

    path = f"{EXPORTS}/{{export_id}}"
    template = "export.html"
    family = RouteFamily.CONSOLE

    def content(self, req: falcon.Request, visitor: Visitor, **ids: str) -> Mapping[str, Any]:
        """Return the export, its ticket, its steps and a page of its attempts. Raises ExportNotFound."""
        page = read_page(req, identifiers.ATTEMPT)
        export = transitions.get(ids["export_id"], visitor.account_id)
        frozen = transitions.frozen(export.id, visitor.account_id)
        found = attempts.list_traces_page(export.id, visitor.account_id, page.fetch_limit, page.before)
        entries = audit_log.list_for_subject(export.id, MOST_ENTRIES + 1)
        return {
            "export": export,
            "is_waiting": export.status in {ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED},
            "refresh_s": _REFRESH_S.get(export.status),
            "redacted_at": frozen.redacted_at,
            **_reasons(export),
            **_ticket(export, frozen),
            **_decisions(export, frozen, visitor),
            "steps": [_step(entry, visitor) for entry in entries[:MOST_ENTRIES]],
            "is_cut": len(entries) > MOST_ENTRIES,
            "most_entries": MOST_ENTRIES,
            "attempts": [(trace, split(trace.attempt.timings)) for trace in found[: page.limit]],
            "next": next_page(page, [trace.attempt.id for trace in found]),
            "is_first": page.before is None,
        }


def split(timings: Timings) -> list[Part]:
    """Return how the time of an attempt was spent, part by part; nothing where it took none.

    The first byte is counted from the attempt's beginning, so the wait for it is what the parts before it leave.
    """
    dialed = {"DNS": timings.dns_ms or 0, "connect": timings.connect_ms or 0, "TLS": timings.tls_ms or 0}
    before = sum(dialed.values())
    waited = 0 if timings.first_byte_ms is None else max(0, timings.first_byte_ms - before)
    parts = {**dialed, "first byte": waited, "rest": max(0, timings.total_ms - before - waited)}
    return list(_placed({name: ms for name, ms in parts.items() if ms}))


def _placed(parts: Mapping[str, int]) -> Iterator[Part]:
    whole, x = sum(parts.values()), 0.0
    for name, ms in parts.items():
        width = 100 * ms / whole
        yield Part(name, ms, round(x, 2), round(width, 2))
        x += width


def _reasons(export: Export) -> dict[str, Any]:
    """Return why an export is in its state and what to do: that it was given up says less than what its last attempt met."""
    last = export.last_attempt
    last_code = last.error_code if last else None
    reason = export.status_reason or (last_code if export.status is ExportStatus.RETRY_SCHEDULED else None)
    return {
        "reason": reason,
        "meant": told(reason) if reason else None,
        "met": told(last_code) if last_code and reason == "attempts_exhausted" else None,
        "last_code": last_code,
        "answered": last.response_status if last else None,
    }


def _ticket(export: Export, frozen: Frozen) -> dict[str, Any]:
    """Return the ticket as it is read and as it is sent; before it is approved, as it would be."""
    body = frozen.body
    if body is None:
        body = delivery_body(export.id, _TARGET_LEFT_OPEN, export.source, export.ticket, _MOMENT_LEFT_OPEN)
    evidence = export.ticket.get("evidence")
    return {
        "ticket": export.ticket,
        "way": way_to(export.ticket.get("page_url")),
        "provider_way": way_to(export.provider_ticket_url),
        "evidence": pretty(evidence) if evidence else None,
        "body": pretty_body(body) if body else None,
        "body_bytes": len(body),
        "is_frozen": frozen.body is not None,
    }


def _decisions(export: Export, frozen: Frozen, visitor: Visitor) -> dict[str, Any]:
    """Return what may be decided about the export in its state, and for which targets."""
    target = None
    if export.target_id is not None:
        target = summaries.by_id([export.target_id], visitor.account_id).get(export.target_id)
    may_approve = allows(Move.APPROVE, export.status) and not export.preview_problems
    offered: list[TargetSummary] = []
    if may_approve:
        offered = summaries.list_page(visitor.account_id, MOST_TARGETS + 1, sorted(APPROVABLE))
    return {
        "target": target,
        "may_approve": may_approve,
        "may_dismiss": allows(Move.DISMISS, export.status),
        "may_retry": allows(Move.RETRY, export.status) and frozen.redacted_at is None,
        "can_deliver": target is not None and target.status in APPROVABLE | {TargetStatus.BLOCKED},
        "offered": offered[:MOST_TARGETS],
        "has_more_targets": len(offered) > MOST_TARGETS,
    }


def _step(entry: AuditEntry, visitor: Visitor) -> Step:
    """Return a line of the ledger; a worker's name tells of its host, which is the operator's."""
    kind = entry.actor.partition(":")[0]
    actor = entry.actor if kind == "user" or visitor.is_operator else kind
    is_recovery = (entry.reason or "").startswith(f"{identifiers.RECOVERY}_")
    return Step(
        entry,
        from_ms(entry.at_ms),
        visitor.session.email if actor == visitor.principal.key else actor,
        entry.reason if is_recovery else None,
    )
