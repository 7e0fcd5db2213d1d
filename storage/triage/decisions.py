"""Decisions of people: edit, dismiss, restore, snooze; and one decision on many exports.

Each decision is one transaction, which first locks the export, and appends an audit entry. A repeated decision changes
nothing and returns the export, so that a double click is no error.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from schemas.base.errors import ValidationFailed, WrongStatus
from schemas.base.fields import problem
from schemas.base.timestamps import format_rfc3339_or_none, from_ms, to_ms
from schemas.exports.decisions import DismissalReason, Snooze
from schemas.exports.record import Approval, Export
from schemas.exports.state_machine import ExportStatus, Transition
from schemas.triage.bulk_decisions import BulkAction, BulkDecision, DecisionResult, ExportReference
from schemas.triage.decision_forms import DismissalRequest, Edit
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import UNLIMITED, AccountLimits, Limited
from storage.db import identifiers
from storage.db.columns import JsonField
from storage.db.engine import transaction
from storage.db.models import ExportRow
from storage.exports import groups_sql, transitions
from storage.exports.queries import get
from storage.exports.rows import written_records
from storage.exports.search import export_search
from storage.exports.transitions_sql import NOT_SNOOZED, LockedExport, write_locked
from storage.triage import groups

#: The parts of a ticket that an edit can replace.
EDITABLE: Final = ("title", "description", "severity", "labels")


def decide(
    decision: BulkDecision,
    wanted: Sequence[ExportReference],
    account_id: int,
    now: datetime,
    actor: str,
    policy: TargetPolicy,
    limits: AccountLimits,
    reason: str | None = None,
) -> list[DecisionResult]:
    """Decide on exports in one transaction; the results are in the order of `wanted`. `reason` is for the audit log.

    An export whose result is an error is unchanged. Raises ValidationFailed at the account's limit.
    """
    with transaction():
        if decision.action is BulkAction.APPROVE:
            approval = Approval(str(decision.target_id), None)
            return transitions.approve_many(wanted, account_id, approval, now, actor, policy, reason)
        if decision.action is BulkAction.DISMISS:
            dismissal = DismissalRequest(decision.reason, decision.note)
            return transitions.dismiss_many(wanted, account_id, now, actor, dismissal, reason)
        if decision.action is BulkAction.RETRY:
            return transitions.retry_many(wanted, account_id, now, actor, reason)
        return restore_many(wanted, account_id, now, actor, reason, limits)


def edit(export_id: str, account_id: int | None, now: datetime, actor: str, edited: Edit) -> Export:
    """Replace parts of a prepared ticket, and check the new ticket for forbidden content; keep the original.

    Raises ExportNotFound, Conflict for another status or another digest.
    """
    with transaction():
        export = transitions.lock(export_id, account_id)
        _require_prepared("edit", export)
        if error := transitions.digest_error(edited.ticket_digest, export):
            raise error
        ticket = _edited(export.ticket, edited)
        if ticket == export.ticket:
            return export
        original = export.original_ticket or export.ticket
        is_original = all(ticket[name] == original[name] for name in EDITABLE)
        [written] = written_records([ticket])
        original_ticket = None if is_original else JsonField.text(original)
        write_locked([{"id": export_id, **written.columns()}], {"original_ticket": original_ticket})
        export_search.replace({export_id: (written.words, written.hosts)})
        transitions.append_entry(export, "edit", now, actor)
        return get(export_id)


def dismiss(
    export_id: str,
    account_id: int | None,
    now: datetime,
    actor: str,
    reason: DismissalReason | None = None,
    note: str | None = None,
    ticket_digest: str | None = None,
) -> Export:
    """Dismiss a prepared export; an export that was dismissed with the same reason and note is returned unchanged.

    Raises ExportNotFound, Conflict, TicketChanged if `ticket_digest` is given and is not the ticket's.
    """
    with transaction():
        export = transitions.lock(export_id, account_id)
        dismissal = export.dismissal
        if dismissal is None or (dismissal.reason, dismissal.note) != (reason, note):
            wanted = [ExportReference(export_id, ticket_digest)]
            results = transitions.dismiss_many(wanted, account_id, now, actor, DismissalRequest(reason, note))
            transitions.require_changed(results, Transition.DISMISS)
        return get(export_id)


def restore(
    export_id: str,
    account_id: int | None,
    now: datetime,
    actor: str,
    limits: AccountLimits = UNLIMITED,
    version: int | None = None,
) -> Export:
    """Make a dismissed export prepared again, or end a snooze; a prepared export without one is returned unchanged.

    Raises ExportNotFound; Conflict, also for a redacted export; ValidationFailed at the account's limit, or if `version` is
    given and is not the export's.
    """
    with transaction():
        [result] = restore_many([ExportReference(export_id, version=version)], account_id, now, actor, limits=limits)
        if result.error is not None:
            raise result.error
        return get(export_id)


def restore_many(
    wanted: Sequence[ExportReference],
    account_id: int | None,
    now: datetime,
    actor: str,
    reason: str | None = None,
    limits: AccountLimits = UNLIMITED,
) -> list[DecisionResult]:
    """Make dismissed exports prepared again, and end snoozes; the results are in the order of `wanted`.

    A restored group includes the places that joined it meanwhile. New places join it, unless the project has another open
    group of its rule. `reason` is for the audit log. Raises ValidationFailed at an account's limit.
    """
    with transaction():
        # Before the exports, in the same order as a postback.
        groups_sql.lock_projects_of(each.id for each in wanted if identifiers.is_id(identifiers.EXPORT, each.id))
        results, held = transitions.check_transition(
            wanted, account_id, Transition.RESTORE, _is_waiting, transitions.redaction_error, is_allowed=_is_snoozed
        )
        dismissed = [each for each in held if not _is_snoozed(each)]
        # No rule may decide again on an export that a person has restored.
        undone = ("finished_at", "status_reason", "dismissal_reason", "dismissal_note", "approved_by_rule_id")
        transitions.transition_many(dismissed, Transition.RESTORE, now, actor, reason, **dict.fromkeys(undone))
        transitions.reopen_groups(dismissed)
        groups.update_tickets(dismissed)
        snoozed = [each for each in held if _is_snoozed(each)]
        transitions.transition_many(snoozed, Transition.RESTORE, now, actor, reason, **NOT_SNOOZED)
        # A snoozed export has always counted as waiting.
        for account, number in Counter(each.account_id for each in dismissed).items():
            limits.require_room(account, Limited.WAITING_EXPORTS, number, now)
        return results


def snooze(export_id: str, account_id: int | None, now: datetime, actor: str, until: datetime | None) -> Export:
    """Snooze a prepared export until a time, or until one of its findings is seen again; approval ends it.

    Raises ExportNotFound, Conflict, ValidationFailed on `/until` for a time that is not in the future.
    """
    if until is not None:
        # Rounded as stored, so that a repeated request is recognized.
        until = from_ms(to_ms(until))
        if until <= now:
            raise ValidationFailed(problem("/until", "in_the_past"))
    with transaction():
        export = transitions.lock(export_id, account_id)
        _require_prepared("snooze", export)
        if export.snooze == Snooze(until):
            return export
        transitions.update([export_id], version=ExportRow.version + 1, snoozed_at=now, snoozed_until=until)
        transitions.append_entry(export, "snooze", now, actor, format_rfc3339_or_none(until))
        return get(export_id)


def _edited(ticket: dict[str, Any], edited: Edit) -> dict[str, Any]:
    """Return a ticket with its new parts; if the severity changes, so does the label that names it."""
    parts = edited.parts()
    if edited.severity is not None and edited.labels is None:
        old, new = f"severity:{ticket['severity']}", f"severity:{edited.severity}"
        parts["labels"] = [new if label == old else label for label in ticket["labels"]]
    return {**ticket, **parts}


def _require_prepared(action: str, export: Export) -> None:
    if export.status is not ExportStatus.PREPARED:
        raise WrongStatus(f"Export {export.id} is {export.status.value}; {action} needs the status prepared.")


def _is_waiting(export: LockedExport) -> bool:
    return export.status is ExportStatus.PREPARED and export.snoozed_at is None


def _is_snoozed(export: LockedExport) -> bool:
    return export.status is ExportStatus.PREPARED and export.snoozed_at is not None
