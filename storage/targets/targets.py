"""Ticket export targets: clients create them, operators set their secrets, workers and requests change their status."""

import json
from datetime import datetime
from typing import Any, Final

from peewee import Case

from schemas.base.errors import Conflict, TargetNotFound
from schemas.base.ticket_event_types import ordered_events
from schemas.base.timestamps import to_ms
from schemas.targets.target import FAILING, PAUSES_BY_RECEIVER, RESUMABLE, Target, TargetHeader, TargetRequest, TargetStatus
from schemas.targets.validations import FAILED, PASSED, VALID_FOR, Validation, is_about_address, next_validation_in
from schemas.targets.webhook_options import Signature
from schemas.trackers.registry import GENERIC_WEBHOOK
from storage.accounts.accounts import require_webhooks
from storage.accounts.audit_log import AuditEntry, append, append_all
from storage.db import identifiers
from storage.db.bulk_sql import lock_row
from storage.db.columns import record_of, values_of
from storage.db.engine import transaction
from storage.db.leases import compare_and_swap
from storage.db.models import TargetRow
from storage.db.queries import for_update, newest_first, scalars
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.encrypted_columns import TARGET_SECRET
from storage.secrets.vault import Vault

#: The statuses in which each verb is allowed, and the status after it.
_CHANGES: Final = {
    "pause": (frozenset({TargetStatus.ACTIVE}), TargetStatus.PAUSED),
    "resume": (RESUMABLE, TargetStatus.ACTIVE),
    "disable": (frozenset(TargetStatus) - {TargetStatus.DISABLED}, TargetStatus.DISABLED),
}
#: `status_reason` of targets whose account may no longer use webhooks.
NO_WEBHOOKS: Final = "webhooks_not_allowed"
#: The `status_reason` values of an inactive target: which secret is missing.
UNSIGNED: Final = "no_secret"
NO_STANDARD_SECRET: Final = "no_standard_secret"  # noqa: S105 - an error code
#: The condition of a target that was not removed.
IS_NOT_REMOVED: Final = TargetRow.deleted_at.is_null()


def create(
    request: TargetRequest, account_id: int, deployment_mode: str, default: DefaultSecret, now: datetime, actor: str
) -> Target:
    """Store a validated target: `active` if the default secret signs for it, else `inactive` until it has its secrets.

    The default secret is never sent to a tracker. `deployment_mode` applies if the request does not name one.
    """
    with transaction():
        # The account may have lost the right after the request was authenticated.
        require_webhooks(account_id)
        own = {
            "id": identifiers.new_id(identifiers.TARGET, now),
            "account": account_id,
            "deployment_mode": request.deployment_mode or deployment_mode,
            "created_at": now,
            "provider_settings": json.dumps(request.provider_settings, ensure_ascii=False),
            "events": ordered_events(request.events),
        }
        row = TargetRow(**values_of(TargetRow, request, **own))
        for column, value in first_state(request.provider_key, missing_secret(row, default), now).items():
            setattr(row, column, value)
        row.save(force_insert=True)
        append(now, actor, "create_target", row.id)
    return _target(row, default)


def get(target_id: str, default: DefaultSecret | None, account_id: int | None = None) -> Target:
    """Return a target; with `account_id`, only one of that account. Raises TargetNotFound."""
    return _target(find_row(target_id, account_id), default)


def count_failing() -> int:
    """Return how many active targets have failing deliveries."""
    is_failing = (TargetRow.status == TargetStatus.ACTIVE.value) & (TargetRow.connected_status == FAILING)
    return int(TargetRow.select().where(IS_NOT_REMOVED, is_failing).count())


def list_all(default: DefaultSecret | None) -> list[Target]:
    """Return every target, the newest first."""
    return [_target(row, default) for row in newest_first(TargetRow.select().where(IS_NOT_REMOVED), TargetRow.id)]


def list_page(
    account_id: int,
    default: DefaultSecret | None,
    limit: int,
    now: datetime,
    before: str | None = None,
    status: TargetStatus | None = None,
) -> list[Target]:
    """Return up to `limit` of an account's targets, newest first, older than the one with the id `before`.

    `status` is the status that users see at `now`.
    """
    found = TargetRow.select().where(TargetRow.account == account_id, IS_NOT_REMOVED)
    if status is not None:
        found = found.where(_shows(status, now))
    return [_target(row, default) for row in newest_first(found, TargetRow.id, limit, before)]


def set_secret(
    target_id: str, secret: str, vault: Vault, now: datetime, actor: str = "operator", account_id: int | None = None
) -> str:
    """Store a target's own secret and return its fingerprint; with `account_id`, only for a target of that account.

    The secret signs the next delivery, or authenticates it at a tracker. A worker validates a tracker now, unless its last
    validation passed. Raises TargetNotFound.
    """
    sealed, fingerprint = vault.seal(secret, secret_context(target_id)), vault.fingerprint(secret)
    with transaction():
        row = locked_row(target_id, account_id)
        row.secret_sealed = sealed
        # Only these columns, and the status only if it is unchanged, because a worker may have written to the target.
        compare_and_swap(TargetRow, target_id, secret_sealed=sealed, secret_fingerprint=fingerprint, updated_at=now)
        activate(row, None, now)
        if row.provider_key != GENERIC_WEBHOOK:
            # A running validation checks the former token, so its result is not accepted.
            is_unsure = (TargetRow.validation_status == FAILED) | TargetRow.validation_status.is_null()
            is_unsure |= TargetRow.validation_lease.is_null(False)
            compare_and_swap(TargetRow, target_id, is_unsure, validation_lease=None, validation_due_at=now)
        append(now, actor, "set_secret", target_id)
    return fingerprint


def activate(row: TargetRow, default: DefaultSecret | None, now: datetime) -> None:
    """Make an inactive target active if it now has every secret that it needs. The caller holds the target's lock."""
    missing = missing_secret(row, default)
    status = TargetStatus.INACTIVE if missing else TargetStatus.ACTIVE
    is_inactive = TargetRow.status == TargetStatus.INACTIVE.value
    compare_and_swap(TargetRow, row.id, is_inactive, status=status.value, status_reason=missing, updated_at=now)


def change_status(
    target_id: str,
    verb: str,
    now: datetime,
    actor: str,
    reason: str = "operator",
    *,
    default: DefaultSecret | None = None,
    account_id: int | None = None,
) -> None:
    """Pause, resume or disable a target, unless it already has that status; with `account_id`, only one of that account.

    `reason` says who paused or disabled it. A target without a secret to sign with, its own or `default`, is not resumed.
    Neither is one whose account may not use webhooks. Raises TargetNotFound, WebhooksForbidden, Conflict if its state does
    not allow the change.
    """
    sources, status = _CHANGES[verb]
    with transaction():
        if verb == "resume":
            # Before the target, because `account set --webhooks off` locks in this order: another order could deadlock.
            require_webhooks(account_of(find_row(target_id, account_id)))
        row = locked_row(target_id, account_id)
        if verb == "resume":
            # A resumed target is tried at once, even if its receiver asked to wait or its circuit breaker is open.
            unfailed = {"failures_in_row": 0, "undelivered_in_row": 0, "failing_since": None}
            compare_and_swap(TargetRow, target_id, held_until=None, held_reason=None, ramp=1, **unfailed)
        if row.status == status.value:
            return
        if row.status not in sources:
            raise Conflict(f"Target {target_id} is {row.status}; {verb} needs the status {' or '.join(sorted(sources))}.")
        missing = missing_secret(row, default)
        if status is TargetStatus.ACTIVE and missing is not None:
            lacks = "secret to sign with" if row.provider_key == GENERIC_WEBHOOK else "token"
            option = " --standard-webhooks" if missing == NO_STANDARD_SECRET else ""
            raise Conflict(f"Target {target_id} has no {lacks}; give it one with `secret set target ID{option}`.")
        status_reason = None if status is TargetStatus.ACTIVE else reason
        compare_and_swap(TargetRow, target_id, status=status.value, status_reason=status_reason, updated_at=now)
        append(now, actor, f"{verb}_target", target_id, reason)


def record_validation(target_id: str, account_id: int | None, validation: Validation, now: datetime, actor: str) -> None:
    """Store the result of a validation of a target; with `account_id`, only of a target of that account.

    The result for a former URL is not stored. Only a refusal by our own policy blocks an active or paused target. Other
    failures show as `failing` and prevent approvals; a passed validation does not activate a target. The next validation is
    due in a day, or sooner after a failure; one that is requested or running keeps its due time. A partial validation does
    not clear a failure that it did not check; instead a worker validates the target now. Raises TargetNotFound.
    """
    with transaction():
        row = locked_row(target_id, account_id)
        if validation.base_url not in {None, row.base_url}:
            return
        is_awaited = row.validation_asked_at is not None or row.validation_lease is not None
        has_failed_elsewhere = row.validation_status == FAILED and not is_about_address(row.validation_reason)
        if validation.is_partial and validation.has_passed and has_failed_elsewhere:
            compare_and_swap(TargetRow, target_id, validation_due_at=row.validation_due_at if is_awaited else now)
            return
        failures = 0 if validation.has_passed else row.validation_failures + 1
        compare_and_swap(
            TargetRow,
            target_id,
            validation_status=PASSED if validation.has_passed else FAILED,
            validation_reason=validation.reason,
            validated_at=now,
            validation_failures=failures,
            validation_due_at=row.validation_due_at if is_awaited else now + next_validation_in(failures),
        )
        append(now, actor, "validate_target", target_id, validation.reason or PASSED)
        if validation.is_refused:
            deactivate(target_id, TargetStatus.BLOCKED, validation.reason, now, actor)
        elif not validation.has_passed:
            compare_and_swap(TargetRow, target_id, connected_status=FAILING)


def refuse(target_id: str, reason: str | None, now: datetime, actor: str, base_url: str | None = None) -> None:
    """Store a failed validation because the address policy refuses a target; block the target if it is active or paused.

    With `base_url`, only if that is still its URL, because the policy refused that URL.
    """
    record_validation(target_id, None, Validation(reason, is_refused=True, base_url=base_url), now, actor)


def pass_validation(target_id: str, now: datetime, actor: str) -> None:
    """Store that a delivery reached a target: a failed validation has now passed. The caller holds the transaction.

    A validation that is requested or running keeps its due time, and its result is stored later.
    """
    has_failed = TargetRow.validation_status == FAILED
    is_awaited = TargetRow.validation_asked_at.is_null(False) | TargetRow.validation_lease.is_null(False)
    due_at = Case(None, [(is_awaited, TargetRow.validation_due_at)], to_ms(now + VALID_FOR))
    passed = {"validation_status": PASSED, "validation_reason": None, "validated_at": now, "validation_failures": 0}
    # Another validation may have passed meanwhile and won.
    if compare_and_swap(TargetRow, target_id, has_failed, **passed, validation_due_at=due_at):
        append(now, actor, "validate_target", target_id, "delivered")


def deactivate(target_id: str, status: TargetStatus, reason: str | None, now: datetime, actor: str) -> bool:
    """Block or disable a target if it is active or paused, and return whether it was; do not change it otherwise.

    The caller holds the transaction.
    """
    is_on = TargetRow.status.in_((TargetStatus.ACTIVE.value, TargetStatus.PAUSED.value))
    turned = compare_and_swap(TargetRow, target_id, is_on, status=status.value, status_reason=reason, updated_at=now)
    if turned:
        append(now, actor, f"target_{status.value}", target_id, reason)
    return turned


def block_all(account_id: int, now: datetime, actor: str) -> None:
    """Block every target of an account that may no longer use webhooks, in the caller's transaction.

    A target that is blocked or disabled keeps its reason.
    """
    is_on = TargetRow.status.not_in((TargetStatus.BLOCKED.value, TargetStatus.DISABLED.value))
    on = TargetRow.select(TargetRow.id).where(TargetRow.account == account_id, is_on).order_by(TargetRow.id)
    # In the order in which workers lock targets: they write several targets at once.
    ids = scalars(for_update(on, "FOR NO KEY UPDATE"))
    blocked = TargetRow.update(status=TargetStatus.BLOCKED.value, status_reason=NO_WEBHOOKS, updated_at=now)
    blocked.where(TargetRow.id.in_(ids)).execute()
    append_all([AuditEntry(to_ms(now), actor, "target_blocked", target_id, reason=NO_WEBHOOKS) for target_id in ids])


def apply_default_secret(default: DefaultSecret, now: datetime, actor: str) -> None:
    """Deactivate active targets that now lack a secret, and activate inactive ones for which the default secret now signs.

    Since these targets were stored, the settings may have changed: WEBHOOK_SECRET, OPERATOR_ACCOUNT_ID, the deployment mode.
    """
    is_served = TargetRow.account.is_null(False) if default.accounts is None else TargetRow.account.in_(default.accounts)
    is_served &= TargetRow.provider_key == GENERIC_WEBHOOK
    needs_secret = TargetRow.signature != Signature.STANDARD.value
    if default.text is None:
        is_served = TargetRow.account.is_null()
    is_waiting = (TargetRow.status == TargetStatus.INACTIVE.value) & (TargetRow.status_reason == UNSIGNED)
    with transaction():
        for status, reason, wanted in (
            (TargetStatus.INACTIVE, UNSIGNED, (TargetRow.status == TargetStatus.ACTIVE.value) & ~is_served),
            (TargetStatus.ACTIVE, None, is_waiting & is_served),
        ):
            unsigned = TargetRow.select(TargetRow.id).where(TargetRow.secret_sealed.is_null(), needs_secret, wanted)
            changes = TargetRow.update(status=status.value, status_reason=reason, updated_at=now)
            # Locked in the order of their ids, as workers lock them.
            found = changes.where(TargetRow.id.in_(for_update(unsigned.order_by(TargetRow.id)))).returning(TargetRow.id)
            action = f"target_{status.value}"
            append_all([AuditEntry(to_ms(now), actor, action, row.id, reason=reason) for row in found.execute()])


def first_state(provider_key: str, missing: str | None, now: datetime) -> dict[str, Any]:
    """Return the columns of a target whose URL has just passed the checks, and to which nothing has been sent yet.

    For a webhook, these checks are its first validation; a tracker is validated as soon as it has a token. `missing` is the
    result of `missing_secret`.
    """
    is_validated = provider_key == GENERIC_WEBHOOK
    return {
        "status": (TargetStatus.INACTIVE if missing else TargetStatus.ACTIVE).value,
        "status_reason": missing,
        "connected_status": "unknown",
        "validation_status": PASSED if is_validated else None,
        "validated_at": now if is_validated else None,
        "validation_due_at": now + VALID_FOR if is_validated or missing else now,
        "updated_at": now,
    }


def locked_row(target_id: str, account_id: int | None) -> TargetRow:
    """Return a row, and prevent changes of it until the transaction ends; a repeated request then sees this change.

    Raises TargetNotFound.
    """
    if identifiers.is_id(identifiers.TARGET, target_id):
        lock_row(TargetRow, target_id)
    return find_row(target_id, account_id)


def find_row(target_id: str, account_id: int | None = None) -> TargetRow:
    """Return a row; with `account_id`, only of that account. Raises TargetNotFound."""
    is_id = identifiers.is_id(identifiers.TARGET, target_id)
    found = TargetRow.get_or_none(TargetRow.id == target_id, IS_NOT_REMOVED) if is_id else None
    if found is None or account_id not in {None, account_of(found)}:
        raise TargetNotFound
    return found


def account_of(found: TargetRow) -> int:
    """Return the account's id from the column: `found.account` would query the account's row, once for every target."""
    return int(found.__data__["account"])


def missing_secret(row: TargetRow, default: DefaultSecret | None, signature: str | None = None) -> str | None:
    """Return the `status_reason` of a target without a secret for its signature, or for `signature`; None if it has all.

    A secret is the target's own or `default`, which is never sent to a tracker. If `default` is None, a default secret
    counts as present.
    """
    wanted = Signature(signature or row.signature)
    # Checked first: if this secret is present, a default secret may be enough for the rest.
    if wanted.is_standard and row.standard_secret_sealed is None:
        return NO_STANDARD_SECRET
    if not wanted.is_service or row.secret_sealed is not None:
        return None
    is_served = row.provider_key == GENERIC_WEBHOOK and (default is None or default.serves(account_of(row)))
    return None if is_served else UNSIGNED


def secret_context(target_id: str) -> str:
    """Return the context to which a target's sealed secret is bound."""
    return TARGET_SECRET.context(target_id)


def _shows(status: TargetStatus, now: datetime) -> Any:
    """Return the condition for a status as users see it: a hold that a receiver asked for is shown as a pause."""
    has_status = TargetRow.status == status.value
    is_active = TargetRow.status == TargetStatus.ACTIVE.value
    is_held = (TargetRow.held_until > now) & TargetRow.held_reason.in_(sorted(PAUSES_BY_RECEIVER))
    if status is TargetStatus.PAUSED:
        return has_status | (is_active & is_held)
    if status is TargetStatus.ACTIVE:
        return has_status & (TargetRow.held_until.is_null() | ~is_held)
    return has_status


def _target(row: TargetRow, default: DefaultSecret | None) -> Target:
    shared = default if row.provider_key == GENERIC_WEBHOOK else None
    return record_of(
        Target,
        row,
        account_id=account_of(row),
        status=TargetStatus(row.status),
        secret_fingerprint=row.secret_fingerprint or (shared.fingerprint_for(account_of(row)) if shared else None),
        has_own_secret=row.secret_fingerprint is not None,
        concurrency=max(1, min(int(row.concurrency), row.ramp)),
        provider_settings=json.loads(row.provider_settings),
        headers=tuple(TargetHeader(**each) for each in row.header_fingerprints),
    )
