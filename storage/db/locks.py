"""Locks: work that one process does at a time, over all processes: a file beside SQLite's, an advisory lock on PostgreSQL.

Both end with the process or the connection that holds them, however that ends. PostgreSQL's takes a connection of its own.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final

from peewee import OperationalError

from storage.db.engine import database, is_sqlite, second_connection

#: Between two tries to get a lock that may be free at any moment.
_TRY_AGAIN_S: Final = 0.05


class Lock(IntEnum):
    """Work that one process does at a time; the numbers name PostgreSQL's locks and stay the same over versions."""

    MIGRATE = 7_245_991
    SWEEP = 7_245_992
    PRUNE = 7_245_993
    COMPLIANCE = 7_245_994
    ROTATE_KEYS = 7_245_995
    BACKUP = 7_245_996
    RESTORE = 7_245_997
    INIT = 7_245_998
    AUDIT = 7_245_999
    ALERTS = 7_246_000


class LockBusy(Exception):
    """Another process holds the lock."""


@contextmanager
def exclusive(lock: Lock, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from the same work; the caller holds a connection throughout.

    Raises LockBusy if another process holds the lock; with `wait`, waits for it.
    """
    with _file(lock, wait=wait) if is_sqlite() else _advisory(lock, wait=wait):
        yield


@contextmanager
def exclusive_within(lock: Lock, within_s: float) -> Iterator[None]:
    """Take the lock like `exclusive`, but wait up to `within_s` seconds for its holder. Raises LockBusy."""
    gives_up_at = time.monotonic() + within_s
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(exclusive(lock))
                break
            except LockBusy:
                if time.monotonic() >= gives_up_at:
                    raise
            time.sleep(_TRY_AGAIN_S)
        yield


@contextmanager
def _file(lock: Lock, *, wait: bool) -> Iterator[None]:
    path = Path(f"{database.obj.database}.{lock.name.lower()}.lock")
    try:
        # For its owner alone: any process that can open it can hold it.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as failed:
        # SQLite reports a folder that cannot be written to, or is full, by the same error.
        raise OperationalError(f"{path} cannot be written: {failed.strerror}") from failed
    with os.fdopen(opened, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockBusy from None
        yield


@contextmanager
def _advisory(lock: Lock, *, wait: bool) -> Iterator[None]:
    """Hold the lock in a transaction of its own: in PgBouncer's mode `transaction`, no session stays with a connection.

    That transaction has no snapshot: however long it is idle, it keeps no row from being vacuumed.
    """
    with second_connection() as run:
        run("BEGIN")
        try:
            run("SET LOCAL idle_in_transaction_session_timeout = 0")
            if wait:
                # The present holder may take longer than a request would wait for a lock.
                run("SET LOCAL lock_timeout = 0")
                run("SELECT pg_advisory_xact_lock(%s)", lock.value)
            elif not run("SELECT pg_try_advisory_xact_lock(%s)", lock.value).fetchone()[0]:
                raise LockBusy
            yield
        finally:
            run("ROLLBACK")
