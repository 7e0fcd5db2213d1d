"""Reads the delivery receipt of an export; `schemas.exports.receipt` verifies it."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from schemas.audit.chain import GENESIS, ChainEntry, line_of
from schemas.base.errors import Conflict
from schemas.base.timestamps import format_rfc3339, format_rfc3339_or_none
from schemas.exports.receipt import ATTEMPT_MEMBERS, TYPE, VERSION, approval_in, without_hosts
from schemas.exports.state_machine import ExportStatus
from storage.accounts import audit_log_sql
from storage.db.drivers.shared import Row
from storage.db.models import AttemptRow
from storage.exports import queries

#: A worker chains new entries every few seconds.
RETRY_AFTER_S: Final = 5


def read(export_id: str, account_id: int | None) -> dict[str, Any]:
    """Return the receipt of an exported export; with `account_id`, only if it belongs to that account.

    Raises ExportNotFound, and Conflict if the export is not exported or an audit entry of it is not chained yet.
    """
    export = queries.get(export_id, account_id)
    if export.status is not ExportStatus.EXPORTED:
        raise Conflict(f"Export {export_id} is {export.status.value}; a receipt needs the status exported.")
    entries = _entries(audit_log_sql.of_subject(export_id))
    frozen = queries.get_frozen_body(export_id, export.account_id)
    body = None if frozen.redacted_at is not None else frozen.body
    attempts = AttemptRow.select().where(AttemptRow.export == export_id).order_by(AttemptRow.number)
    approval = approval_in(entries) or {"digest": None, "actor": None, "at": None}
    return {
        "type": TYPE,
        "version": VERSION,
        "export_id": export_id,
        "target_id": None if body is None else export.target_id,
        "ticket_digest": approval["digest"] or export.ticket_digest,
        "approved_by": approval["actor"],
        "approved_at": approval["at"],
        "delivered_at": format_rfc3339_or_none(export.finished_at),
        "body": None if body is None else body.decode(),
        "body_sha256": None if body is None else hashlib.sha256(body).hexdigest(),
        "attempts": [_attempt(row) for row in attempts],
        "audit_entries": entries,
    }


def _entries(found: Sequence[Row]) -> list[dict[str, Any]]:
    if any(position is None for position, *_ in found):
        missing = Conflict("The newest audit entries of this export are not in the chain yet; repeat the request.")
        missing.retry_after_s = RETRY_AFTER_S
        raise missing
    return [without_hosts(_line(*row)) for row in found]


def _line(position: int, stored_hash: bytes, before: bytes | None, *columns: Any) -> dict[str, Any]:
    """Return an entry as stored. If its hash is wrong, the verification of the receipt finds it."""
    previous = GENESIS if before is None else bytes(before).hex()
    return {**line_of(ChainEntry._make(columns), position, previous), "hash": bytes(stored_hash or b"").hex()}


def _attempt(row: AttemptRow) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ATTEMPT_MEMBERS}
    return {**shown, "started_at": format_rfc3339(row.started_at)}
