"""State changes of exports by requests, recoveries and redactions: prepare, approve, dismiss, retry, redact.

Only this module, `transitions_sql` and `claims_sql` write an export's status; approval rules (`rules.rule_evaluation`) and
the other decisions (`storage.triage`) call them. A transition in this module locks its exports, checks their status, and
appends an audit entry in the same transaction. Workers write results with their lease (`claims_sql`); a stale lease updates
no row.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from peewee import SQL, Case, fn

from schemas.base.errors import Conflict, ExportNotFound, RiskRelayError, TicketChanged, ValidationFailed, WrongStatus
from schemas.base.fields import problem
from schemas.base.timestamps import to_ms
from schemas.exports.record import Approval, Export, Preparation
from schemas.exports.state_machine import FINISHED, IN_PROGRESS, TRANSITIONS, ExportStatus, Transition, allows
from schemas.exports.tickets.group_ticket import is_group
from schemas.exports.tickets.ticket import MANUAL, REDACTED_TICKET, Source, digest
from schemas.targets.approval import not_active, require_approvable
from schemas.targets.target import TargetStatus
from schemas.targets.validations import Validation
from schemas.trackers.failures import CONFIGURATION_CODES
from schemas.trackers.registry import GENERIC_WEBHOOK, LONGEST_LOOKUP_S
from schemas.triage.bulk_decisions import CHANGED, DecisionResult, ExportReference
from schemas.triage.decision_forms import DismissalRequest
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import UNLIMITED, AccountLimits, Limited
from storage.accounts.accounts import require_webhooks
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db import identifiers
from storage.db.bulk_sql import insert_together, lock_row
from storage.db.columns import read
from storage.db.engine import transaction
from storage.db.models import AttemptRow, ExportRow, ProjectRow, TargetRow, TicketEventRow
from storage.db.queries import for_update, scalars, tuples
from storage.exports import transitions_sql
from storage.exports.events import deliveries
from storage.exports.events.redaction import redact_events
from storage.exports.queries import get, get_all, recoverable
from storage.exports.rows import Draft, WrittenTicket, prepared_values, written
from storage.exports.rules.rule_evaluation import LEFT_TO_WORKERS, ApprovalRules
from storage.exports.search import export_search
from storage.exports.search.export_search import SearchEntry
from storage.exports.transitions_sql import LockedExport, transition_entry
from storage.secrets.default_secret import DefaultSecret
from storage.targets import targets, validations

#: How many failed exports one batch of a recovery reads from their index: 2 ms, in a transaction.
RECOVERY_EXAMINED: Final = 10_000
#: The transition of exports that wait for a target, by the status with which the target was turned off.
_WHEN_OFF: Final = {TargetStatus.BLOCKED: Transition.BLOCK, TargetStatus.DISABLED: Transition.WITHDRAW}

#: The columns that a tracker, or the response of a webhook, fills.
PROVIDER_TICKET: Final = ("provider_ticket_id", "provider_ticket_url")
#: How many exports become due in one transaction when a target is resumed: a quarter of a second, in a request.
REQUEUED_AT_ONCE: Final = 5000
#: The columns that a redaction sets to NULL; `rule` may be the title of an issue without a code.
_ERASED: Final = ("original_ticket", "dismissal_note", "open_group", "rule", *PROVIDER_TICKET, "events")

#: The reason in the audit entries of exports that a tracker's configuration error had blocked and that are due again.
RESUMED: Final = "target_resumed"

#: The statuses of an approved export that was delivered, or will be delivered without another decision of a person.
_ON_ITS_WAY: Final = frozenset({*IN_PROGRESS, ExportStatus.EXPORTED})

#: The statuses in which these transitions have nothing left to do; `approve` compares the target instead.
_DECIDED: Final[Mapping[Transition, Collection[ExportStatus]]] = {
    Transition.DISMISS: {ExportStatus.DISMISSED},
    Transition.RETRY: IN_PROGRESS,
}


class ExportState(NamedTuple):
    """An export and its status."""

    id: str
    status: ExportStatus


Locked = LockedExport | ExportState


def prepare(
    drafts: Sequence[Draft],
    now: datetime,
    actor: str,
    limits: AccountLimits = UNLIMITED,
    rules: ApprovalRules | None = LEFT_TO_WORKERS,
) -> list[str]:
    """Store each draft as a `prepared` export, apply the approval rules, and return the ids in the order of `drafts`.

    If `rules` is None, the caller applies them. The caller holds the transaction. Raises ValidationFailed at an account's
    limit.
    """
    ids = insert(drafts, now, actor)
    for account_id in {draft.account_id: None for draft in drafts}:
        own = [export_id for export_id, draft in zip(ids, drafts, strict=True) if draft.account_id == account_id]
        limits.require_room(account_id, Limited.WAITING_EXPORTS, len(own), now)
        if rules is not None:
            rules.apply(account_id, own, now)
    return ids


def insert(drafts: Sequence[Draft], now: datetime, actor: str) -> list[str]:
    """Store each draft as a `prepared` export with its audit entry, and return the ids in the order of `drafts`."""
    ids = [draft.export_id or identifiers.new_id(identifiers.EXPORT, now) for draft in drafts]
    tickets = [draft.ticket if isinstance(draft.ticket, WrittenTicket) else written([draft.ticket])[0] for draft in drafts]
    prepared = [*zip(ids, drafts, tickets, strict=True)]
    records = [prepared_values(export_id, draft, ticket, now) for export_id, draft, ticket in prepared]
    entries = [
        SearchEntry(each, draft.account_id, ticket.words, ticket.hosts, draft.rule) for each, draft, ticket in prepared
    ]
    insert_together((ExportRow, records), *export_search.records_of(entries))
    append_all([AuditEntry(to_ms(now), actor, "prepare", each, None, ExportStatus.PREPARED.value) for each in ids])
    return ids


def prepare_by_hand(
    preparation: Preparation,
    account_id: int,
    now: datetime,
    actor: str,
    limits: AccountLimits = UNLIMITED,
    rules: ApprovalRules = LEFT_TO_WORKERS,
) -> Export:
    """Store a ticket that a client wrote as a `prepared` export, and apply the approval rules.

    Raises ValidationFailed on `/project_id`, or at the account's limit.
    """
    with transaction():
        project_id = preparation.project_id
        projects = ProjectRow.select().where(ProjectRow.id == project_id, ProjectRow.account == account_id)
        if project_id is not None and not projects.exists():
            raise ValidationFailed(problem("/project_id", "unknown_project"))
        source = Source(MANUAL, preparation.source_id or "")
        [export_id] = prepare([Draft(account_id, project_id, source, preparation.ticket)], now, actor, limits, rules)
        return get(export_id)


def approve(export_id: str, account_id: int, approval: Approval, now: datetime, actor: str, policy: TargetPolicy) -> Export:
    """Freeze the ticket's bytes for a target and make the export due now; unchanged if approved for it before.

    If a validation fails or a person pauses the target during this transaction, it counts as later: the export waits for the
    target. Raises ExportNotFound, Conflict for an illegal transition or another digest, ValidationFailed for the target or
    the preview, TargetUrlRefused if `policy` refuses the target's URL.
    """
    return approve_all([(export_id, approval)], account_id, now, actor, policy)[0]


def approve_all(
    approvals: Sequence[tuple[str, Approval]], account_id: int, now: datetime, actor: str, policy: TargetPolicy
) -> list[Export]:
    """Approve distinct exports as `approve` does one, all or none; all approvals have the same target and events."""
    wanted = [ExportReference(export_id, approval.ticket_digest) for export_id, approval in approvals]
    with transaction():
        for result in approve_many(wanted, account_id, approvals[0][1], now, actor, policy, accepts_ended=True):
            if result.error is not None:
                raise result.error
        return get_all([each.id for each in wanted], account_id)


def approve_many(
    wanted: Sequence[ExportReference],
    account_id: int,
    approval: Approval,
    now: datetime,
    actor: str,
    policy: TargetPolicy,
    reason: str | None = None,
    *,
    accepts_ended: bool = False,
) -> list[DecisionResult]:
    """Approve exports of an account for a target, as `approve` does one; the results are in the order of `wanted`.

    The digests are those in `wanted`. If the result of an export has an `error`, the export is unchanged. `reason` is for
    the audit log. With `accepts_ended`, an export that failed or was blocked at the target counts as approved already, so
    that a repeated request is no error.
    """
    target_id = approval.target_id
    with transaction():
        target_error = approval_errors([target_id], account_id, policy).get(target_id)

        def refusal(export: LockedExport) -> RiskRelayError | None:
            unsafe = ValidationFailed(problem("", "preview_not_safe")) if export.preview_problems else None
            return target_error or unsafe

        def is_approved(export: LockedExport) -> bool:
            # In a bulk approval, an export that failed at this target is an error, because it needs a retry.
            return export.target_id == target_id and (accepts_ended or export.status in _ON_ITS_WAY)

        results, held = check_transition(wanted, account_id, Transition.APPROVE, is_approved, refusal)
        approved = [(each, target_id) for each in held]
        transitions_sql.approve_locked(approved, now, actor, reason, covers_events=approval.events)
        return results


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
    """Make a failed or blocked export due again, with its whole schedule, for an active target.

    A blocked target is resumed too if `validation`, a new one of its `blocked_url`, has passed, and if it has a secret for
    signatures: its own or `default`. Without `records_validation`, a worker validates that target anew. If the last
    validation of an active target failed, the export is still due. Raises ExportNotFound, Conflict, WebhooksForbidden,
    ValidationFailed for a target that is not active.
    """
    wanted = [ExportReference(export_id)]
    with transaction():
        if validation is not None:
            results, held = check_transition(wanted, account_id, Transition.RETRY, refusal=redaction_error)
            require_changed(results, Transition.RETRY)
            # Before the target, because `account set --webhooks off` locks in this order: another order could deadlock.
            require_webhooks(held[0].account_id)
            if not validation.has_passed:
                raise ValidationFailed(not_active(TargetStatus.BLOCKED, validation.reason))
            target_id = str(held[0].target_id)
            # Both calls also lock the target until the transaction ends.
            if records_validation:
                targets.record_validation(target_id, held[0].account_id, validation, now, actor)
            else:
                validations.request(target_id, held[0].account_id, now, actor)
            if transitions_sql.lock_targets([target_id])[target_id].status == TargetStatus.BLOCKED:
                targets.change_status(target_id, "resume", now, actor, Transition.RETRY, default=default)
                requeue_blocked(target_id, now, actor, export_id)
                deliveries.make_due(target_id, now)
        require_changed(retry_many(wanted, account_id, now, actor), Transition.RETRY)
        return get(export_id)


def retry_many(
    wanted: Sequence[ExportReference], account_id: int | None, now: datetime, actor: str, reason: str | None = None
) -> list[DecisionResult]:
    """Make failed or blocked exports due again if their targets are active; the results are in the order of `wanted`.

    `reason` is for the audit log.
    """
    with transaction():
        exports = lock_many([each.id for each in wanted], account_id)
        found = transitions_sql.lock_targets({each.target_id for each in exports.values() if each.target_id is not None})

        def refusal(export: LockedExport) -> RiskRelayError | None:
            # If the target is not active, the export would wait until a person resumes it.
            target = found.get(str(export.target_id))
            if target is None:
                return redaction_error(export) or ValidationFailed(problem("/target_id", "target_removed"))
            inactive = None if target.status == TargetStatus.ACTIVE else not_active(target.status, target.status_reason)
            return redaction_error(export) or (ValidationFailed(inactive) if inactive else None)

        results, held = check_transition(wanted, account_id, Transition.RETRY, refusal=refusal, exports=exports)
        transition_many(held, Transition.RETRY, now, actor, reason, **restart(now))
        return results


def dismiss_many(
    wanted: Sequence[ExportReference],
    account_id: int | None,
    now: datetime,
    actor: str,
    dismissal: DismissalRequest,
    reason: str | None = None,
) -> list[DecisionResult]:
    """Dismiss prepared exports; the results are in the order of `wanted`.

    `reason` is for the audit log; by default it is the reason of the dismissal.
    """
    changes = transitions_sql.dismissal_columns(dismissal.reason, dismissal.note, now)
    with transaction():
        results, held = check_transition(wanted, account_id, Transition.DISMISS)
        transition_many(held, Transition.DISMISS, now, actor, reason or changes["dismissal_reason"], **changes)
        return results


def recover_batch(
    target_id: str, since: datetime, after_id: str, limit: int, now: datetime, actor: str, reason: str
) -> tuple[str | None, int]:
    """Make up to `limit` exports of a target due again that failed or were blocked at `since` or later, as `retry` does.

    In the order of their ids, after `after_id`. Redacted exports are left out; an export that changes meanwhile is not
    changed here. Examines RECOVERY_EXAMINED failed exports at most. Returns the last id that was examined, or None if no
    export is left, and how many are due again. The caller holds the transaction and has checked that the target accepts
    exports; `reason` is for the audit log.
    """
    failed = recoverable(target_id, after_id=after_id).order_by(ExportRow.id)
    end = tuples(failed.offset(RECOVERY_EXAMINED - 1).limit(1))
    wanted = recoverable(target_id, since, after_id).where(ExportRow.id <= end[0][0] if end else True)
    found = scalars(wanted.order_by(ExportRow.id).limit(limit))
    unredacted = _unredacted(found, ExportRow.target == target_id)
    held = [each for each in unredacted if allows(Transition.RETRY, each.status)]
    transition_many(held, Transition.RETRY, now, actor, reason, **restart(now))
    is_rest = len(found) < limit and bool(end)
    return (end[0][0] if is_rest else found[-1] if found else None), len(held)


def redact(export_ids: Sequence[str], now: datetime, actor: str) -> int:
    """Delete the contents of exports, so that they are never sent again; return how many had contents before.

    Exports that were not sent yet are dismissed or fail with the reason `redacted`; finished ones keep their status. A
    worker that holds one of them can no longer write a result. The caller holds the transaction.
    """
    found = _unredacted(export_ids)
    ids, stub = [each.id for each in found], REDACTED_TICKET.record()
    redact_events(ids, now)
    update(
        ids,
        version=ExportRow.version + 1,
        ticket=stub,
        ticket_digest=digest(stub),
        preview_problems=[],
        body=Case(None, [(ExportRow.body.is_null(False), b"")]),
        redacted_at=now,
        **dict.fromkeys((*transitions_sql.NOT_SNOOZED, *_ERASED)),
        # The author of a manual export chose its source id freely; other sources have our own identifiers.
        source_id=Case(None, [(ExportRow.source_type == MANUAL, "redacted")], ExportRow.source_id),
    )
    export_search.remove(ids)
    if ids:
        AttemptRow.update(answer=None).where(AttemptRow.export.in_(ids)).execute()
    for transition in (Transition.DISMISS, Transition.WITHDRAW):
        unsent = [each for each in found if allows(transition, each.status)]
        # `update` above has already incremented the version.
        ended = {**_ended("redacted", now), "version": ExportRow.version}
        transition_many(unsent, transition, now, actor, "redacted", **ended)
    kept = [(each.id, each.status.value) for each in found if each.status in FINISHED]
    append_all([AuditEntry(to_ms(now), actor, "redact", each, status, status, "redacted") for each, status in kept])
    return len(found)


def end_waiting(target_ids: Sequence[str], now: datetime, worker: str, limit: int) -> int:
    """End up to `limit` exports that wait for targets that were turned off: blocked or failed, as the target is.

    An export that is being sent now is left to its worker. The caller holds the transaction.
    """
    if not target_ids:
        return 0
    number = 0
    is_unsent = (ExportRow.status != ExportStatus.DELIVERING.value) | (ExportRow.due_at <= now)
    waiting = ExportRow.select(ExportRow.id, ExportRow.status, ExportRow.target)
    waiting = waiting.where(ExportRow.due_at.is_null(False), is_unsent).limit(limit)
    for off, transition in _WHEN_OFF.items():
        turned_off = TargetRow.select(TargetRow.id).where(TargetRow.id.in_(target_ids), TargetRow.status == off.value)
        found = tuples(for_update(waiting.where(ExportRow.target.in_(turned_off)), "FOR UPDATE SKIP LOCKED"))
        # A worker may have sent the request before it died.
        update([each for each, status, _ in found if status == ExportStatus.DELIVERING], is_outcome_unknown=True)
        reasons = _reasons_of({target_id for _, _, target_id in found}, off)
        for reason in set(reasons.values()):
            ended = [ExportState(each, status) for each, status, target_id in found if reasons[target_id] == reason]
            transition_many(ended, transition, now, worker, reason, **_ended(reason, now))
        number += len(found)
    return number


def requeue_blocked(target_id: str, now: datetime, actor: str, except_id: str | None = None) -> int:
    """Make exports of a resumed target due again that a tracker's configuration error blocked, as `retry` does.

    Returns how many, at most REQUEUED_AT_ONCE; a validation that passes makes the rest due. Does not change `except_id`, nor
    an export that another transaction has locked. The caller holds the transaction.
    """
    is_blocked = (ExportRow.status == ExportStatus.BLOCKED.value) & ExportRow.status_reason.in_(sorted(CONFIGURATION_CODES))
    blocked = (
        recoverable(target_id).select(ExportRow.id, ExportRow.status).where(is_blocked, ExportRow.id != (except_id or ""))
    )
    # A retry locks its export first, then waits for the target, which the caller has locked: to wait for it would deadlock.
    due = for_update(blocked.order_by(ExportRow.id).limit(REQUEUED_AT_ONCE), "FOR NO KEY UPDATE SKIP LOCKED")
    held = read(ExportState, due)
    transition_many(held, Transition.RETRY, now, actor, RESUMED, **restart(now))
    return len(held)


def shorten_leases(now: datetime, lease_s: float) -> int:
    """Shorten leases to `lease_s` seconds after `now`; return how many. After a clock was set back, some would be longer."""
    until = now + timedelta(seconds=lease_s)
    is_late = (ExportRow.status == ExportStatus.DELIVERING.value) & (ExportRow.due_at > until)
    with transaction():
        # Target by target, which is the order of the index of due exports.
        late = ExportRow.update(due_at=until).where(is_late, ExportRow.target.in_(TargetRow.select(TargetRow.id)))
        return int(late.execute())


def lock(export_id: str, account_id: int | None) -> Export:
    """Return an export, and prevent changes of it until the transaction ends; a repeated request then sees this change.

    Raises ExportNotFound.
    """
    if identifiers.is_id(identifiers.EXPORT, export_id):
        lock_row(ExportRow, export_id)
    return get(export_id, account_id)


def lock_many(export_ids: Iterable[str], account_id: int | None) -> dict[str, LockedExport]:
    """Return the exports that exist, by id; with `account_id`, only those of that account.

    Nobody else can change them until the transaction ends, so that a repeated request sees the changes.
    """
    ids = [each for each in export_ids if identifiers.is_id(identifiers.EXPORT, each)]
    return {each.id: each for each in transitions_sql.lock_exports(ids, account_id)}


def reopen_groups(exports: Sequence[LockedExport]) -> None:
    """Reopen the groups of restored exports: the newest of each project and rule, unless another is open or all is fixed.

    The caller has locked the projects, so that no postback begins a group meanwhile.
    """
    in_order = sorted(exports, key=lambda each: each.id)
    newest = {(each.project_id, each.rule): each.id for each in in_order if is_group(each.ticket)}
    if newest:
        other = ExportRow.alias("other")
        taken = other.select(SQL("1")).where(other.project == ExportRow.project, other.open_group == ExportRow.rule)
        is_open = ExportRow.findings_fixed.is_null() | (ExportRow.findings_fixed < ExportRow.findings_total)
        free = ExportRow.id.in_([*newest.values()]) & ~fn.EXISTS(taken) & is_open
        ExportRow.update(open_group=ExportRow.rule).where(free).execute()


def require_changed(results: Sequence[DecisionResult], transition: Transition) -> None:
    """Raise the error of the only result; if its export already had the wanted state, the transition is illegal."""
    [result] = results
    if result.error is not None:
        raise result.error
    if not result.is_changed and result.status is not None:
        raise _conflict(transition, result.id, result.status)


def append_entry(export: Export, action: str, now: datetime, actor: str, reason: str | None = None) -> None:
    """Append the audit entry of a decision that does not change the status of an export."""
    status = export.status.value
    append_all([AuditEntry(to_ms(now), actor, action, export.id, status, status, reason)])


def check_transition(
    wanted: Sequence[ExportReference],
    account_id: int | None,
    transition: Transition,
    is_decided: Callable[[LockedExport], bool] | None = None,
    refusal: Callable[[LockedExport], RiskRelayError | None] = lambda _: None,
    exports: Mapping[str, LockedExport] | None = None,
    is_allowed: Callable[[LockedExport], bool] = lambda _: False,
) -> tuple[list[DecisionResult], list[LockedExport]]:
    """Return the result of `transition` for each export, and the locked exports that the caller must change.

    `refusal` returns the error of an export in a legal state. `is_decided` says whether an export already has the wanted
    state; by default, its status decides. `is_allowed` accepts states that are legal besides those of the transition.
    """
    exports = lock_many([each.id for each in wanted], account_id) if exports is None else exports
    after, already = TRANSITIONS[transition].target, _DECIDED.get(transition, ())
    results: list[DecisionResult] = []
    for reference in wanted:
        export = exports.get(reference.id)
        error: RiskRelayError | None
        if export is None:
            error = ExportNotFound()
        elif stale := digest_error(reference.ticket_digest, export):
            error = stale
        elif is_decided(export) if is_decided else export.status in already:
            results.append(DecisionResult(export.id, export.status))
            continue
        elif reference.version not in {None, export.version}:
            error = ValidationFailed(problem("", CHANGED))
        elif not (is_allowed(export) or allows(transition, export.status)):
            error = _conflict(transition, export.id, export.status)
        else:
            error = refusal(export)
        results.append(DecisionResult(reference.id, after if error is None else None, is_changed=error is None, error=error))
    return results, [exports[each.id] for each in results if each.is_changed]


def redaction_error(export: LockedExport) -> Conflict | None:
    """Return the error of an export that was redacted, or None."""
    if export.redacted_at is None:
        return None
    return Conflict(f"Export {export.id} was redacted; nothing is left of it to deliver.")


def approval_errors(target_ids: Sequence[str], account_id: int, policy: TargetPolicy) -> dict[str, ValidationFailed]:
    """Return, by target id, why an account's exports cannot be approved for a target now; omits targets without an error."""
    found = transitions_sql.lock_targets(target_ids)
    errors: dict[str, ValidationFailed] = {}
    for target_id in target_ids:
        target = found.get(target_id)
        if target is None or target.account_id != account_id:
            errors[target_id] = ValidationFailed(problem("/target_id", "unknown_target"))
            continue
        try:
            require_approvable(target_id, target.base_url, target.state, policy)
        except ValidationFailed as refused:
            errors[target_id] = refused
    return errors


def digest_error(ticket_digest: str | None, export: Export | LockedExport) -> TicketChanged | None:
    """Return the error of a digest that does not match the ticket; None if it matches or is not given."""
    if ticket_digest in {None, export.ticket_digest}:
        return None
    return TicketChanged(f"The ticket of export {export.id} is not the one with this digest; read it again.")


def mark_outcomes_unknown() -> None:
    """Make workers search for an issue before they create one, for every export that is not exported: a backup was restored.

    A tracker may have received the issue since the backup, by an approval from before or after the backup.
    """
    has_tracker = TargetRow.select(TargetRow.account).where(TargetRow.provider_key != GENERIC_WEBHOOK)
    is_unsure = (ExportRow.status != ExportStatus.EXPORTED.value) & ExportRow.account.in_(has_tracker)
    ExportRow.update(is_outcome_unknown=True).where(is_unsure).execute()
    # The same for comments that events add.
    TicketEventRow.update(is_outcome_unknown=True).where(TicketEventRow.due_at.is_null(False)).execute()


def restart(now: datetime) -> dict[str, Any]:
    """Return the columns that make an ended export due again, with its whole schedule.

    The export is due now. If its issue may exist, it is due when every tracker would find the issue.
    """
    found_from = ExportRow.finished_at + LONGEST_LOOKUP_S * 1000
    is_early = ExportRow.is_outcome_unknown & (found_from > to_ms(now))
    due_at = Case(None, [(is_early, found_from)], to_ms(now))
    restarted = {"due_at": due_at, "schedule_began_at": now, "attempts_before": ExportRow.attempts}
    return {**restarted, "finished_at": None, "status_reason": None}


def update(export_ids: Sequence[str], **changes: Any) -> None:
    """Write columns of exports that the caller has locked."""
    if export_ids:
        ExportRow.update(**changes).where(ExportRow.id.in_(export_ids)).execute()


def transition_many(
    exports: Sequence[Locked], transition: Transition, now: datetime, actor: str, reason: str | None, **changes: Any
) -> None:
    """Apply a transition to exports that the caller has locked, with other changes of their columns."""
    counted = {"status": TRANSITIONS[transition].target.value, "version": ExportRow.version + 1}
    update([each.id for each in exports], **counted | changes)
    append_all([transition_entry(now, actor, transition, each.status, each.id, reason) for each in exports])


def _reasons_of(target_ids: Collection[str], off: TargetStatus) -> dict[str, str]:
    """Return the reason to end exports of targets that were turned off: a tracker's configuration error, or the status."""
    if not target_ids:
        return {}
    found = tuples(TargetRow.select(TargetRow.id, TargetRow.status_reason).where(TargetRow.id.in_(sorted(target_ids))))
    return {each: why if why in CONFIGURATION_CODES else f"target_{off.value}" for each, why in found}


def _ended(reason: str, now: datetime) -> dict[str, Any]:
    """Return the columns of an export that is no longer sent, except its status."""
    return {"status_reason": reason, "lease": None, "due_at": None, "finished_at": now}


def _unredacted(export_ids: Sequence[str], condition: Any = True) -> list[ExportState]:
    """Return the exports that still have contents, and prevent changes of them."""
    if not export_ids:
        return []
    wanted = ExportRow.select(ExportRow.id, ExportRow.status).where(
        ExportRow.redacted_at.is_null(), ExportRow.id.in_(export_ids), condition
    )
    return read(ExportState, for_update(wanted.order_by(ExportRow.id)))


def _conflict(transition: Transition, export_id: str, status: ExportStatus) -> Conflict:
    sources = " or ".join(sorted(TRANSITIONS[transition].sources))
    return WrongStatus(f"Export {export_id} is {status.value}; {transition.value} needs the status {sources}.")
