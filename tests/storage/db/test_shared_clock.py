"""The shared clock: a host whose clock is wrong uses PostgreSQL's time; other hosts, and SQLite, use their own clock."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import cycle

import pytest

from runtime.clock import utc_now
from storage.db.shared_clock import SharedClock
from tests.support.database.databases import on_postgresql, on_sqlite
from tests.support.processes.workers import wait_until

#: A query to a server on the same machine takes milliseconds; a busy machine gets more time.
NEARLY: timedelta = timedelta(seconds=5)


def off_by(seconds: float) -> SharedClock:
    """Return the clock of a host that is ahead by so many seconds."""
    return SharedClock(lambda: utc_now() + timedelta(seconds=seconds))


@on_postgresql
@pytest.mark.parametrize("seconds", [60.0, -60.0, 7200.0])
def test_a_host_with_a_wrong_clock_uses_the_time_of_the_database_and_logs_it(
    database: str, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = off_by(seconds)
    clock.compare()
    assert abs(clock.now() - utc_now()) < NEARLY
    [reported] = [record.getMessage() for record in caplog.records]
    off = re.search(r"off by (-?\d+) s.* NTP", reported)
    assert off
    assert abs(int(off[1]) - seconds) < NEARLY.total_seconds()
    clock.compare()
    assert len(caplog.records) == 1


@on_postgresql
@pytest.mark.parametrize("seconds", [0.1, -0.1])
def test_a_small_difference_is_corrected_and_not_logged(
    database: str, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = off_by(seconds)

    def is_corrected() -> bool:
        # On a busy machine, a comparison may take so long that it says nothing about so small a difference.
        clock.compare()
        return abs(clock.now() - utc_now()) < timedelta(milliseconds=50)

    wait_until(is_corrected)
    assert not caplog.records


@on_postgresql
def test_a_host_whose_clock_was_corrected_uses_its_own_time_again(database: str) -> None:
    ahead = timedelta(seconds=60)
    clock = SharedClock(lambda: utc_now() + ahead)
    clock.compare()
    ahead = timedelta()
    clock.compare()
    assert abs(clock.now() - utc_now()) < timedelta(milliseconds=1)


@on_postgresql
def test_a_slow_response_of_the_database_does_not_change_the_clock(database: str) -> None:
    began = utc_now()
    times: Iterator[datetime] = cycle([began - timedelta(minutes=3), began + timedelta(minutes=2)])
    clock = SharedClock(lambda: next(times))
    clock.compare()
    assert clock.now() == began - timedelta(minutes=3)


@on_sqlite
def test_on_sqlite_the_clock_of_the_host_is_used(database: str) -> None:
    clock = off_by(60)
    clock.compare()
    assert clock.now() - utc_now() > timedelta(seconds=59)
