"""Attempts, read back; `storage.exports.transitions` writes them, together with what they did to their export."""

from typing import Any, Final

from schemas.base.errors import ExportNotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.timestamps import from_ms
from schemas.exports.attempt_record import Attempt, Trace
from schemas.exports.delivery import Timings
from storage.db import identifiers
from storage.db.engine import rows

_COLUMNS: Final = (
    "id, number, started_at, outcome, response_status, error_code, retry_after_s, "
    "dns_ms, connect_ms, tls_ms, first_byte_ms, total_ms"
)
_NEWEST: Final = f"SELECT {_COLUMNS} FROM attempts WHERE export_id = ? AND number < ? ORDER BY number DESC LIMIT ?"  # noqa: S608 - our own names
_TRACES: Final = f"SELECT {_COLUMNS}, address, nonce, worker, answer FROM attempts WHERE export_id = ?"  # noqa: S608 - our own names

#: Behind every number: what the column holds at most.
_AFTER_ALL: Final = 2**31 - 1


def list_page(export_id: str, account_id: int, limit: int, before: str | None = None) -> list[Attempt]:
    """Return up to `limit` attempts of an account's export, newest first, older than the one with the id `before`.

    Raises ExportNotFound, and ValidationFailed on `/cursor` where `before` is no attempt of this export.
    """
    _require_export(export_id, account_id)
    return [_attempt(row) for row in rows(_NEWEST, (export_id, _number_before(before, export_id), limit))]


def list_traces(export_id: str) -> list[Trace]:
    """Return every attempt of an export with what is the operator's, newest first. Raises ExportNotFound."""
    if not (identifiers.is_id(identifiers.EXPORT, export_id) and rows("SELECT 1 FROM exports WHERE id = ?", (export_id,))):
        raise ExportNotFound
    return [_trace(row) for row in rows(f"{_TRACES} ORDER BY number DESC", (export_id,))]


def list_traces_page(export_id: str, account_id: int, limit: int, before: str | None = None) -> list[Trace]:
    """Return attempts as `newest` does, with what is the operator's; the caller shows that to nobody else."""
    _require_export(export_id, account_id)
    asked = f"{_TRACES} AND number < ? ORDER BY number DESC LIMIT ?"
    return [_trace(row) for row in rows(asked, (export_id, _number_before(before, export_id), limit))]


def _require_export(export_id: str, account_id: int) -> None:
    asked = "SELECT 1 FROM exports WHERE id = ? AND account_id = ?"
    if not (identifiers.is_id(identifiers.EXPORT, export_id) and rows(asked, (export_id, account_id))):
        raise ExportNotFound


def _number_before(attempt_id: str | None, export_id: str) -> int:
    if attempt_id is None:
        return _AFTER_ALL
    found = rows("SELECT number FROM attempts WHERE id = ? AND export_id = ?", (attempt_id, export_id))
    if not found:
        raise ValidationFailed(problem("/cursor", "invalid_cursor"))
    return int(found[0][0])


def _trace(row: tuple[Any, ...]) -> Trace:
    return Trace(_attempt(row[:-4]), *row[-4:])


def _attempt(row: tuple[Any, ...]) -> Attempt:
    return Attempt(
        id=row[0],
        number=row[1],
        started_at=from_ms(row[2]),
        outcome=row[3],
        response_status=row[4],
        error_code=row[5],
        retry_after_s=row[6],
        timings=Timings(*row[7:]),
    )
