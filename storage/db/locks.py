"""Locks for work that only one process does at a time: a file beside SQLite's, an advisory lock on PostgreSQL.

A file lock ends with its process, an advisory lock with its connection, even after a crash. An advisory lock takes a
connection of its own.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Final

from peewee import OperationalError

from runtime.files import try_lock
from storage.db.engine import OUTAGES, database, is_sqlite, second_connection

_RETRY_INTERVAL_S: Final = 0.05


class Lock(IntEnum):
    """Work that only one process does at a time; the numbers name PostgreSQL's locks and stay the same across versions."""

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
def exclusive(lock: Lock, within_s: float = 0.0) -> Iterator[None]:
    """Keep other processes from the same work; waits up to `within_s` seconds for the holder of the lock.

    The caller holds a connection throughout. Raises LockBusy if another process still holds the lock.
    """
    gives_up_at = time.monotonic() + within_s
    with _file(lock) if is_sqlite() else _advisory(lock) as try_to_take:
        while not try_to_take():
            if time.monotonic() >= gives_up_at:
                raise LockBusy
            time.sleep(_RETRY_INTERVAL_S)
        yield


@contextmanager
def _file(lock: Lock) -> Iterator[Callable[[], bool]]:
    path = Path(f"{database.obj.database}.{lock.name.lower()}.lock")
    try:
        # Only the owner may open the file: any process that can open it can lock it.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as failed:
        # SQLite raises the same error if the folder cannot be written to or is full.
        raise OperationalError(f"{path} cannot be written: {failed.strerror}") from failed
    try:
        yield partial(try_lock, opened)
    finally:
        os.close(opened)


@contextmanager
def _advisory(lock: Lock) -> Iterator[Callable[[], bool]]:
    """Take the lock in a separate transaction: in PgBouncer's mode `transaction`, no session stays with a connection.

    That transaction has no snapshot: even if it is idle for long, it keeps no row from being vacuumed.
    """
    with second_connection() as run:
        run("BEGIN")
        try:
            run("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield lambda: bool(run("SELECT pg_try_advisory_xact_lock(%s)", lock.value).fetchone()[0])
        finally:
            # If the connection is lost, so is the lock; what was done under it is done.
            with suppress(*OUTAGES):
                run("ROLLBACK")
