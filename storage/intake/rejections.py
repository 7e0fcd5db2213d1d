"""The last rejection of each inbound source: one row for each source, the newest from all processes."""

from collections.abc import Iterable, Mapping
from typing import Final

from peewee import EXCLUDED

from schemas.intake.sources import InboundSource, RejectedField, Rejection
from storage.db.engine import connection, transaction
from storage.db.models import InboundRefusalRow

#: Another process may have stored a newer rejection meanwhile. If it is newer by more than this, it comes from a clock that
#: was set back since, and would otherwise stay until that time comes.
_AHEAD_MS: Final = 3_600_000


def record(rejections: Iterable[Rejection]) -> None:
    """Store the last rejection of each given source, in its own transaction and on its own connection."""
    # Sorted, so that two processes lock the rows in the same order.
    records = [
        {
            "source": rejection.source.value,
            "refused_at": rejection.at,
            "status": rejection.status,
            "code": rejection.code,
            "problems": [[field.path, field.code] for field in rejection.fields],
            "request_id": rejection.request_id,
        }
        for rejection in sorted(rejections, key=lambda rejection: rejection.source)
    ]
    if records:
        stored_at = InboundRefusalRow.refused_at
        upsert = InboundRefusalRow.insert_many(records).on_conflict(
            conflict_target=[InboundRefusalRow.source],
            preserve=[name for name in records[0] if name != "source"],
            where=(stored_at <= EXCLUDED.refused_at) | (stored_at > EXCLUDED.refused_at + _AHEAD_MS),
        )
        with connection(), transaction():
            upsert.execute()


def last() -> Mapping[InboundSource, Rejection]:
    """Return the last rejection of each source that has one."""
    return {InboundSource(row.source): _rejection(row) for row in InboundRefusalRow.select()}


def _rejection(row: InboundRefusalRow) -> Rejection:
    fields = tuple(RejectedField(path, code) for path, code in row.problems)
    return Rejection(InboundSource(row.source), row.refused_at, row.status, row.code, fields, row.request_id)
