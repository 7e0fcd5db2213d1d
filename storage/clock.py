"""The one reader of wall time; everything else is told what time it is."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the current instant, aware, in UTC."""
    return datetime.now(UTC)
