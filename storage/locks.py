"""Locks that commands take against themselves, over all processes: a file beside SQLite's, an advisory lock on PostgreSQL.

Both end with the process or the connection that holds them, however that ends.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from peewee import OperationalError

from storage.database import database, is_sqlite


class Lock(IntEnum):
    """What is done by one process at a time; the numbers name PostgreSQL's locks and stay the same over versions."""

    MIGRATE = 7_245_991
    SWEEP = 7_245_992
    PRUNE = 7_245_993
    COMPLIANCE = 7_245_994
    ROTATE_KEYS = 7_245_995
    BACKUP = 7_245_996
    RESTORE = 7_245_997


class Held(Exception):
    """Another process holds the lock."""


@contextmanager
def alone(lock: Lock, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from the same work; the caller holds a connection throughout.

    Raises Held where another process is at it, or waits for its end with `wait`.
    """
    with _file(lock, wait=wait) if is_sqlite() else _advisory(lock, wait=wait):
        yield


@contextmanager
def _file(lock: Lock, *, wait: bool) -> Iterator[None]:
    path = Path(f"{database.obj.database}.{lock.name.lower()}.lock")
    try:
        opened = path.open("w")
    except OSError as failed:
        # As SQLite itself tells of a folder that cannot be written to or is full.
        raise OperationalError(f"{path} cannot be written: {failed.strerror}") from failed
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held from None
        yield


@contextmanager
def _advisory(lock: Lock, *, wait: bool) -> Iterator[None]:
    if wait:
        # The one before may take longer than a request would wait for a lock.
        database.execute_sql("SET lock_timeout = 0")
        database.execute_sql("SELECT pg_advisory_lock(%s)", (lock.value,))
    elif not database.execute_sql("SELECT pg_try_advisory_lock(%s)", (lock.value,)).fetchone()[0]:
        raise Held
    try:
        yield
    finally:
        database.execute_sql("SELECT pg_advisory_unlock(%s)", (lock.value,))
        if wait:
            database.execute_sql("RESET lock_timeout")
