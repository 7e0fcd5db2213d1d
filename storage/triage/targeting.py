"""Approves one export for several targets, and retries an export at another target."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from schemas.base.errors import RiskRelayError, ValidationFailed
from schemas.base.fields import problem
from schemas.exports.record import ApprovalForAll, Export
from schemas.exports.state_machine import IN_PROGRESS, Transition
from schemas.intake.scanner import SEVERITIES
from schemas.triage.bulk_decisions import ExportReference
from schemas.triage.search_words import words_of
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import UNLIMITED, AccountLimits, Limited
from storage.accounts.audit_log import append
from storage.db.columns import JsonField
from storage.db.engine import transaction
from storage.db.models import AuditEntryRow, TargetRow
from storage.db.queries import scalars
from storage.exports import transitions
from storage.exports.events import deliveries
from storage.exports.queries import get, list_by_ids
from storage.exports.rows import Draft, WrittenTicket
from storage.exports.search import export_search
from storage.exports.transitions_sql import LockedExport, approve_locked, frozen_body


def approve_for_all(
    export_id: str,
    account_id: int,
    approval: ApprovalForAll,
    now: datetime,
    actor: str,
    policy: TargetPolicy,
    limits: AccountLimits = UNLIMITED,
) -> list[Export]:
    """Approve a prepared export for its first target, and a copy of it for each further target, all or none.

    The exports are returned in the order of the targets, and name each other as siblings. If the same approval is repeated,
    they are returned unchanged. Raises ExportNotFound, Conflict, ValidationFailed for a target, the preview or at the
    account's limit, TargetUrlRefused if `policy` refuses a target's URL.
    """
    with transaction():
        errors = transitions.approval_errors(approval.target_ids, account_id, policy)
        export = transitions.lock(export_id, account_id)
        if stale := transitions.digest_error(approval.ticket_digest, export):
            raise stale
        # The exports of an earlier approval of this ticket for several targets.
        existing = _in_order(export.siblings) if export.siblings else []
        if {each.target_id for each in existing} == {*approval.target_ids}:
            return sorted(existing, key=lambda each: approval.target_ids.index(str(each.target_id)))

        def refusal(each: LockedExport) -> RiskRelayError | None:
            unsafe = ValidationFailed(problem("", "preview_not_safe")) if each.preview_problems else None
            return next((_at(errors[id_], index) for index, id_ in enumerate(approval.target_ids) if id_ in errors), unsafe)

        wanted = [ExportReference(export_id)]
        results, held = transitions.check_transition(wanted, account_id, Transition.APPROVE, lambda _: False, refusal)
        transitions.require_changed(results, Transition.APPROVE)
        ids = [export_id, *transitions.insert([_copy(export)] * (len(approval.target_ids) - 1), now, actor)]
        limits.require_room(account_id, Limited.WAITING_EXPORTS, len(ids) - 1, now)
        fixed = None if export.findings is None else export.findings[1]
        transitions.update(ids, siblings=ids, findings_fixed=fixed, original_ticket=export.original_ticket)
        exports = [held[0]._replace(id=each) for each in ids]
        approve_locked([*zip(exports, approval.target_ids, strict=True)], now, actor, None, covers_events=approval.events)
        return _in_order(ids)


def retry_elsewhere(
    export_id: str, account_id: int | None, target_id: str, now: datetime, actor: str, policy: TargetPolicy
) -> Export | None:
    """Make a failed or blocked export due at another active target of its account, with its whole schedule.

    The ticket and its digest stay. The envelope names the new target; the reason of the audit entry is the former target. No
    attempt at the former target can still write a result, because an export that has ended has no lease. If the export
    already waits for this target, it is returned. Returns None if it ended at this target, where `transitions.retry` retries
    it. Raises ExportNotFound, Conflict, ValidationFailed for the target, TargetUrlRefused if `policy` refuses the target's
    URL.
    """
    with transaction():
        export = transitions.lock(export_id, account_id)
        if export.target_id == target_id:
            return export if export.status in IN_PROGRESS else None
        errors = transitions.approval_errors([target_id], export.account_id, policy)

        def refusal(each: LockedExport) -> RiskRelayError | None:
            return transitions.redaction_error(each) or errors.get(target_id)

        results, held = transitions.check_transition(
            [ExportReference(export_id)], account_id, Transition.RETRY, refusal=refusal
        )
        transitions.require_changed(results, Transition.RETRY)
        was_at_target = _was_at(export, target_id)
        approved_at = export.approved_at or now
        # If the approval covered events, it now covers those to which the new target is subscribed.
        events = TargetRow.get_by_id(target_id).events if held[0].events else []
        if events:
            append(now, actor, "approve_events", export_id, " ".join(events))
        changes = {
            **transitions.restart(now),
            "target": target_id,
            "events": events,
            "body": frozen_body(held[0], target_id, approved_at),
            **dict.fromkeys(transitions.PROVIDER_TICKET),
            # An unknown outcome at the former target is irrelevant here, but the new target may have received the export
            # before.
            "is_outcome_unknown": was_at_target,
        }
        if not was_at_target:
            # Due at once, because no search for an issue of this export is needed there.
            changes["due_at"] = now
        transitions.transition_many(held, Transition.RETRY, now, actor, export.target_id, **changes)
        deliveries.move_to_target(export_id, target_id, events, now)
        return get(export_id)


def _was_at(export: Export, target_id: str) -> bool:
    """Return whether an export ended before at this target, or at another one with the same URL, even a removed one."""
    entry, base_url = AuditEntryRow, TargetRow.get_by_id(target_id).base_url
    own = TargetRow.select(TargetRow.id).where(TargetRow.account == export.account_id, TargetRow.base_url == base_url)
    same_url = scalars(own)
    left = (entry.action == Transition.RETRY.value) & entry.reason.in_(same_url)
    return export.target_id in same_url or bool(entry.select().where(entry.subject_id == export.id, left).exists())


def _in_order(ids: Sequence[str]) -> list[Export]:
    found = {each.id: each for each in list_by_ids([*ids], "e.id")}
    return [found[each] for each in ids if each in found]


def _copy(export: Export) -> Draft:
    """Return a copy of an export. Its findings belong to the original only; new findings are counted at both."""
    ticket = WrittenTicket(
        JsonField.text(export.ticket),
        export.ticket_digest,
        JsonField.text(list(export.preview_problems)),
        SEVERITIES.index(export.severity),
        words_of(export.ticket),
        export_search.hosts_of_export(export.id),
    )
    total = None if export.findings is None else export.findings[0]
    return Draft(export.account_id, export.project_id, export.source, ticket, export.rule, total)


def _at(error: ValidationFailed, index: int) -> ValidationFailed:
    """Return the error of a target, with the path of the target's id in `target_ids`."""
    error.problems = tuple(replace(each, path=f"/target_ids/{index}") for each in error.problems)
    return error
