"""Ticket export targets: made by clients, given secrets by the operator, marked by what deliveries meet."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from schemas.delivery import Attempted, TargetEffect
from schemas.errors import Conflict, TargetNotFound
from schemas.targets import Target, TargetRequest, TargetStatus
from schemas.times import to_ms
from storage import identifiers
from storage.audit import append
from storage.database import execute, transaction
from storage.models import Target as TargetRow
from storage.vault import Vault

#: From which states an operator's verb may start, and where it leads.
_TURNS: Final = {
    "pause": (frozenset({TargetStatus.ACTIVE}), TargetStatus.PAUSED),
    "resume": (frozenset({TargetStatus.PAUSED, TargetStatus.BLOCKED, TargetStatus.DISABLED}), TargetStatus.ACTIVE),
    "disable": (frozenset(TargetStatus) - {TargetStatus.DISABLED}, TargetStatus.DISABLED),
}


def create(
    request: TargetRequest,
    account_id: int,
    deployment_mode: str,
    default_secret_fingerprint: str | None,
    now: datetime,
    actor: str,
) -> Target:
    """Store a validated target: `active` where a secret signs for it, else `inactive` until it gets one.

    `deployment_mode` stands in where the request names none; `default_secret_fingerprint` is that of WEBHOOK_SECRET.
    """
    status = TargetStatus.ACTIVE if default_secret_fingerprint else TargetStatus.INACTIVE
    with transaction():
        row = TargetRow.create(
            id=identifiers.new_id(identifiers.TARGET, now),
            account=account_id,
            provider_key=request.provider_key,
            base_url=request.base_url,
            deployment_mode=request.deployment_mode or deployment_mode,
            name=request.name,
            status=status.value,
            status_reason=None if default_secret_fingerprint else "no_secret",
            connected_status="unknown",
            validation_status="passed",
            validated_at=now,
            created_at=now,
            updated_at=now,
        )
        append(now, actor, "create_target", row.id)
    return _target(row, default_secret_fingerprint)


def get(target_id: str, default_secret_fingerprint: str | None) -> Target:
    """Return a target. Raises TargetNotFound."""
    return _target(_row(target_id), default_secret_fingerprint)


def all_targets(default_secret_fingerprint: str | None) -> list[Target]:
    """Return every target, the newest first."""
    return [_target(row, default_secret_fingerprint) for row in TargetRow.select().order_by(TargetRow.id.desc())]


def set_secret(target_id: str, secret: str, vault: Vault, now: datetime) -> str:
    """Give a target its own secret and return the fingerprint; the next delivery is signed with it."""
    fingerprint = vault.fingerprint(secret)
    with transaction():
        _row(target_id)
        # Only these columns, and the status only where it still is what it was: a worker may be marking the target now.
        sealed = vault.seal(secret, secret_context(target_id))
        _change(target_id, secret_sealed=sealed, secret_fingerprint=fingerprint, updated_at=now)
        _change(target_id, when=TargetStatus.INACTIVE, status=TargetStatus.ACTIVE.value, status_reason=None)
        append(now, "operator", "set_secret", target_id)
    return fingerprint


def turn(
    target_id: str, verb: str, now: datetime, actor: str, reason: str = "operator", *, has_default_secret: bool = True
) -> None:
    """Pause, resume or disable a target. Raises TargetNotFound, Conflict when its state does not allow that.

    Without a default secret (WEBHOOK_SECRET), a target that has none of its own is not resumed.
    """
    sources, status = _TURNS[verb]
    with transaction():
        row = _row(target_id)
        if TargetStatus(row.status) not in sources:
            raise Conflict(f"Target {target_id} is {row.status}; {verb} needs {' or '.join(sorted(sources))}.")
        if status is TargetStatus.ACTIVE and row.secret_sealed is None and not has_default_secret:
            raise Conflict(f"Target {target_id} has no secret to sign with; give it one with `secret set target`.")
        told = None if status is TargetStatus.ACTIVE else reason
        # Who else might have won: a worker that blocked or disabled it, or another operator.
        if not _change(target_id, when=TargetStatus(row.status), status=status.value, status_reason=told, updated_at=now):
            raise Conflict(f"Target {target_id} changed meanwhile; look again.")
        append(now, actor, f"{verb}_target", target_id, reason)


def record_effects(attempts: Iterable[Attempted], moved: set[str], now: datetime, worker: str) -> None:
    """Write what a tick's attempts say about their targets, one statement a target; the caller holds the transaction."""
    effects: dict[str, list[TargetEffect]] = defaultdict(list)
    for attempt in attempts:
        if attempt.claim.export_id in moved:
            effects[attempt.claim.target_id].append(attempt.verdict.effect)
    # Sorted, so that two workers that mark the same targets never wait for each other in a ring.
    for target_id in sorted(effects):
        _record_effect(target_id, effects[target_id], now, worker)


def secret_context(target_id: str) -> str:
    """Return what a target's sealed secret is bound to."""
    return f"targets|{target_id}|signing secret"


def _record_effect(target_id: str, effects: Sequence[TargetEffect], now: datetime, worker: str) -> None:
    columns: dict[str, Any] = {}
    connected = [effect.connected for effect in effects if effect.connected]
    if connected:
        columns["connected_status"] = connected[-1]
    if "connected" in connected:
        columns["last_success_at"] = to_ms(now)
    if columns:
        assignments = ", ".join(f"{name} = ?" for name in columns)
        execute(f"UPDATE targets SET {assignments} WHERE id = ?", (*columns.values(), target_id))  # noqa: S608 - our own names
    turned = [effect for effect in effects if effect.status is not None]
    if turned:
        _turn_by_delivery(target_id, turned[-1], now, worker)


def _turn_by_delivery(target_id: str, effect: TargetEffect, now: datetime, worker: str) -> None:
    """Block or disable an active or paused target; one that an operator has turned off meanwhile stays as it is."""
    status = effect.status
    if status and execute(
        "UPDATE targets SET status = ?, status_reason = ?, updated_at = ? WHERE id = ? AND status IN ('active', 'paused')",
        (status.value, effect.reason, to_ms(now), target_id),
    ):
        append(now, worker, f"target_{status.value}", target_id, effect.reason)


def _change(target_id: str, when: TargetStatus | None = None, **columns: object) -> bool:
    """Write these columns alone, where the target still has the status `when`; tell whether it had."""
    condition = TargetRow.id == target_id
    if when is not None:
        condition &= TargetRow.status == when.value
    return bool(TargetRow.update(**columns).where(condition).execute())


def _row(target_id: str) -> TargetRow:
    row = TargetRow.get_or_none(TargetRow.id == target_id)
    if row is None:
        raise TargetNotFound
    return row


def _target(row: TargetRow, default_secret_fingerprint: str | None) -> Target:
    return Target(
        id=row.id,
        account_id=row.account.id,
        provider_key=row.provider_key,
        base_url=row.base_url,
        deployment_mode=row.deployment_mode,
        name=row.name,
        status=TargetStatus(row.status),
        status_reason=row.status_reason,
        secret_fingerprint=row.secret_fingerprint or default_secret_fingerprint,
        has_own_secret=row.secret_fingerprint is not None,
        connected_status=row.connected_status,
        last_success_at=row.last_success_at,
        validation_status=row.validation_status,
        validation_reason=row.validation_reason,
        validated_at=row.validated_at,
        created_at=row.created_at,
    )
