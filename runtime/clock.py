"""The one reader of wall time; everything else is told what time it is."""

import time
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the current instant, aware, in UTC."""
    return datetime.now(UTC)


def unix_now() -> float:
    """Return the current instant as seconds since 1970-01-01 UTC, for lines of the log: half the price of `utc_now`."""
    return time.time()
