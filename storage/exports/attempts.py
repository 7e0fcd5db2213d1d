"""Reads attempts; `storage.exports.claims_sql` writes them, together with the change of their export."""

from typing import Any, Final

from schemas.base.errors import ExportNotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.exports.attempt_record import Attempt, AttemptDetails
from schemas.exports.delivery import Timings
from storage.db import identifiers
from storage.db.columns import record_of
from storage.db.models import AttemptRow, ExportRow
from storage.db.queries import tuples, where_given

#: Greater than every attempt number: the greatest value of the column.
_AFTER_ALL: Final = 2**31 - 1


def list_page(export_id: str, account_id: int, limit: int, before: str | None = None) -> list[Attempt]:
    """Return up to `limit` attempts of an account's export, newest first, older than the one with the id `before`.

    Raises ExportNotFound, and ValidationFailed on `/cursor` if `before` is not an attempt of this export.
    """
    return [each.attempt for each in list_details(export_id, account_id, limit, before)]


def list_details(
    export_id: str, account_id: int | None = None, limit: int | None = None, before: str | None = None
) -> list[AttemptDetails]:
    """Return attempts as `list_page` does, with the operator's fields; the caller shows these fields only to the operator.

    Without `limit`, returns all attempts; without `account_id`, of any account.
    """
    require_export(export_id, account_id)
    is_before = AttemptRow.number < number_before(AttemptRow, before, export_id)
    found = AttemptRow.select().where(AttemptRow.export == export_id, is_before).order_by(AttemptRow.number.desc())
    return [_details(row) for row in found.limit(limit)]


def require_export(export_id: str, account_id: int | None) -> None:
    """Raise ExportNotFound unless the export exists and belongs to `account_id`, if that is given."""
    found = where_given(ExportRow.select(ExportRow.id), (ExportRow.id, export_id), (ExportRow.account, account_id))
    if not (identifiers.is_id(identifiers.EXPORT, export_id) and tuples(found)):
        raise ExportNotFound


def number_before(model: Any, row_id: str | None, export_id: str) -> int:
    """Return the number of an attempt or event of an export; without an id, a number above all. Raises ValidationFailed."""
    if row_id is None:
        return _AFTER_ALL
    found = tuples(model.select(model.number).where(model.id == row_id, model.export == export_id))
    if not found:
        raise ValidationFailed(problem("/cursor", "invalid_cursor"))
    return int(found[0][0])


def _details(row: AttemptRow) -> AttemptDetails:
    attempt = record_of(Attempt, row, timings=record_of(Timings, row))
    return AttemptDetails(attempt, row.address, row.nonce, row.worker, row.answer)
