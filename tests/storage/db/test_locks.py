"""The locks that keep commands from running twice at a time, across processes, on both databases."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import pytest

from storage.db import locks
from storage.db.engine import close_database, connection, execute, open_database
from storage.db.locks import Lock, exclusive
from tests.support.processes.workers import wait_until

ROOT: Final = Path(__file__).parents[3]
#: Takes the lock that the second argument names, prints "held", and keeps the lock until it is killed.
HOLDER: Final = """
import sys, time
from storage.db.engine import connection, open_database
from storage.db.locks import Lock, exclusive
open_database(sys.argv[1])
with connection(), exclusive(Lock[sys.argv[2]]):
    print("held", flush=True)
    time.sleep(60)
"""


def holding(url: str, lock: Lock) -> "subprocess.Popen[str]":
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, url, lock.name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def take(lock: Lock) -> None:
    with connection(), exclusive(lock):
        """Nothing more: to have had it is enough."""


def is_free(lock: Lock) -> bool:
    try:
        take(lock)
    except locks.LockBusy:
        return False
    return True


def test_a_lock_held_by_another_process_is_refused_until_it_is_killed(database: str) -> None:
    with holding(database, Lock.PRUNE) as holder:
        with pytest.raises(locks.LockBusy):
            take(Lock.PRUNE)
        holder.kill()
    # PostgreSQL notices the end of the process a moment later.
    wait_until(lambda: is_free(Lock.PRUNE))


def test_a_short_wait_gets_a_lock_that_becomes_free_soon_and_is_refused_otherwise(database: str) -> None:
    with holding(database, Lock.PRUNE) as holder:
        with pytest.raises(locks.LockBusy), connection(), exclusive(Lock.PRUNE, 0.2):
            """Never reached: it is held for a minute."""
        threading.Timer(0.3, holder.kill).start()
        with connection(), exclusive(Lock.PRUNE, 60):
            assert holder.wait() != 0
    assert is_free(Lock.PRUNE)


def test_a_lock_excludes_only_locks_of_the_same_kind(database: str) -> None:
    with holding(database, Lock.PRUNE) as holder:
        take(Lock.BACKUP)
        holder.kill()


def test_a_lock_is_released_if_its_work_fails(database: str) -> None:
    with pytest.raises(ValueError, match="broke"), exclusive(Lock.SWEEP):
        raise ValueError("broke")
    with holding(database, Lock.SWEEP) as holder:
        holder.kill()


def test_a_lock_outlasts_the_time_after_which_an_idle_transaction_ends(postgres_url: str) -> None:
    separator = "&" if "?" in postgres_url else "?"
    url = f"{postgres_url}{separator}options=-c%20idle_in_transaction_session_timeout%3D100"
    open_database(postgres_url)
    with holding(url, Lock.PRUNE) as holder:
        time.sleep(0.5)
        assert not is_free(Lock.PRUNE)
        holder.kill()
    close_database()


def test_work_under_a_lock_whose_connection_was_lost_is_still_done(postgres_url: str) -> None:
    open_database(postgres_url)
    with connection(), exclusive(Lock.PRUNE):
        # The second argument waits for the end of the process.
        execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'")
    assert is_free(Lock.PRUNE)
    close_database()
