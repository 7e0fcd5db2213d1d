"""Claims wait in their targets' lanes, and no lane sends more at once than it has slots, whatever threads do meanwhile."""

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pytest

from schemas.exports.delivery import Claim
from tests.support.factories import NOW
from tests.support.workers import wait_until
from worker.delivery.target_queues import Lanes

NUMBERS: Final = itertools.count()
PATIENCE_S: Final = 10.0


def claims(target_id: str, count: int) -> list[Claim]:
    return [
        Claim(f"exp_{next(NUMBERS)}", "lse_1", 1, 1, target_id, "https://a.example/", None, b"{}", NOW, NOW)
        for _ in range(count)
    ]


def lanes_with(slots: int, *waiting: Claim) -> Lanes:
    lanes = Lanes()
    lanes.add(waiting)
    for target_id in {claim.target_id for claim in waiting}:
        lanes.open(target_id, slots)
    return lanes


def ready(lanes: Lanes) -> list[Claim]:
    """Return what threads could take now; the lanes are of no use afterwards."""
    lanes.end(1)
    return list(iter(lanes.take, None))


def test_what_is_added_waits_until_its_lane_is_open() -> None:
    lanes = Lanes()
    lanes.add(claims("a", 3))
    assert lanes.waiting() == {"a"}
    assert ready(lanes) == []


def test_a_lane_sends_in_order_and_no_more_than_it_has_slots() -> None:
    first, second, third = claims("a", 3)
    lanes = lanes_with(2, first, second, third)
    assert lanes.waiting() == {"a"}
    assert ready(lanes) == [first, second]


def test_whoever_comes_back_takes_the_next_of_its_lane_along() -> None:
    first, second, third = claims("a", 3)
    lanes = lanes_with(1, first, second, third)
    assert lanes.take() == first
    assert lanes.after(first, ends_turn=False) == second
    assert lanes.after(second, ends_turn=False) == third
    assert lanes.waiting() == set()
    assert lanes.after(third, ends_turn=False) is None


def test_what_waits_behind_all_slots_is_counted() -> None:
    first, *others = claims("a", 5)
    lanes = Lanes()
    lanes.add([first, *others, *claims("b", 2)])
    # Closed lanes have no slots.
    assert lanes.behind() == 7
    lanes.open("a", 2)
    lanes.open("b", 3)
    assert lanes.behind() == 3
    assert lanes.take() == first
    lanes.after(first, ends_turn=False)
    assert lanes.behind() == 2


def test_where_another_lane_waits_for_the_thread_it_has_its_turn() -> None:
    [first, second], [other] = claims("a", 2), claims("b", 1)
    lanes = lanes_with(1, first, second, other)
    taken = [lanes.take(), None]
    assert taken[0] is not None
    assert lanes.after(taken[0], ends_turn=False) is None
    assert len(ready(lanes)) == (2 if taken[0] == first else 1)


def test_fewer_slots_let_what_is_open_end_and_send_nothing_more() -> None:
    sent = claims("a", 4)
    lanes = lanes_with(3, *sent)
    taken = [lanes.take() for _ in range(3)]
    lanes.open("a", 1)
    assert [lanes.after(claim, ends_turn=False) for claim in taken[:2] if claim] == [None, None]
    assert taken[2] is not None
    assert lanes.after(taken[2], ends_turn=False) == sent[3]


def test_an_answer_that_ends_the_turn_closes_the_lane_for_what_waits() -> None:
    first, second, third = claims("a", 3)
    lanes = lanes_with(2, first, second, third)
    lanes.take()
    assert lanes.after(first, ends_turn=True) is None
    assert ready(lanes) == []
    assert lanes.take_back("a") == [second, third]


def test_what_waited_for_a_thread_when_its_lane_closed_goes_back_to_the_front() -> None:
    first, second, third = claims("a", 3)
    lanes = lanes_with(2, first, second, third)
    assert lanes.take() == first
    lanes.after(first, ends_turn=True)
    assert ready(lanes) == []
    lanes.written("a")
    lanes.open("a", 2)
    assert ready(lanes) == [second, third]


def test_a_closed_lane_opens_only_when_every_answer_that_closed_it_is_written() -> None:
    first, second, third = claims("a", 3)
    lanes = lanes_with(2, first, second, third)
    lanes.take()
    lanes.take()
    lanes.after(first, ends_turn=True)
    lanes.after(second, ends_turn=True)
    for _ in range(2):
        # Somebody has read the row as it was before the answer.
        lanes.open("a", 16)
        assert lanes.waiting() == {"a"}
        lanes.written("a")
    lanes.open("a", 16)
    assert ready(lanes) == [third]


def test_what_is_claimed_before_the_answer_is_written_waits_too() -> None:
    [first], [later] = claims("a", 1), claims("a", 1)
    lanes = lanes_with(1, first)
    lanes.take()
    lanes.after(first, ends_turn=True)
    lanes.add([later])
    lanes.open("a", 16)
    assert lanes.take_back("a") == [later]


def test_a_lane_that_closes_takes_no_thread_from_another() -> None:
    [first, second], [other] = claims("a", 2), claims("b", 1)
    lanes = lanes_with(2, first, second)
    lanes.take()
    lanes.after(first, ends_turn=True)
    lanes.add([other])
    lanes.open("b", 1)
    assert lanes.take() == other


def test_a_lane_whose_claims_are_taken_back_is_as_if_it_had_never_been() -> None:
    lanes = lanes_with(0, *claims("a", 2))
    assert len(lanes.take_back("a")) == 2
    assert (lanes.waiting(), lanes.take_back("a")) == (set(), [])
    lanes.open("a", 16)
    assert ready(lanes) == []


def test_everything_that_no_thread_has_begun_with_can_be_taken_back() -> None:
    some, others = claims("a", 5), claims("b", 2)
    lanes = lanes_with(2, *some, *others)
    begun = lanes.take()
    taken = lanes.take_back_all()
    assert begun is not None
    assert Counter(each.export_id for each in [begun, *taken]) == Counter(each.export_id for each in [*some, *others])
    assert lanes.after(begun, ends_turn=False) is None
    assert (lanes.waiting(), lanes.take_back_all(), ready(lanes)) == (set(), [], [])


# ---------------------------------------------------------------- threads


class Senders:
    """Threads that send what lanes give them, one target's when the gate is open; counts what each lane has open at once."""

    def __init__(self, lanes: Lanes, ends_turn: float = 0.0, send_s: float = 0.0, hangs: str = "") -> None:
        self.lanes = lanes
        self.sent: list[Claim] = []
        self.answered: list[tuple[Claim, bool]] = []
        self.most: defaultdict[str, int] = defaultdict(int)
        self.gate = threading.Event()
        self._open: Counter[str] = Counter()
        self._ends_turn, self._send_s, self._hangs = ends_turn, send_s, hangs
        self._lock = threading.Lock()

    def run(self) -> None:
        claim = self.lanes.take()
        while claim is not None:
            with self._lock:
                self._open[claim.target_id] += 1
                self.most[claim.target_id] = max(self.most[claim.target_id], self._open[claim.target_id])
                self.sent.append(claim)
            if claim.target_id == self._hangs:
                self.gate.wait(PATIENCE_S)
            time.sleep(self._send_s)
            ends_turn = random.random() < self._ends_turn
            with self._lock:
                # Before the slot is free: the next one may begin at once.
                self._open[claim.target_id] -= 1
            following = self.lanes.after(claim, ends_turn=ends_turn)
            self.answered.append((claim, ends_turn))
            claim = following or self.lanes.take()


@contextmanager
def sending(senders: Senders, threads: int) -> Iterator[None]:
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(senders.run) for _ in range(threads)]
        try:
            yield
        finally:
            senders.gate.set()
            senders.lanes.end(threads)
        for each in running:
            each.result(PATIENCE_S)


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_many_threads_send_everything_once_and_keep_to_the_slots(slots: int) -> None:
    added = {f"t{number}": claims(f"t{number}", 200) for number in range(5)}
    everything = list(itertools.chain(*added.values()))
    senders = Senders(Lanes(), send_s=0.0001)
    with sending(senders, 12):
        senders.lanes.add(everything)
        for target_id in added:
            senders.lanes.open(target_id, slots)
        wait_until(lambda: len(senders.answered) == len(everything))
    assert Counter(claim.export_id for claim in senders.sent) == {claim.export_id: 1 for claim in everything}
    assert max(senders.most.values()) <= slots
    for target_id, its in added.items():
        if slots == 1:
            assert [claim for claim in senders.sent if claim.target_id == target_id] == its


def test_a_target_that_hangs_leaves_the_other_threads_to_the_others() -> None:
    senders = Senders(Lanes(), hangs="slow")
    with sending(senders, 3):
        senders.lanes.add([*claims("slow", 50), *claims("quick", 50)])
        senders.lanes.open("slow", 2)
        senders.lanes.open("quick", 2)
        wait_until(lambda: len(senders.answered) == 50)
        assert Counter(claim.target_id for claim in senders.sent) == {"slow": 2, "quick": 50}
        senders.gate.set()
        wait_until(lambda: len(senders.answered) == 100)


def test_a_lane_that_opens_and_closes_all_the_time_loses_and_doubles_nothing() -> None:
    """A drain that opens lanes by what it read, whatever ends the turn meanwhile."""
    lanes = Lanes()
    senders = Senders(lanes, ends_turn=0.2, send_s=0.0001)
    everything = [*claims("a", 300), *claims("b", 300)]
    with sending(senders, 8):
        lanes.add(everything)
        written = 0
        while written < len(everything):
            answered = senders.answered[written:]
            written += len(answered)
            for claim, ends_turn in answered:
                if ends_turn:
                    lanes.written(claim.target_id)
            for target_id in lanes.waiting():
                lanes.open(target_id, 3)
            time.sleep(0.001)
    assert Counter(claim.export_id for claim in senders.sent) == {claim.export_id: 1 for claim in everything}
    assert max(senders.most.values()) <= 3
    assert lanes.take_back_all() == []


def test_everything_can_be_taken_back_while_threads_take_it_too() -> None:
    """Over and over: what is there for a moment may be gone in the next, and nobody waits for it with the lock held."""
    for _ in range(100):
        lanes = Lanes()
        senders = Senders(lanes)
        everything = claims("a", 20)
        with sending(senders, 4):
            lanes.add(everything)
            lanes.open("a", 16)
            taken = lanes.take_back_all()
        # One that a thread held in its hand when the lane closed is back in its lane.
        taken += lanes.take_back_all()
        assert Counter(claim.export_id for claim in [*senders.sent, *taken]) == {claim.export_id: 1 for claim in everything}


def test_more_than_the_threads_can_send_is_told_while_it_waits_for_one() -> None:
    lanes = Lanes()
    lanes.add(claims("a", 3))
    # What has no slot is not what a thread would send.
    assert not lanes.is_ahead()
    lanes.open("a", 2)
    assert lanes.is_ahead()
    first, second = lanes.take(), lanes.take()
    assert first is not None
    assert second is not None
    assert not lanes.is_ahead()
