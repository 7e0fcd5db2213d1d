"""Adds the attempts of one tick to the counts of their targets and hours, in one statement."""

from typing import Final

from storage.db.bulk_sql import Rows, execute_over
from storage.db.columns import column_types
from storage.db.models import DeliveryHourRow

_COLUMNS: Final = ("target_id", "hour_at", "worker", "delivered", "failed")
_TYPES: Final = column_types(DeliveryHourRow, _COLUMNS)
_COUNT: Final = f"""
INSERT INTO delivery_hours ({", ".join(_COLUMNS)}) {{rows}}
ON CONFLICT (target_id, hour_at, worker) DO UPDATE SET
    delivered = delivery_hours.delivered + excluded.delivered, failed = delivery_hours.failed + excluded.failed"""


def count(counts: Rows) -> None:
    """Add rows of (target id, hour in milliseconds, worker, delivered, failed); the caller holds the transaction."""
    execute_over(_COUNT, _TYPES, counts)
