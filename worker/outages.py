"""Logs outages that affect all threads of this process once each, and retries database work until the outage ends."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from runtime.outages import Outage
from storage.db.engine import OUTAGES, DatabaseFull

Result = TypeVar("Result")

_log: Final = logging.getLogger(__name__)

DATABASE: Final = Outage(_log, "database unavailable, retrying", "database available again")
DISK: Final = Outage(_log, "the disk is full, retrying; free space", "the disk has room again")
REDIS: Final = Outage(_log, "Redis unavailable: sweeping for due exports", "Redis available again")


def retry_database(work: Callable[[], Result], gives_up: Callable[[], bool]) -> Result:
    """Run `work` until the database is available; when `gives_up` returns true, raise the last error."""

    def stop(_state: RetryCallState) -> bool:
        return gives_up()

    retrying = Retrying(
        retry=retry_if_exception_type(OUTAGES),
        wait=wait_exponential(multiplier=0.05, max=1.0),
        stop=stop,
        before_sleep=_note,
        reraise=True,
    )
    result = retrying(work)
    DATABASE.record_success()
    DISK.record_success()
    return result


def _note(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    (DISK if isinstance(error, DatabaseFull) else DATABASE).record_failure(error)
