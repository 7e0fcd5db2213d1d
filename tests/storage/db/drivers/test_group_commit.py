"""SQLite's single writer: one commit carries several works; each is rolled back alone, and returns once it is on disk."""

import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import peewee
import pytest

from storage.db.drivers import group_commit
from storage.db.drivers.group_commit import GroupCommit
from tests.support.fakes import Rollback

#: More works than one commit carries.
MANY = 20


class File:
    """A file with one table, the transactions of a process on it, and the statements that they ran."""

    def __init__(self, path: Path, lock_wait_s: float = 5) -> None:
        self.path = path
        self.ran: list[str] = []
        # Long enough that works can still join the commit on a busy machine.
        self.writes = GroupCommit(self._connect, lock_wait_s, open_s=60)
        with self.writes.transaction() as driver:
            driver.execute("CREATE TABLE parents (name TEXT PRIMARY KEY)")
            driver.execute(
                "CREATE TABLE works (name TEXT PRIMARY KEY, "
                "parent TEXT REFERENCES parents (name) DEFERRABLE INITIALLY DEFERRED)"
            )
        self.ran.clear()

    def write(self, name: str, parent: str | None = None, fails: bool = False) -> None:
        """Insert one row, and then fail if `fails`."""
        with self.writes.transaction() as driver:
            driver.execute("INSERT INTO works VALUES (?, ?)", (name, parent))
            if fails:
                raise LookupError(name)

    def stored(self) -> set[str]:
        """Return the names that another connection reads."""
        with closing(sqlite3.connect(self.path)) as reader, reader:
            return {name for (name,) in reader.execute("SELECT name FROM works")}

    @property
    def commits(self) -> int:
        return self.ran.count("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        driver = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        driver.execute("PRAGMA journal_mode = wal")
        driver.execute("PRAGMA foreign_keys = 1")
        driver.set_trace_callback(self.ran.append)
        return driver


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = File(tmp_path / "works.db")
    yield made
    made.writes.close()


#: Enough for a work to begin waiting after it was counted as waiting, even on a busy machine.
BETWEEN_S = 0.1


def at_once(file: File, *works: Callable[[], None], between_s: float = 0.0) -> list[Future[None]]:
    """Run works that all wait until a transaction that writes nothing ends; return their results."""
    with ThreadPoolExecutor(len(works)) as pool:
        begun = []
        with suppress(Rollback), file.writes.transaction():
            for count, work in enumerate(works, 1):
                begun.append(pool.submit(work))
                # Started one after the other, so that they run in this order.
                while len(file.writes._waiting) < count:
                    time.sleep(0.001)
                time.sleep(between_s)
            file.ran.clear()
            raise Rollback
    return begun


def test_waiting_transactions_are_committed_together_by_the_last(file: File) -> None:
    done = at_once(file, *(partial(file.write, str(number)) for number in range(3)))
    assert [each.exception() for each in done] == [None] * 3
    assert file.stored() == {"0", "1", "2"}
    assert file.commits == 1


def test_a_commit_includes_a_limited_number_of_transactions(file: File) -> None:
    done = at_once(file, *(partial(file.write, str(number)) for number in range(MANY)))
    assert [each.exception() for each in done] == [None] * MANY
    assert len(file.stored()) == MANY
    assert file.commits >= 2


def test_no_work_returns_before_the_commit(file: File) -> None:
    def is_stored_when_reported(name: str) -> None:
        file.write(name)
        assert name in file.stored()

    done = at_once(file, *(partial(is_stored_when_reported, str(number)) for number in range(5)))
    assert [each.exception() for each in done] == [None] * 5


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "in the middle", "last"])
def test_only_the_failed_transaction_is_rolled_back(file: File, place: int) -> None:
    done = at_once(file, *(partial(file.write, str(number), fails=number == place) for number in range(3)))
    assert [number for number, each in enumerate(done) if isinstance(each.exception(), LookupError)] == [place]
    assert sum(each.exception() is None for each in done) == 2
    assert file.stored() == {"0", "1", "2"} - {str(place)}
    file.write("after")
    assert "after" in file.stored()


def test_a_failed_commit_fails_all_its_transactions(file: File) -> None:
    """None of our constraints is checked as late as the commit; this deferred foreign key makes a commit fail."""
    done = at_once(file, partial(file.write, "a"), partial(file.write, "b", parent="nobody"), partial(file.write, "c"))
    assert all(isinstance(each.exception(), peewee.OperationalError | peewee.IntegrityError) for each in done)
    assert file.stored() == set()
    file.write("after")
    assert file.stored() == {"after"}


def test_a_failure_caused_by_another_transaction_is_raised_after_that_one_is_committed(file: File) -> None:
    def find(name: str) -> None:
        with file.writes.transaction() as driver:
            if driver.execute("SELECT 1 FROM works WHERE name = ?", (name,)).fetchall():
                raise LookupError(name)

    stored = at_once(file, partial(file.write, "a"), partial(find, "a"), partial(file.write, "b"), between_s=BETWEEN_S)
    assert [type(each.exception()) for each in stored] == [type(None), LookupError, type(None)]
    lost = at_once(
        file, partial(file.write, "c"), partial(find, "c"), partial(file.write, "d", parent="nobody"), between_s=BETWEEN_S
    )
    assert [isinstance(each.exception(), peewee.OperationalError) for each in lost] == [True] * 3
    assert file.stored() == {"a", "b"}


def test_a_transaction_is_committed_even_if_an_expected_one_never_begins(file: File) -> None:
    file.writes._waiting.add(object())
    file.write("a")
    assert file.stored() == {"a"}


def test_an_expected_transaction_that_never_begins_is_waited_for_once(file: File) -> None:
    file.writes._waiting.add(object())
    file.write("a")
    assert not file.writes._waiting


@pytest.mark.parametrize("notices", [True, False], ids=["noticed", "unnoticed"])
def test_a_rollback_by_sqlite_itself_fails_all_transactions(file: File, notices: bool) -> None:
    """A full disk rolls the whole transaction back. What follows would be stored without what came before."""

    def fill() -> None:
        with file.writes.transaction() as driver:
            [(pages,)] = driver.execute("PRAGMA page_count").fetchall()
            driver.execute(f"PRAGMA max_page_count = {pages}")
            with suppress(*() if notices else (sqlite3.OperationalError,)):
                driver.execute("INSERT INTO works VALUES (?, NULL)", ("x" * 100_000,))

    done = at_once(file, partial(file.write, "a"), fill, partial(file.write, "c"), between_s=BETWEEN_S)
    assert [isinstance(each.exception(), Exception) for each in done] == [True, True, False]
    assert file.stored() == {"c"}


def test_closing_fails_transactions_that_wait_for_their_commit(file: File) -> None:
    file.writes._waiting.add(object())
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(file.write, "a")
        while file.writes._batch is None or not file.writes._batch.completed:
            time.sleep(0.001)
        file.writes.close()
        assert isinstance(written.exception(timeout=10), peewee.OperationalError)
    assert file.stored() == set()


class _Interrupt(BaseException):
    """A signal, or a greenlet that is killed."""


def interrupted(work: Callable[[], None], lines: set[int]) -> BaseException | None:
    """Run a work that is interrupted at these lines of `storage.db.drivers.group_commit`; return its exception, if any."""
    traced_lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal traced_lines
        if frame.f_code.co_filename != group_commit.__file__:
            return None
        if event == "line":
            traced_lines += 1
            if traced_lines in lines:
                raise _Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except (_Interrupt, LookupError, peewee.OperationalError) as ended:
        return ended
    finally:
        sys.settrace(before)
    return None


#: More lines than a transaction executes.
LINES = range(1, 75)


@pytest.mark.parametrize("fails", [False, True], ids=["work that is done", "work that fails"])
def test_an_interrupt_at_any_line_neither_keeps_the_lock_nor_stores_a_part(tmp_path: Path, fails: bool) -> None:
    file = File(tmp_path / "works.db", lock_wait_s=0.05)
    reported = []
    for line in LINES:
        reported.append(interrupted(partial(file.write, f"work {line}", fails=fails), {line}))
        file.write(f"after {line}")
        assert f"after {line}" in file.stored()
        assert reported[-1] is not None or f"work {line}" in file.stored()
        assert not fails or f"work {line}" not in file.stored()
    assert isinstance(reported[0], _Interrupt)
    assert not isinstance(reported[-1], _Interrupt)
    file.writes.close()


def test_an_interrupt_at_any_line_never_reports_lost_work_of_another_thread_as_stored(tmp_path: Path) -> None:
    file = File(tmp_path / "works.db", lock_wait_s=10)
    for line in LINES:
        with ThreadPoolExecutor(1) as pool:
            with file.writes._slot:
                other = pool.submit(file.write, f"other {line}")
                while not file.writes._waiting:
                    time.sleep(0.0005)
            ended = interrupted(partial(file.write, f"work {line}"), {line})
            assert (other.exception(timeout=10) is None) == (f"other {line}" in file.stored())
        assert ended is not None or f"work {line}" in file.stored()
    file.writes.close()


def test_a_writer_that_waits_too_long_gets_an_error_that_the_database_is_locked(tmp_path: Path) -> None:
    file = File(tmp_path / "works.db", lock_wait_s=0.05)
    failed: list[BaseException] = []

    def write() -> None:
        with pytest.raises(peewee.OperationalError, match="locked") as reported:
            file.write("b")
        failed.append(reported.value)

    with file.writes.transaction() as driver:
        driver.execute("INSERT INTO works VALUES ('a', NULL)")
        late = threading.Thread(target=write)
        late.start()
        late.join()
    assert len(failed) == 1
    assert file.stored() == {"a"}
    file.writes.close()


def test_another_process_that_writes_is_waited_for(file: File) -> None:
    other = sqlite3.connect(file.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(file.write, "a")
        time.sleep(0.02)
        assert not written.done()
        other.execute("COMMIT")
        written.result(timeout=10)
    assert file.stored() == {"a"}
    other.close()
