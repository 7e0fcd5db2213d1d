"""A full disk is recognized by the errors of each database and of the system, and by the free space."""

import errno
from pathlib import Path

import psycopg
import pytest

from storage.accounts import accounts
from storage.db.disk_space import FULL_BYTES, LAST_FULL_WRITE, LOW_BYTES, DiskState, free_bytes, is_full_error, state_of
from storage.db.engine import DatabaseFull, connection, execute, open_database, rows, transaction
from tests.support.factories import NOW

# Columns: an error; whether it means that a disk is full.
ERRORS: list[tuple[BaseException, bool]] = [
    (psycopg.errors.DiskFull("could not extend file"), True),
    (OSError(errno.ENOSPC, "No space left on device"), True),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
    (psycopg.errors.OutOfMemory("out of memory"), False),
    (OSError(errno.EACCES, "Permission denied"), False),
    (ValueError("database or disk is full"), False),
]


@pytest.mark.parametrize(("error", "is_full"), ERRORS)
def test_a_disk_full_error_is_recognized_also_as_the_cause_of_another_error(error: BaseException, is_full: bool) -> None:
    assert is_full_error(error) is is_full
    outer = RuntimeError("later")
    outer.__cause__ = error
    assert is_full_error(outer) is is_full


def test_an_error_that_is_its_own_context_ends() -> None:
    error, other = ValueError(), ValueError()
    error.__context__, other.__context__ = other, error
    assert not is_full_error(error)


def test_a_full_disk_under_sqlite_is_recognized_and_recorded(sqlite_url: str) -> None:
    open_database(sqlite_url)
    with connection():
        with transaction():
            [(pages,)] = rows("PRAGMA page_count")
            execute(f"PRAGMA max_page_count = {pages}")
        assert not LAST_FULL_WRITE.is_recent()
        with pytest.raises(DatabaseFull, match="full"):
            accounts.add_account("x" * 100_000, NOW)
        assert LAST_FULL_WRITE.is_recent()
    open_database(sqlite_url)
    assert not LAST_FULL_WRITE.is_recent()


@pytest.mark.parametrize(
    ("free", "state"), [(FULL_BYTES - 1, "full"), (FULL_BYTES, "low"), (LOW_BYTES - 1, "low"), (LOW_BYTES, "ok")]
)
def test_the_state_of_a_disk_follows_its_free_space(free: int, state: str) -> None:
    LAST_FULL_WRITE.clear()
    assert state_of(free) == state


def test_after_a_failed_write_a_disk_is_full_whatever_its_free_space() -> None:
    LAST_FULL_WRITE.record()
    assert state_of(LOW_BYTES) is DiskState.FULL
    LAST_FULL_WRITE.clear()


def test_a_folder_that_is_missing_counts_as_its_parent(tmp_path: Path) -> None:
    assert free_bytes([tmp_path / "not" / "there"]) > 0
