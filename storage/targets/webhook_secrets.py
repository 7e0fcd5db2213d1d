"""Secrets of webhooks besides the signing secret: headers of a target, and the secret of Standard Webhooks.

All are sealed; pages and records show only fingerprints. All headers of a target are one sealed JSON object.
"""

import json
from datetime import datetime

from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.fields import problem
from schemas.targets.webhook_options import MAX_HEADERS, Signature, header_name_fault, header_value_fault, standard_key
from schemas.trackers.registry import GENERIC_WEBHOOK
from storage.accounts.audit_log import append
from storage.db.engine import transaction
from storage.db.leases import compare_and_swap
from storage.db.models import TargetRow
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.encrypted_columns import STANDARD_SECRET, TARGET_HEADERS
from storage.secrets.vault import Vault
from storage.targets import targets


def require_header(name: str, value: str) -> None:
    """Raise ValidationFailed, on `/name` or `/value`, for a header that a target may not add."""
    for path, fault in (("/name", header_name_fault(name)), ("/value", header_value_fault(value))):
        if fault is not None:
            raise ValidationFailed(problem(path, fault))


def set_header(
    target_id: str, name: str, value: str, vault: Vault, now: datetime, actor: str, account_id: int | None = None
) -> str:
    """Add a header to the requests of a webhook, or replace it, and return the fingerprint of its value.

    Header names are compared without case. Raises TargetNotFound, ValidationFailed, Conflict for a tracker.
    """
    require_header(name, value)
    with transaction():
        row = _locked_webhook(target_id, account_id)
        headers = {known: text for known, text in _headers(row, vault).items() if known.lower() != name.lower()}
        if len(headers) == MAX_HEADERS:
            raise ValidationFailed(problem("/name", "too_many_headers"))
        _store(row, {**headers, name: value}, vault, now)
        append(now, actor, "set_header", target_id, name)
    return vault.fingerprint(value)


def remove_header(target_id: str, name: str, vault: Vault, now: datetime, actor: str, account_id: int | None = None) -> None:
    """Remove a header. Raises TargetNotFound, ValidationFailed on `/name` if the target has no header with this name."""
    with transaction():
        row = _locked_webhook(target_id, account_id)
        before = _headers(row, vault)
        headers = {known: text for known, text in before.items() if known.lower() != name.lower()}
        if headers == before:
            raise ValidationFailed(problem("/name", "unknown_header"))
        _store(row, headers, vault, now)
        append(now, actor, "remove_header", target_id, name)


def set_standard_secret(
    target_id: str,
    secret: str,
    vault: Vault,
    default: DefaultSecret,
    now: datetime,
    actor: str,
    account_id: int | None = None,
) -> str:
    """Store a webhook's Standard Webhooks secret and return its fingerprint; a target that lacked only this becomes active.

    Raises TargetNotFound, ValidationFailed, Conflict for a tracker.
    """
    if standard_key(secret) is None:
        raise ValidationFailed(problem("/secret", "invalid_standard_secret"))
    sealed, fingerprint = vault.seal(secret, STANDARD_SECRET.context(target_id)), vault.fingerprint(secret)
    with transaction():
        row = _locked_webhook(target_id, account_id)
        row.standard_secret_sealed = sealed
        _write(row, now, standard_secret_sealed=sealed, standard_secret_fingerprint=fingerprint)
        targets.activate(row, default, now)
        append(now, actor, "set_standard_secret", target_id)
    return fingerprint


def remove_standard_secret(target_id: str, now: datetime, actor: str, account_id: int | None = None) -> None:
    """Remove a Standard Webhooks secret. Raises TargetNotFound, Conflict while the target signs with it."""
    with transaction():
        row = _locked_webhook(target_id, account_id)
        if Signature(row.signature).is_standard:
            raise Conflict(
                f"Target {target_id} signs with its Standard Webhooks secret; set its signature to service first: "
                "`target set ID --signature service`."
            )
        _write(row, now, standard_secret_sealed=None, standard_secret_fingerprint=None)
        append(now, actor, "remove_standard_secret", target_id)


def header_fingerprints(vault: Vault, text: str) -> list[dict[str, str]]:
    """Return the names of the headers in a decrypted JSON `text`, with the fingerprints of their values."""
    return [{"name": name, "fingerprint": vault.fingerprint(value)} for name, value in json.loads(text).items()]


def _locked_webhook(target_id: str, account_id: int | None) -> TargetRow:
    row = targets.locked_row(target_id, account_id)
    if row.provider_key != GENERIC_WEBHOOK:
        raise Conflict(
            f"Target {target_id} is a tracker ({row.provider_key}), which authenticates by its token; headers and Standard "
            "Webhooks are for generic_webhook targets."
        )
    return row


def _headers(row: TargetRow, vault: Vault) -> dict[str, str]:
    if row.headers_sealed is None:
        return {}
    headers: dict[str, str] = json.loads(vault.open(row.headers_sealed, TARGET_HEADERS.context(row.id)))
    return headers


def _store(row: TargetRow, headers: dict[str, str], vault: Vault, now: datetime) -> None:
    text = json.dumps(headers)
    sealed = vault.seal(text, TARGET_HEADERS.context(row.id)) if headers else None
    _write(row, now, headers_sealed=sealed, header_fingerprints=header_fingerprints(vault, text))


def _write(row: TargetRow, now: datetime, **columns: object) -> None:
    compare_and_swap(TargetRow, row.id, **columns, updated_at=now)
