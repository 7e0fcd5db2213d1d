"""Client certificates of single targets: sealed with their keys, identified by a fingerprint."""

from datetime import datetime

from schemas.base.errors import TargetNotFound
from schemas.settings.certificates import certificate_fingerprint
from storage.accounts.audit_log import append
from storage.db.engine import transaction
from storage.db.leases import compare_and_swap
from storage.db.models import TargetRow
from storage.secrets.encrypted_columns import TARGET_CERTIFICATE
from storage.secrets.vault import Vault
from storage.targets.targets import IS_NOT_REMOVED, find_row


def set_certificate(target_id: str, pair: str, vault: Vault, now: datetime, actor: str) -> str:
    """Store a target's own client certificate with its key, and return the fingerprint of the certificate.

    The next connection uses it. Raises TargetNotFound.
    """
    fingerprint, sealed = certificate_fingerprint(pair), vault.seal(pair, TARGET_CERTIFICATE.context(target_id))
    _write(target_id, sealed, fingerprint, "set_certificate", now, actor)
    return fingerprint


def remove_certificate(target_id: str, now: datetime, actor: str) -> None:
    """Erase a target's own client certificate; the one of the settings is used again. Raises TargetNotFound."""
    _write(target_id, None, None, "remove_certificate", now, actor)


def certificate_fingerprints() -> dict[str, str]:
    """Return the fingerprint of each target's own certificate, by the target's id."""
    has_one = TargetRow.certificate_fingerprint.is_null(False)
    rows = TargetRow.select(TargetRow.id, TargetRow.certificate_fingerprint).where(has_one, IS_NOT_REMOVED)
    return {row.id: str(row.certificate_fingerprint) for row in rows.order_by(TargetRow.id)}


def _write(target_id: str, sealed: bytes | None, fingerprint: str | None, action: str, now: datetime, actor: str) -> None:
    with transaction():
        find_row(target_id)
        # Only these columns, because a worker may be writing to the target at the same time.
        changes = {"certificate_sealed": sealed, "certificate_fingerprint": fingerprint, "updated_at": now}
        if not compare_and_swap(TargetRow, target_id, IS_NOT_REMOVED, **changes):
            raise TargetNotFound
        append(now, actor, action, target_id)
