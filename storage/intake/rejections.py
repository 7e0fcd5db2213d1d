"""The last rejection of each inbound source: one row per source, the newest of all processes."""

from collections.abc import Iterable, Mapping
from typing import Final

from peewee import EXCLUDED

from schemas.intake.sources import InboundSource, RejectedField, Rejection
from storage.db.engine import connection, transaction
from storage.db.models import InboundRefusalRow

#: Another process may have written a newer one meanwhile. One that is newer by more than this was written by a clock that
#: has been set back since, and would stay until that moment comes.
_AHEAD_MS: Final = 3_600_000


def record(rejections: Iterable[Rejection]) -> None:
    """Store the last rejection of some sources, one each, in a transaction and on a connection of its own."""
    # In one order, so that no two processes wait for each other.
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
