"""What `doctor` asks of the stores: is SQLite's file whole, how long is its log, what time is it there, how Redis is set.

Every look is bounded, reads only, and waits for nobody.
"""

import sqlite3
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import quote

from redis import Redis
from redis.exceptions import RedisError

from runtime.clock import utc_now
from storage.db.engine import LOCK_WAIT_S, database, is_sqlite, rows

#: Virtual-machine steps between two looks at the clock: about a millisecond.
_STEPS: Final = 100_000


class Wholeness(StrEnum):
    """What a look through SQLite's file came to."""

    WHOLE = "whole"
    DAMAGED = "damaged"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class RedisState:
    """How a Redis is set and how soon it answers; `policy` is what it does when its memory is full."""

    policy: str
    latency_s: float
    skew_s: float


def wholeness(within_s: float) -> tuple[Wholeness, str]:
    """Look through SQLite's file for at most `within_s` seconds; return what that came to and what SQLite says."""
    looking = sqlite3.connect(f"file:{quote(str(database.obj.database))}?mode=ro", uri=True, timeout=LOCK_WAIT_S)
    until = time.monotonic() + within_s
    looking.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    try:
        [said] = looking.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as interrupted:
        return Wholeness.UNFINISHED, str(interrupted)
    except sqlite3.DatabaseError as damaged:
        return Wholeness.DAMAGED, str(damaged)
    finally:
        looking.close()
    # What it says of damage has several lines.
    return (Wholeness.WHOLE if said == "ok" else Wholeness.DAMAGED), " ".join(str(said).split())


def log_bytes() -> int:
    """Return how long SQLite's write-ahead log is."""
    log = Path(f"{database.obj.database}-wal")
    return log.stat().st_size if log.exists() else 0


def skew_s() -> float | None:
    """Return by how much PostgreSQL's clock is ahead of ours; None for SQLite, which has none."""
    if is_sqlite():
        return None
    before = utc_now()
    [(there,)] = rows("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
    return _ahead(datetime.fromtimestamp(float(there), UTC), before, utc_now())


def redis_state(client: Redis) -> RedisState | str:
    """Return how a Redis does, or why it cannot be asked."""
    try:
        client.ping()
        began, before = time.monotonic(), utc_now()
        seconds, microseconds = client.time()
        latency_s, after = time.monotonic() - began, utc_now()
        memory = client.info("memory")
    except RedisError as away:
        return type(away).__name__
    there = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)
    policy = str(memory.get("maxmemory_policy", "unknown"))
    return RedisState(policy, latency_s, _ahead(there, before, after))


def _ahead(there: datetime, before: datetime, after: datetime) -> float:
    """Return by how many seconds a clock that was read between `before` and `after` is ahead."""
    return (there - (before + (after - before) / 2)).total_seconds()
