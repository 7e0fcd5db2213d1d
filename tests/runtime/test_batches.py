"""Batches: callers that arrive while a batch runs form the next one, and each gets its own result or its own failure."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import batches
from runtime.batches import Batches
from tests.support.processes.workers import wait_until

ALONE = "alone"


class Doubling:
    """Doubles the numbers of a batch and records each batch; `held` keeps a first caller running while others arrive."""

    def __init__(self, together: Callable[[Sequence[int]], list[Any]] | None = None) -> None:
        self.batches: list[list[int]] = []
        self.batcher = Batches[int, Any](self._double)
        self._together = together or (lambda numbers: [2 * number for number in numbers])

    def _double(self, numbers: Sequence[int]) -> list[Any]:
        self.batches.append([*numbers])
        return self._together(numbers)

    def waiting(self) -> int:
        return sum(map(len, self.batcher._waiting.values()))

    def has_waiting(self, count: int) -> bool:
        return self.waiting() == count

    def run(self, number: int, alone: Callable[[], Any] = lambda: ALONE, group: str = "g") -> Any:
        return self.batcher.run(group, number, alone)

    @contextmanager
    def held(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """Keep the group busy with one caller until the block ends."""
        is_held, may_go_on = threading.Event(), threading.Event()

        def hold() -> str:
            is_held.set()
            assert may_go_on.wait(10)
            return "first"

        first = pool.submit(self.run, 0, hold)
        assert is_held.wait(10)
        yield
        may_go_on.set()
        assert first.result(10) == "first"


def arrive(pool: ThreadPoolExecutor, doubling: Doubling, numbers: Sequence[int]) -> list["Future[Any]"]:
    """Submit callers one after the other while the group is busy."""
    arrived = []
    for count, number in enumerate(numbers, 1):
        arrived.append(pool.submit(doubling.run, number))
        wait_until(partial(doubling.has_waiting, count), 10)
    return arrived


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(50) as pool:
        yield pool


def test_a_single_caller_forms_no_batch() -> None:
    doubling = Doubling()
    assert [doubling.run(1), doubling.run(2)] == [ALONE, ALONE]
    assert (doubling.batches, doubling.batcher._waiting) == ([], {})


def test_waiting_callers_form_one_batch_in_their_order(pool: ThreadPoolExecutor) -> None:
    doubling = Doubling()
    with doubling.held(pool):
        arrived = arrive(pool, doubling, [3, 1, 2])
        assert doubling.run(7, group="another") == ALONE
    assert [each.result(10) for each in arrived] == [6, 2, 4]
    assert doubling.batches == [[3, 1, 2]]
    assert doubling.batcher._waiting == {}


def test_callers_that_can_join_at_once_are_in_the_first_batch(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the first caller yields the processor, another caller arrives, until there are three."""
    doubling = Doubling()
    arrived: list[Future[Any]] = []

    def sleep(_: float) -> None:
        if len(arrived) < 2:
            arrived.append(pool.submit(doubling.run, len(arrived) + 1))
            wait_until(partial(doubling.has_waiting, len(arrived)), 10)

    monkeypatch.setattr(batches, "time", SimpleNamespace(sleep=sleep))
    assert doubling.run(0) == 0
    assert [each.result(10) for each in arrived] == [2, 4]
    assert doubling.batches == [[0, 1, 2]]


def test_a_batch_is_limited_and_further_callers_form_the_next_one(pool: ThreadPoolExecutor) -> None:
    doubling = Doubling()
    with doubling.held(pool):
        arrived = arrive(pool, doubling, range(40))
    assert [each.result(10) for each in arrived] == [2 * number for number in range(40)]
    assert doubling.batches == [[*range(32)], [*range(32, 40)]]


def test_a_caller_without_a_result_works_alone(pool: ThreadPoolExecutor) -> None:
    doubling = Doubling(lambda numbers: [None if number == 2 else number for number in numbers])
    with doubling.held(pool):
        arrived = arrive(pool, doubling, [1, 2, 3])
    assert [each.result(10) for each in arrived] == [1, ALONE, 3]


@pytest.mark.parametrize("wrong", [ValueError("no"), []], ids=["raises", "too few results"])
def test_after_a_failed_batch_each_caller_works_alone(wrong: Any, pool: ThreadPoolExecutor) -> None:
    def fail(_: Sequence[int]) -> list[Any]:
        if isinstance(wrong, Exception):
            raise wrong
        return [*wrong]

    doubling = Doubling(fail)
    with doubling.held(pool):
        arrived = arrive(pool, doubling, [1, 2])
    assert [each.result(10) for each in arrived] == [ALONE, ALONE]
    assert doubling.batcher._waiting == {}


def test_an_exception_of_a_caller_that_works_alone_affects_no_other(pool: ThreadPoolExecutor) -> None:
    doubling = Doubling()

    def refuse() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        doubling.run(1, refuse)
    assert doubling.run(2) == ALONE


def test_after_an_interrupted_leader_each_caller_of_the_batch_works_alone(pool: ThreadPoolExecutor) -> None:
    def interrupt(_: Sequence[int]) -> list[Any]:
        raise KeyboardInterrupt

    doubling = Doubling(interrupt)
    with doubling.held(pool):
        leader, *others = arrive(pool, doubling, [1, 2, 3])
    assert isinstance(leader.exception(10), KeyboardInterrupt)
    assert [each.result(10) for each in others] == [ALONE, ALONE]
    assert doubling.batcher._waiting == {}


def test_a_caller_interrupted_while_waiting_is_not_in_the_batch(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    doubling = Doubling()
    with doubling.held(pool):
        first = arrive(pool, doubling, [1])
        with monkeypatch.context() as patch:
            patch.setattr("runtime.batches.threading", SimpleNamespace(Event=Interrupted))
            with pytest.raises(KeyboardInterrupt):
                doubling.run(2)
        second = pool.submit(doubling.run, 3)
        wait_until(lambda: doubling.waiting() == 2, 10)
    assert [each.result(10) for each in (*first, second)] == [2, 6]
    assert doubling.batches == [[1, 3]]
