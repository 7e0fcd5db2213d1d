"""What whole stories share: workers that meet with bad luck, and the clock that they go by."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.workers import FailingWorker, SteppingClock
from tests.support.servers.redis_and_postgres import RedisServer


@pytest.fixture
def failing(database: str, redis: RedisServer, tmp_path: Path) -> Callable[..., FailingWorker]:
    """Start real worker processes that begin on command; options as `crashing_worker.py` takes them, settings by name."""

    def started(*options: str, **changes: str) -> FailingWorker:
        return FailingWorker(tmp_path / "data", database, redis.url, *options, **changes)

    return started


@pytest.fixture
def stepping_clock(tmp_path: Path) -> SteppingClock:
    """A clock that can step; workers take its path by `--clock`."""
    return SteppingClock(tmp_path)
