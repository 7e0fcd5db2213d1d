"""Edits and removals of targets. A removed target keeps its row for the history of its exports; no other query finds it.

An approval locks its target against a removal. A removal locks its target before it counts the waiting exports. So neither
overlooks the other.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from peewee import fn

from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.fields import problem
from schemas.base.ticket_event_types import ordered_events
from schemas.base.timestamps import to_ms
from schemas.exports.recoveries import RecoveryStatus
from schemas.exports.state_machine import IN_PROGRESS
from schemas.targets.target import TargetEdit, TargetStatus, host_of
from schemas.trackers.registry import GENERIC_WEBHOOK
from storage.accounts.accounts import require_webhooks
from storage.accounts.audit_log import AuditEntry, append, append_all
from storage.db.engine import transaction
from storage.db.leases import compare_and_swap
from storage.db.models import ExportRow, RecoveryRow, TargetRow, TicketEventRow
from storage.db.queries import tuples
from storage.secrets.default_secret import DefaultSecret
from storage.targets import targets
from storage.targets.throttle_state_sql import CHANGED_BY_ATTEMPTS

#: `status_reason` of a removed target.
REMOVED: Final = "removed"
#: Why a target lost the credentials that its requests contained.
OTHER_SERVER: Final = "other_server"
#: The action in the audit log when a target gets another address.
MOVE_TARGET: Final = "move_target"
#: The most waiting exports that a refused removal counts.
MAX_COUNTED: Final = 10_000

#: The columns that attempts and validations of the former URL have written.
_RESET_WITH_URL: Final = (
    *CHANGED_BY_ATTEMPTS,
    TargetRow.validation_reason,
    TargetRow.validation_failures,
    TargetRow.validation_asked_at,
    TargetRow.validation_lease,
)


class TargetInUse(Conflict):
    """A target cannot be removed while exports or events wait for it; `details` has their number by status."""

    def __init__(self, target_id: str, waiting: Mapping[str, int]) -> None:
        counted = ", ".join(f"{count} {status}" for status, count in waiting.items() if count)
        super().__init__(
            f"Deliveries wait for target {target_id} ({counted}). Wait until they are delivered, or disable the target, "
            "which makes them fail; then remove it."
        )
        self.details = waiting


def edit(
    target_id: str, wanted: TargetEdit, default: DefaultSecret, now: datetime, actor: str, account_id: int | None = None
) -> bool:
    """Change a target; with `account_id`, only one of that account. Return whether its URL changed.

    A new `base_url` must have passed the checks of a new target. The target then starts as a new one, and waiting exports go
    to the new URL. On another server, a tracker loses its token and a webhook its headers, because each request contains
    them: a client that edits a target must not be able to send them to its own server. Raises TargetNotFound,
    WebhooksForbidden for a new URL or new settings, ValidationFailed for a signature whose secret is missing.
    """
    with transaction():
        if wanted.base_url is not None or wanted.provider_settings is not None:
            # Before the target, because `account set --webhooks off` locks in this order: another order could deadlock.
            require_webhooks(targets.account_of(targets.find_row(target_id, account_id)))
        row = targets.locked_row(target_id, account_id)
        changes, entries = _changed_members(row, wanted, default)
        base_url, before = wanted.base_url or row.base_url, json.loads(row.provider_settings)
        settings = before if wanted.provider_settings is None else wanted.provider_settings
        changes_server = _server(base_url, settings) != _server(row.base_url, before)
        is_moved = base_url != row.base_url or (changes_server and row.provider_key != GENERIC_WEBHOOK)
        if changes_server:
            erased, action = _credentials_to_erase(row)
            changes |= erased
            entries += [(action, OTHER_SERVER)] if erased else []
        has_no_token = "secret_sealed" in changes
        missing = targets.UNSIGNED if has_no_token else targets.missing_secret(row, default, changes.get("signature"))
        if is_moved:
            reset = {field.name: field.default for field in _RESET_WITH_URL}
            changes |= {**reset, **targets.first_state(row.provider_key, missing, now), "base_url": base_url}
            entries.append((MOVE_TARGET, host_of(base_url)))
        elif "signature" in changes and row.status == TargetStatus.INACTIVE:
            # The target was inactive because a secret of its former signature was missing.
            changes |= {"status": TargetStatus.ACTIVE.value, "status_reason": None}
        if changes:
            compare_and_swap(TargetRow, target_id, **{**changes, "updated_at": now})
            append_all([AuditEntry(to_ms(now), actor, action, target_id, reason=reason) for action, reason in entries])
    return is_moved


def remove(target_id: str, now: datetime, actor: str, account_id: int | None = None) -> None:
    """Remove a target, erase its secrets, and end its recoveries; with `account_id`, only one of that account.

    Raises TargetNotFound, TargetInUse, Conflict for a recovery that begins at the same time.
    """
    with transaction():
        targets.find_row(target_id, account_id)
        # Waits for a running batch that makes exports due. Before the target, because a batch locks its recovery first.
        _end_recoveries(target_id, now, actor)
        targets.locked_row(target_id, account_id)
        if RecoveryRow.select().where(*_running(target_id)).exists():
            raise Conflict(f"A recovery of target {target_id} began at this moment; repeat the removal.")
        waiting = _count_waiting(target_id)
        if any(waiting.values()):
            raise TargetInUse(target_id, waiting)
        compare_and_swap(
            TargetRow,
            target_id,
            deleted_at=now,
            updated_at=now,
            # A query that overlooks `deleted_at` finds a target that accepts nothing.
            status=TargetStatus.DISABLED.value,
            status_reason=REMOVED,
            secret_sealed=None,
            secret_fingerprint=None,
            headers_sealed=None,
            header_fingerprints=[],
            standard_secret_sealed=None,
            standard_secret_fingerprint=None,
            certificate_sealed=None,
            certificate_fingerprint=None,
            held_until=None,
            held_reason=None,
            validation_status=None,
            validation_due_at=None,
            validation_asked_at=None,
            validation_lease=None,
        )
        append(now, actor, "remove_target", target_id)


def _changed_members(
    row: TargetRow, wanted: TargetEdit, default: DefaultSecret
) -> tuple[dict[str, Any], list[tuple[str, str | None]]]:
    """Return the columns that change besides the URL, and the actions and reasons of the audit entries.

    Raises ValidationFailed.
    """
    changes: dict[str, Any] = {}
    entries: list[tuple[str, str | None]] = []
    if wanted.name not in {None, row.name}:
        changes["name"] = wanted.name
        entries.append(("rename_target", None))
    if wanted.sets_limit and wanted.max_per_minute != row.max_per_minute:
        changes |= {"max_per_minute": wanted.max_per_minute, "paced_until": None}
        entries.append(("limit_target", None if wanted.max_per_minute is None else f"{wanted.max_per_minute}/min"))
    settings = wanted.provider_settings
    if settings not in (None, json.loads(row.provider_settings)):
        # A running validation checks the former settings, so its result is not accepted.
        changes |= {"provider_settings": json.dumps(settings, ensure_ascii=False), "validation_lease": None}
        entries.append(("configure_target", None))
    changed: dict[str, Any] = dict(_webhook_options(row, wanted, default))
    if wanted.events is not None and ordered_events(wanted.events) != row.events:
        changed["events"] = ordered_events(wanted.events)
    for member, value in changed.items():
        changes[member] = value
        entries.append((f"set_{member}", value if isinstance(value, str) else " ".join(value)))
    return changes, entries


def _webhook_options(row: TargetRow, wanted: TargetEdit, default: DefaultSecret) -> dict[str, str]:
    """Return the signature and format if they change. Raises ValidationFailed."""
    changed = {
        member: value
        for member, value in (("signature", wanted.signature), ("format", wanted.format))
        if value not in {None, getattr(row, member)}
    }
    if changed and row.provider_key != GENERIC_WEBHOOK:
        raise ValidationFailed(*(problem(f"/{member}", "webhooks_only") for member in changed))
    if "signature" in changed and (missing := targets.missing_secret(row, default, changed["signature"])):
        code = "standard_secret_needed" if missing == targets.NO_STANDARD_SECRET else "secret_needed"
        raise ValidationFailed(problem("/signature", code))
    return changed


def _credentials_to_erase(row: TargetRow) -> tuple[dict[str, Any], str]:
    """Return the columns of credentials to erase before requests go to another server, and the action for the audit log."""
    if row.provider_key == GENERIC_WEBHOOK:
        return ({"headers_sealed": None, "header_fingerprints": []} if row.headers_sealed else {}), "remove_headers"
    return ({"secret_sealed": None, "secret_fingerprint": None} if row.secret_sealed else {}), "remove_secret"


def _server(base_url: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the parts of a URL and settings that identify the server to which requests with a token or headers go."""
    parts = urlsplit(base_url.lower())
    return parts.scheme, parts.netloc, settings.get("api_base")


def _end_recoveries(target_id: str, now: datetime, actor: str) -> None:
    cancelled = {"status": RecoveryStatus.CANCELLED.value, "lease": None, "next_run_at": None, "finished_at": now}
    ended = RecoveryRow.update(**cancelled).where(*_running(target_id)).returning(RecoveryRow.id)
    append_all([AuditEntry(to_ms(now), actor, "cancel_recovery", row.id, reason=REMOVED) for row in ended.execute()])


def _running(target_id: str) -> tuple[Any, Any]:
    return RecoveryRow.target == target_id, RecoveryRow.status == RecoveryStatus.RUNNING.value


def _count_waiting(target_id: str) -> dict[str, int]:
    waiting = ExportRow.select(ExportRow.status).where(ExportRow.target == target_id, ExportRow.due_at.is_null(False))
    part = waiting.limit(MAX_COUNTED).alias("part")
    found = ExportRow.select(part.c.status, fn.COUNT(part.c.status)).from_(part).group_by(part.c.status)
    counted: dict[str, int] = dict(tuples(found))
    events = TicketEventRow.select().where(TicketEventRow.target == target_id, TicketEventRow.due_at.is_null(False))
    exports = {status.value: int(counted.get(status.value, 0)) for status in IN_PROGRESS}
    return exports | {"pending_events": int(events.count())}
