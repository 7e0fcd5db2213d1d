"""What whole stories share: workers that meet with bad luck, and the clock that they go by."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.workers import SteppingClock, UnluckyWorker
from tests.support.servers.redis_and_postgres import RedisServer


@pytest.fixture
def unlucky(database: str, redis: RedisServer, tmp_path: Path) -> Callable[..., UnluckyWorker]:
    """Start real worker processes that begin on command; options as `crashing_worker.py` takes them, settings by name."""

    def started(*options: str, **changes: str) -> UnluckyWorker:
        return UnluckyWorker(tmp_path / "data", database, redis.url, *options, **changes)

    return started


@pytest.fixture
def stepping_clock(tmp_path: Path) -> SteppingClock:
    """A clock that can step; workers take its path by `--clock`."""
    return SteppingClock(tmp_path)
