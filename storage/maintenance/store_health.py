"""Store health, for `doctor`: SQLite's integrity and log size, PostgreSQL's clock, the settings and latency of Redis.

Every check is bounded in time, only reads, and waits for no lock.
"""

import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from peewee import Select, fn
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from runtime.clock import utc_now
from storage.db.drivers.sqlite import open_file
from storage.db.engine import database, is_sqlite
from storage.db.shared_clock import ahead_of

#: How many virtual-machine steps SQLite runs between two checks of the time limit: about a millisecond.
_STEPS: Final = 100_000
#: The settings of `storage.db.drivers.postgresql` for each session.
_TIMEOUTS: Final = ("lock_timeout", "idle_in_transaction_session_timeout")


class Integrity(StrEnum):
    """The result of an integrity check of SQLite's file."""

    WHOLE = "whole"
    DAMAGED = "damaged"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class RedisState:
    """The settings and latency of Redis; `policy` is its `maxmemory-policy`, empty if this user may not read it."""

    policy: str
    latency_s: float
    skew_s: float


def integrity(within_s: float) -> tuple[Integrity, str]:
    """Check SQLite's file for at most `within_s` seconds; return the result and SQLite's message."""
    until = time.monotonic() + within_s
    with closing(open_file(Path(database.obj.database), "mode=ro")) as connected:
        connected.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
        try:
            [message] = connected.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError as interrupted:
            return Integrity.UNFINISHED, str(interrupted)
        except sqlite3.DatabaseError as damaged:
            return Integrity.DAMAGED, str(damaged)
    # A message about damage has several lines.
    return (Integrity.WHOLE if message == "ok" else Integrity.DAMAGED), " ".join(str(message).split())


def log_bytes() -> int:
    """Return the size of SQLite's write-ahead log in bytes."""
    log = Path(f"{database.obj.database}-wal")
    return log.stat().st_size if log.exists() else 0


def skew_s() -> float | None:
    """Return by how many seconds PostgreSQL's clock is ahead of this process's; None for SQLite, which has no clock."""
    return None if is_sqlite() else ahead_of(utc_now)[0].total_seconds()


def missing_timeouts() -> list[str]:
    """Return which timeouts PostgreSQL's sessions lack, because a pooler does not pass our settings on. Empty for SQLite."""
    if is_sqlite():
        return []
    values = Select((), [fn.current_setting(each) for each in _TIMEOUTS]).bind(database).tuples().get()
    return [name for name, value in zip(_TIMEOUTS, values, strict=True) if value == "0"]


def redis_state(client: Redis) -> RedisState | str:
    """Return the state of Redis, or the class name of its error."""
    try:
        client.ping()
        began, before = time.monotonic(), utc_now()
        seconds, microseconds = client.time()
        latency_s, half_way = time.monotonic() - began, before + (utc_now() - before) / 2
        # Refused as every write would be, and stores nothing, because the key never exists.
        client.set("riskrelay:none", "", xx=True)
    except RedisError as error:
        return type(error).__name__
    policy = ""
    with suppress(ResponseError):
        policy = str(client.info("memory").get("maxmemory_policy", ""))
    there = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)
    return RedisState(policy, latency_s, (there - half_way).total_seconds())
