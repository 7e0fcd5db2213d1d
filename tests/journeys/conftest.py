"""Fixtures for end-to-end tests: workers that fail at a given point, and a clock that steps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.workers import FailingWorker, SteppingClock
from tests.support.servers.redis_and_postgres import RedisServer


@pytest.fixture
def failing(database: str, redis: RedisServer, tmp_path: Path) -> Callable[..., FailingWorker]:
    """Return a function that starts workers with the options of `crashing_worker.py` and with settings by name."""

    def started(*options: str, **changes: str) -> FailingWorker:
        return FailingWorker(tmp_path / "data", database, redis.url, *options, **changes)

    return started


@pytest.fixture
def stepping_clock(tmp_path: Path) -> SteppingClock:
    """A clock that can step. Workers read it from the file of their option `--clock`."""
    return SteppingClock(tmp_path)
