"""State changes of exports that requests, recoveries and redactions make: prepare, approve, dismiss, retry, redact.

This module and `storage.exports.claims_sql` are the only writers of an export's status. Every transition is a
compare-and-swap on the row and leaves an audit entry in the same transaction. Transitions that a request makes name the
version they read; those of a worker name the lease it holds. A stale version or lease updates no row.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from peewee import Case

from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.fields import problem
from schemas.base.timestamps import rfc3339, to_ms
from schemas.exports.record import Approval, Export, Preparation
from schemas.exports.state_machine import TRANSITIONS, ExportStatus, Transition, allows
from schemas.exports.ticket import MANUAL, REDACTED_TICKET, Source, delivery_body, digest
from schemas.targets.approval import ApprovalState, not_active, require_approvable
from schemas.targets.target import TargetStatus
from schemas.targets.validations import Validation
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import UNLIMITED, AccountLimits, Limited
from storage.accounts.accounts import require_webhooks
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db import identifiers
from storage.db.bulk_sql import insert_records, lock_row
from storage.db.engine import transaction
from storage.db.models import AttemptRow, ExportRow, ProjectRow, TargetRow
from storage.db.queries import for_update, tuples
from storage.exports.queries import get, recoverable
from storage.exports.rows import Draft, prepared_values
from storage.exports.transitions_sql import swap, target_state
from storage.secrets.default_secret import DefaultSecret
from storage.targets import targets, validations

#: Failed exports that one batch of a recovery reads from their index: 2 ms, in a transaction.
RECOVERY_EXAMINED: Final = 10_000
#: What becomes of the exports that wait for a target that was turned off.
_WHEN_OFF: Final = {TargetStatus.BLOCKED: Transition.BLOCK, TargetStatus.DISABLED: Transition.WITHDRAW}


def prepare(drafts: Sequence[Draft], now: datetime, actor: str, limits: AccountLimits = UNLIMITED) -> list[str]:
    """Store each draft as a `prepared` export and return the ids, in order; the caller holds the transaction.

    Raises ValidationFailed at an account's limit.
    """
    ids = [draft.export_id or identifiers.new_id(identifiers.EXPORT, now) for draft in drafts]
    insert_records(ExportRow, [prepared_values(export_id, draft, now) for export_id, draft in zip(ids, drafts, strict=True)])
    append_all([AuditEntry(to_ms(now), actor, "prepare", each, None, ExportStatus.PREPARED.value) for each in ids])
    for account_id, added in Counter(draft.account_id for draft in drafts).items():
        limits.require_room(account_id, Limited.WAITING_EXPORTS, added, now)
    return ids


def prepare_by_hand(
    preparation: Preparation, account_id: int, now: datetime, actor: str, limits: AccountLimits = UNLIMITED
) -> Export:
    """Store a ticket that a client wrote as a `prepared` export.

    Raises ValidationFailed on `/project_id`, or at the account's limit.
    """
    with transaction():
        project_id = preparation.project_id
        projects = ProjectRow.select().where(ProjectRow.id == project_id, ProjectRow.account == account_id)
        if project_id is not None and not projects.exists():
            raise ValidationFailed(problem("/project_id", "unknown_project"))
        source = Source(MANUAL, preparation.source_id or "")
        [export_id] = prepare([Draft(account_id, project_id, source, preparation.ticket)], now, actor, limits)
        return get(export_id)


def approve(export_id: str, account_id: int, approval: Approval, now: datetime, actor: str, policy: TargetPolicy) -> Export:
    """Freeze the ticket's bytes for a target and make the export due now; for the same target again, return it unchanged.

    A validation that fails, or a person who pauses the target, while this transaction runs counts as later: the export waits
    for the target. Raises ExportNotFound, Conflict for an illegal transition or another digest, ValidationFailed for the
    target or the preview, TargetUrlRefused if `policy` refuses the target's URL.
    """
    with transaction():
        export = _locked(export_id, account_id)
        if approval.ticket_digest not in {None, export.ticket_digest}:
            raise Conflict(f"The ticket of export {export.id} is not the one with this digest; read it again.")
        if export.target_id == approval.target_id:
            return export
        _require(Transition.APPROVE, export)
        _require_approvable(approval.target_id, account_id, policy)
        if export.preview_problems:
            raise ValidationFailed(problem("", "preview_not_safe"))
        body = delivery_body(export.id, approval.target_id, export.source, export.ticket, rfc3339(now))
        at = to_ms(now)
        changes = {
            "target_id": approval.target_id,
            "body": body,
            "approved_at": at,
            "due_at": at,
            "schedule_began_at": at,
            "snoozed_at": None,
            "snoozed_until": None,
            **_approver(actor),
        }
        _transition(export, Transition.APPROVE, now, actor, changes)
        return get(export_id, account_id)


def dismiss(export_id: str, account_id: int | None, now: datetime, actor: str) -> Export:
    """Dismiss a prepared export for good. Raises ExportNotFound, Conflict."""
    with transaction():
        export = _locked(export_id, account_id)
        _require(Transition.DISMISS, export)
        _transition(export, Transition.DISMISS, now, actor, {"finished_at": to_ms(now)})
        return get(export_id)


def restore(export_id: str, account_id: int | None, now: datetime, actor: str) -> Export:
    """Make a dismissed export prepared again. Raises ExportNotFound, Conflict, also for one that was redacted."""
    with transaction():
        export = _locked(export_id, account_id)
        _require(Transition.RESTORE, export)
        _require_unredacted(export)
        decided = ("finished_at", "status_reason", "dismissal_reason", "dismissal_note", "snoozed_at", "snoozed_until")
        _transition(export, Transition.RESTORE, now, actor, dict.fromkeys(decided))
        return get(export_id)


def retry(
    export_id: str,
    account_id: int | None,
    now: datetime,
    actor: str,
    validation: Validation | None = None,
    default: DefaultSecret | None = None,
    *,
    records_validation: bool = True,
) -> Export:
    """Make a failed or blocked export due again, with its whole schedule, for a target that is active.

    A blocked target is resumed with it if `validation`, made of its `blocked_url` just now, has passed and if a secret
    signs for it: its own or `default`. Without `records_validation`, a worker validates that target anew. A target whose
    last validation failed is tried. Raises ExportNotFound, Conflict, WebhooksForbidden, ValidationFailed for a target that
    is not active.
    """
    with transaction():
        export = _locked(export_id, account_id)
        _require(Transition.RETRY, export)
        _require_unredacted(export)
        if validation is not None:
            # Before the target's lock, in the order of a withdrawal.
            require_webhooks(export.account_id)
            _unblock(export, validation, now, actor, default, records_validation)
        # A target that is not active would let the export wait for a person.
        state = _state_of_target(export)
        if state.status != TargetStatus.ACTIVE:
            raise ValidationFailed(not_active(state.status, state.status_reason))
        restart = {"schedule_began_at": to_ms(now), "attempts_before": export.attempts}
        _transition(
            export,
            Transition.RETRY,
            now,
            actor,
            {"due_at": to_ms(now), "finished_at": None, "status_reason": None, **restart},
        )
        return get(export_id)


def recover_batch(
    target_id: str, since: datetime, after_id: str, limit: int, now: datetime, actor: str, reason: str
) -> tuple[str | None, int]:
    """Make up to `limit` exports of a target due again that failed or were blocked at `since` or later, as `retry` does.

    In the order of their ids, after `after_id`; redacted ones are left out, and an export that changes meanwhile stays as it
    is. Examines RECOVERY_EXAMINED failed exports at most. Return the last id examined, None where none is left, and how many
    are due again. The caller holds the transaction and has checked that the target accepts exports; `reason` is for the
    audit log.
    """
    failed = recoverable(target_id, 0, after_id).order_by(ExportRow.id)
    end = tuples(failed.offset(RECOVERY_EXAMINED - 1).limit(1))
    wanted = recoverable(target_id, since, after_id).where(ExportRow.id <= end[0][0] if end else True)
    found = [row[0] for row in tuples(wanted.order_by(ExportRow.id).limit(limit))]
    held = [(export_id, status) for export_id, status in _unredacted(found) if allows(Transition.RETRY, status)]
    _update(
        [export_id for export_id, _ in held],
        version=ExportRow.version + 1,
        status=TRANSITIONS[Transition.RETRY].target.value,
        status_reason=None,
        due_at=now,
        finished_at=None,
        schedule_began_at=now,
        attempts_before=ExportRow.attempts,
    )
    append_all([_entry(now, actor, Transition.RETRY, status, export_id, reason) for export_id, status in held])
    is_rest = len(found) < limit and bool(end)
    return (end[0][0] if is_rest else found[-1] if found else None), len(held)


def redact(export_ids: Sequence[str], now: datetime, actor: str) -> int:
    """Empty exports of their contents and let none be sent any more; return how many had contents until now.

    Exports still to be sent are dismissed or fail with the reason `redacted`; finished ones keep their status. A worker that
    holds one of them can write nothing back. The caller holds the transaction.
    """
    found = _unredacted(export_ids)
    ids, stub = [export_id for export_id, _ in found], REDACTED_TICKET.record()
    _update(
        ids,
        version=ExportRow.version + 1,
        ticket=stub,
        ticket_digest=digest(stub),
        preview_problems=[],
        body=Case(None, [(ExportRow.body.is_null(False), b"")]),
        provider_ticket_id=None,
        provider_ticket_url=None,
        redacted_at=now,
        # A manual export has a source id in its author's own words; other sources have identifiers of ours.
        source_id=Case(None, [(ExportRow.source_type == MANUAL, "redacted")], ExportRow.source_id),
    )
    if ids:
        AttemptRow.update(answer=None).where(AttemptRow.export.in_(ids)).execute()
    for transition in (Transition.DISMISS, Transition.WITHDRAW):
        _end(
            [export_id for export_id, status in found if allows(transition, status)],
            transition,
            "redacted",
            now,
            ExportRow.version,
        )
    append_all([_redact_entry(export_id, status, now, actor) for export_id, status in found])
    return len(found)


def end_waiting(target_ids: Sequence[str], now: datetime, worker: str, limit: int) -> int:
    """End up to `limit` exports that wait for targets that were turned off: blocked or failed, as the target is.

    An export that is being sent at this moment is left to its worker. The caller holds the transaction.
    """
    return sum(
        _end_waiting(off, transition, target_ids, now, worker, limit) for off, transition in _WHEN_OFF.items() if target_ids
    )


def shorten_leases(now: datetime, lease_s: float) -> int:
    """Let no claim lapse later than `lease_s` seconds after `now`, as some would after a clock was set back; count them."""
    until = now + timedelta(seconds=lease_s)
    is_late = (ExportRow.status == ExportStatus.DELIVERING.value) & (ExportRow.due_at > until)
    with transaction():
        # From target to target, as the index of what is due has it.
        return int(
            ExportRow.update(due_at=until).where(is_late, ExportRow.target.in_(TargetRow.select(TargetRow.id))).execute()
        )


def _end_waiting(
    off: TargetStatus, transition: Transition, target_ids: Sequence[str], now: datetime, worker: str, limit: int
) -> int:
    turned_off = TargetRow.select(TargetRow.id).where(TargetRow.id.in_(target_ids), TargetRow.status == off.value)
    is_unsent = (ExportRow.status != ExportStatus.DELIVERING.value) | (ExportRow.due_at <= now)
    waiting = ExportRow.select(ExportRow.id, ExportRow.status).where(
        ExportRow.target.in_(turned_off), ExportRow.due_at.is_null(False), is_unsent
    )
    found = tuples(for_update(waiting.limit(limit), "FOR UPDATE SKIP LOCKED"))
    reason = f"target_{off.value}"
    _end([export_id for export_id, _ in found], transition, reason, now, ExportRow.version + 1)
    append_all([_entry(now, worker, transition, status, export_id, reason) for export_id, status in found])
    return len(found)


def _end(export_ids: Sequence[str], transition: Transition, reason: str, now: datetime, version: Any) -> None:
    status = TRANSITIONS[transition].target.value
    _update(export_ids, version=version, status=status, status_reason=reason, lease=None, due_at=None, finished_at=now)


def _update(export_ids: Sequence[str], **changes: Any) -> None:
    """Write columns of exports that the caller has locked."""
    if export_ids:
        ExportRow.update(**changes).where(ExportRow.id.in_(export_ids)).execute()


def _unredacted(export_ids: Sequence[str]) -> list[tuple[str, ExportStatus]]:
    """Return which of these exports have contents, with their status, and keep others from changing them."""
    if not export_ids:
        return []
    wanted = ExportRow.select(ExportRow.id, ExportRow.status).where(
        ExportRow.redacted_at.is_null(), ExportRow.id.in_(export_ids)
    )
    return [(row[0], row[1]) for row in tuples(for_update(wanted.order_by(ExportRow.id)))]


def _locked(export_id: str, account_id: int | None) -> Export:
    """Return an export and keep others from changing it until the transaction ends, so that a repeat sees the change."""
    if identifiers.is_id(identifiers.EXPORT, export_id):
        lock_row(ExportRow, export_id)
    return get(export_id, account_id)


def _require(transition: Transition, export: Export) -> None:
    if not allows(transition, export.status):
        sources = " or ".join(sorted(TRANSITIONS[transition].sources))
        raise Conflict(f"Export {export.id} is {export.status.value}; {transition.value} needs {sources}.")


def _require_unredacted(export: Export) -> None:
    if ExportRow.select().where(ExportRow.id == export.id, ExportRow.redacted_at.is_null(False)).exists():
        raise Conflict(f"Export {export.id} was redacted; nothing is left of it to deliver.")


def _approver(actor: str) -> dict[str, Any]:
    """Return the columns that name who approves: a user or a rule; the operator at the command line is neither."""
    kind, _, actor_id = actor.partition(":")
    return {
        "approved_by_user_id": int(actor_id) if kind == "user" and actor_id.isdecimal() else None,
        "approved_by_rule_id": actor_id if kind == "rule" else None,
    }


def _require_approvable(target_id: str, account_id: int, policy: TargetPolicy) -> None:
    found = target_state(target_id, account_id)
    if found is None:
        raise ValidationFailed(problem("/target_id", "unknown_target"))
    base_url, state = found
    require_approvable(target_id, base_url, state, policy)


def _state_of_target(export: Export) -> ApprovalState:
    found = target_state(export.target_id, export.account_id)
    assert found is not None  # noqa: S101 - an export that failed keeps its target
    return found[1]


def _unblock(
    export: Export,
    validation: Validation,
    now: datetime,
    actor: str,
    default: DefaultSecret | None,
    records_validation: bool,
) -> None:
    """Resume the blocked target of an export whose address may be used again; one in another state stays as it is."""
    target_id = str(export.target_id)
    if not validation.has_passed:
        raise ValidationFailed(not_active(TargetStatus.BLOCKED, validation.reason))
    # Either also locks the target until the transaction ends.
    if records_validation:
        targets.record_validation(target_id, export.account_id, validation, now, actor)
    else:
        validations.request(target_id, export.account_id, now, actor)
    if _state_of_target(export).status == TargetStatus.BLOCKED:
        targets.change_status(target_id, "resume", now, actor, Transition.RETRY, default=default)


def _transition(export: Export, transition: Transition, now: datetime, actor: str, changes: dict[str, Any]) -> None:
    """Compare and swap by version. Another request for the same export, or a worker's claim, may have won."""
    if not swap(export, {"status": TRANSITIONS[transition].target.value, **changes}):
        raise Conflict(f"Export {export.id} changed meanwhile; read it again.")
    append_all([_entry(now, actor, transition, export.status, export.id)])


def _entry(
    now: datetime, actor: str, transition: Transition, before: ExportStatus, export_id: str, reason: str | None = None
) -> AuditEntry:
    return AuditEntry(
        to_ms(now), actor, transition.value, export_id, before.value, TRANSITIONS[transition].target.value, reason
    )


def _redact_entry(export_id: str, before: ExportStatus, now: datetime, actor: str) -> AuditEntry:
    """Name the transition that the redaction made, or `redact` where the export was finished and stays so."""
    transition = next((each for each in (Transition.DISMISS, Transition.WITHDRAW) if allows(each, before)), None)
    if transition is None:
        return AuditEntry(to_ms(now), actor, "redact", export_id, before.value, before.value, "redacted")
    return _entry(now, actor, transition, before, export_id, "redacted")
