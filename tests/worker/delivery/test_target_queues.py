"""Claims wait in the queues of their targets, and no queue sends more at once than its slots, whatever the threads do."""

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pytest

from schemas.exports.delivery import Claim
from tests.support.factories import NOW
from tests.support.processes.workers import wait_until
from worker.delivery.target_queues import TargetQueues

NUMBERS: Final = itertools.count()
PATIENCE_S: Final = 10.0
#: More threads than claims are ready in any test that is not about threads.
THREADS: Final = 32


def claims(target_id: str, count: int, account_id: int = 1) -> list[Claim]:
    return [
        Claim(f"exp_{next(NUMBERS)}", "lse_1", 1, 1, target_id, "https://a.example/", None, b"{}", NOW, NOW, account_id)
        for _ in range(count)
    ]


def queues_with(slots: int, *waiting: Claim) -> TargetQueues:
    queues = TargetQueues(THREADS)
    queues.add(waiting)
    for target_id in {claim.target_id for claim in waiting}:
        queues.set_slots(target_id, slots)
    return queues


def ready(queues: TargetQueues) -> list[Claim]:
    """Return the claims that threads could take now; the queues cannot be used afterwards."""
    queues.add_thread()
    queues.end_threads()
    return list(iter(queues.take, None))


def test_claims_wait_until_their_queue_has_slots() -> None:
    queues = TargetQueues(THREADS)
    queues.add(claims("a", 3))
    assert queues.waiting() == {"a"}
    assert ready(queues) == []


def test_a_queue_has_its_first_claims_ready_up_to_its_slots() -> None:
    first, second, third = claims("a", 3)
    queues = queues_with(2, first, second, third)
    assert queues.waiting() == {"a"}
    assert ready(queues) == [first, second]


def test_a_thread_that_is_done_takes_the_next_claim_of_its_queue() -> None:
    first, second, third = claims("a", 3)
    queues = queues_with(1, first, second, third)
    assert queues.take() == first
    assert queues.finish(first, pauses_queue=False) == second
    assert queues.finish(second, pauses_queue=False) == third
    assert queues.waiting() == set()
    assert queues.finish(third, pauses_queue=False) is None


def test_claims_beyond_the_slots_are_counted() -> None:
    first, *others = claims("a", 5)
    queues = TargetQueues(THREADS)
    queues.add([first, *others, *claims("b", 2)])
    # Closed queues have no slots.
    assert queues.count_waiting() == ({1: 0}, {1: 7})
    queues.set_slots("a", 2)
    queues.set_slots("b", 3)
    assert queues.count_waiting() == ({1: 0}, {1: 3})
    assert queues.take() == first
    queues.finish(first, pauses_queue=False)
    assert queues.count_waiting() == ({1: 0}, {1: 2})


def test_claims_that_wait_for_a_thread_are_counted_beside_those_for_a_slot() -> None:
    queues = TargetQueues(2)
    queues.add(claims("a", 5))
    queues.set_slots("a", 4)
    assert queues.count_waiting() == ({1: 2}, {1: 1})


def test_a_free_thread_serves_another_waiting_queue_first() -> None:
    [first, second], [other] = claims("a", 2), claims("b", 1)
    queues = TargetQueues(1)
    queues.add([first, second, other])
    queues.set_slots("a", 1)
    queues.set_slots("b", 1)
    assert queues.take() == first
    assert queues.finish(first, pauses_queue=False) == other
    assert queues.finish(other, pauses_queue=False) == second


def test_after_slots_are_reduced_open_requests_finish_before_another_is_sent() -> None:
    sent = claims("a", 4)
    queues = queues_with(3, *sent)
    taken = [queues.take() for _ in range(3)]
    queues.set_slots("a", 1)
    assert [queues.finish(claim, pauses_queue=False) for claim in taken[:2] if claim] == [None, None]
    assert taken[2] is not None
    assert queues.finish(taken[2], pauses_queue=False) == sent[3]


def test_a_result_that_pauses_the_queue_stops_waiting_claims() -> None:
    first, second, third = claims("a", 3)
    queues = queues_with(2, first, second, third)
    queues.take()
    assert queues.finish(first, pauses_queue=True) is None
    assert ready(queues) == []
    assert queues.remove("a") == [second, third]


def test_a_claim_that_waited_for_a_thread_returns_to_the_front_of_a_paused_queue() -> None:
    first, second, third = claims("a", 3)
    queues = queues_with(2, first, second, third)
    assert queues.take() == first
    queues.finish(first, pauses_queue=True)
    assert ready(queues) == []
    queues.commit("a")
    queues.set_slots("a", 2)
    assert ready(queues) == [second, third]


def test_a_paused_queue_opens_only_when_every_result_that_paused_it_is_committed() -> None:
    first, second, third = claims("a", 3)
    queues = queues_with(2, first, second, third)
    queues.take()
    queues.take()
    queues.finish(first, pauses_queue=True)
    queues.finish(second, pauses_queue=True)
    for _ in range(2):
        # The row was read before the result was committed.
        queues.set_slots("a", 16)
        assert queues.waiting() == {"a"}
        queues.commit("a")
    queues.set_slots("a", 16)
    assert ready(queues) == [third]


def test_claims_made_before_the_result_is_committed_wait_too() -> None:
    [first], [later] = claims("a", 1), claims("a", 1)
    queues = queues_with(1, first)
    queues.take()
    queues.finish(first, pauses_queue=True)
    queues.add([later])
    queues.set_slots("a", 16)
    assert queues.remove("a") == [later]


def test_a_paused_queue_takes_no_thread_from_another_queue() -> None:
    [first, second], [other] = claims("a", 2), claims("b", 1)
    queues = queues_with(2, first, second)
    queues.take()
    queues.finish(first, pauses_queue=True)
    queues.add([other])
    queues.set_slots("b", 1)
    assert queues.take() == other


def test_a_queue_whose_claims_are_removed_leaves_nothing_behind() -> None:
    queues = queues_with(0, *claims("a", 2))
    assert len(queues.remove("a")) == 2
    assert (queues.waiting(), queues.remove("a")) == (set(), [])
    queues.set_slots("a", 16)
    assert ready(queues) == []


def test_claims_that_no_thread_has_begun_can_be_removed() -> None:
    some, others = claims("a", 5), claims("b", 2)
    queues = queues_with(2, *some, *others)
    begun = queues.take()
    taken = queues.remove_all()
    assert begun is not None
    assert Counter(each.export_id for each in [begun, *taken]) == Counter(each.export_id for each in [*some, *others])
    assert queues.finish(begun, pauses_queue=False) is None
    assert (queues.waiting(), queues.remove_all(), ready(queues)) == (set(), [], [])


# ---------------------------------------------------------------- threads


class Senders:
    """Threads that send ready claims; those of the target `hangs` wait for the gate. Counts each target's open requests."""

    def __init__(self, queues: TargetQueues, pauses_queue: float = 0.0, send_s: float = 0.0, hangs: str = "") -> None:
        self.queues = queues
        self.sent: list[Claim] = []
        self.answered: list[tuple[Claim, bool]] = []
        self.most: defaultdict[str, int] = defaultdict(int)
        self.gate = threading.Event()
        self._open: Counter[str] = Counter()
        self._pauses_queue, self._send_s, self._hangs = pauses_queue, send_s, hangs
        self._lock = threading.Lock()

    def run(self) -> None:
        claim = self.queues.take()
        while claim is not None:
            with self._lock:
                self._open[claim.target_id] += 1
                self.most[claim.target_id] = max(self.most[claim.target_id], self._open[claim.target_id])
                self.sent.append(claim)
            if claim.target_id == self._hangs:
                self.gate.wait(PATIENCE_S)
            time.sleep(self._send_s)
            pauses_queue = random.random() < self._pauses_queue
            with self._lock:
                # Count down before the slot is free, because the next claim may begin at once.
                self._open[claim.target_id] -= 1
            following = self.queues.finish(claim, pauses_queue=pauses_queue)
            self.answered.append((claim, pauses_queue))
            claim = following or self.queues.take()


@contextmanager
def sending(senders: Senders) -> Iterator[None]:
    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(senders.run) for _ in iter(senders.queues.add_thread, False)]
        try:
            yield
        finally:
            senders.gate.set()
            senders.queues.end_threads()
        for each in running:
            each.result(PATIENCE_S)


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_many_threads_send_everything_once_and_keep_to_the_slots(slots: int) -> None:
    added = {f"t{number}": claims(f"t{number}", 200) for number in range(5)}
    everything = list(itertools.chain(*added.values()))
    senders = Senders(TargetQueues(12), send_s=0.0001)
    with sending(senders):
        senders.queues.add(everything)
        for target_id in added:
            senders.queues.set_slots(target_id, slots)
        wait_until(lambda: len(senders.answered) == len(everything))
    assert Counter(claim.export_id for claim in senders.sent) == {claim.export_id: 1 for claim in everything}
    assert max(senders.most.values()) <= slots
    for target_id, its in added.items():
        if slots == 1:
            assert [claim for claim in senders.sent if claim.target_id == target_id] == its


def test_a_hanging_target_occupies_only_its_own_slots() -> None:
    senders = Senders(TargetQueues(3), hangs="slow")
    with sending(senders):
        senders.queues.add([*claims("slow", 50), *claims("quick", 50)])
        senders.queues.set_slots("slow", 2)
        senders.queues.set_slots("quick", 2)
        wait_until(lambda: len(senders.answered) == 50)
        assert Counter(claim.target_id for claim in senders.sent) == {"slow": 2, "quick": 50}
        senders.gate.set()
        wait_until(lambda: len(senders.answered) == 100)


def test_a_queue_that_opens_and_closes_all_the_time_loses_and_repeats_nothing() -> None:
    """A dispatcher sets slots by the rows that it has read, although results may pause the queue meanwhile."""
    queues = TargetQueues(8)
    senders = Senders(queues, pauses_queue=0.2, send_s=0.0001)
    everything = [*claims("a", 300), *claims("b", 300)]
    with sending(senders):
        queues.add(everything)
        written = 0
        while written < len(everything):
            answered = senders.answered[written:]
            written += len(answered)
            for claim, pauses_queue in answered:
                if pauses_queue:
                    queues.commit(claim.target_id)
            for target_id in queues.waiting():
                queues.set_slots(target_id, 3)
            time.sleep(0.001)
    assert Counter(claim.export_id for claim in senders.sent) == {claim.export_id: 1 for claim in everything}
    assert max(senders.most.values()) <= 3
    assert queues.remove_all() == []


def test_all_claims_can_be_removed_while_threads_take_claims() -> None:
    """Repeatedly, because a claim may vanish at any moment; nothing may wait for it while holding the lock."""
    for _ in range(100):
        queues = TargetQueues(4)
        senders = Senders(queues)
        everything = claims("a", 20)
        with sending(senders):
            queues.add(everything)
            queues.set_slots("a", 16)
            taken = queues.remove_all()
        # If a thread had taken a claim when the queue was paused, the claim is back in the queue.
        taken += queues.remove_all()
        assert Counter(claim.export_id for claim in [*senders.sent, *taken]) == {claim.export_id: 1 for claim in everything}


def test_has_ready_is_true_while_ready_claims_wait_for_a_thread() -> None:
    queues = TargetQueues(1)
    queues.add(claims("a", 3))
    # Claims without a slot are not ready.
    assert not queues.has_ready()
    queues.set_slots("a", 2)
    assert queues.has_ready()
    first = queues.take()
    assert first is not None
    second = queues.finish(first, pauses_queue=False)
    assert second is not None
    assert queues.has_ready()
    assert queues.finish(second, pauses_queue=False) is not None
    assert not queues.has_ready()


# ---------------------------------------------------------------- accounts


def opened(queues: TargetQueues, account_id: int, target_ids: Sequence[str], each: int = 16) -> None:
    """Add claims of an account's targets, and slots for all of them."""
    for target_id in target_ids:
        queues.add(claims(target_id, each, account_id))
        queues.set_slots(target_id, each)


def handed_out(queues: TargetQueues) -> Counter[int]:
    """Count by account the claims that threads can take now; the queues cannot be used afterwards."""
    return Counter(claim.account_id for claim in ready(queues))


def test_other_accounts_get_their_own_threads_although_one_holds_all_shared_ones() -> None:
    queues = TargetQueues(8)
    opened(queues, 1, ["a", "b"])
    opened(queues, 2, ["c", "d"])
    opened(queues, 3, ["e", "f"])
    assert [queues.add_thread() for _ in range(13)] == [True] * 12 + [False]
    assert handed_out(queues) == {1: 8, 2: 2, 3: 2}


def test_a_target_gets_at_most_half_of_its_accounts_reserved_threads() -> None:
    queues = TargetQueues(16)
    opened(queues, 1, ["a"])
    opened(queues, 2, ["c"])
    opened(queues, 2, ["d"], 1)
    assert handed_out(queues) == {1: 16, 2: 3}


def test_a_free_thread_serves_the_account_with_the_fewest_threads() -> None:
    queues = TargetQueues(8)
    opened(queues, 1, ["a"])
    taken = [queues.take() for _ in range(8)]
    opened(queues, 2, ["c", "d"])
    following = [queues.finish(claim, pauses_queue=False) for claim in taken[:4] if claim]
    # Account 2 started two threads of its own; until both accounts have as many, each free thread goes to account 2.
    assert [claim and claim.account_id for claim in following] == [None, None, 2, 2]


def test_an_additional_thread_ends_when_no_claim_is_ready() -> None:
    queues = TargetQueues(4)
    opened(queues, 1, ["a"], 4)
    opened(queues, 2, ["c"], 1)
    assert [queues.add_thread() for _ in range(6)] == [True] * 5 + [False]
    taken = [queues.take() for _ in range(5)]
    last = taken[-1]
    assert last is not None
    assert queues.finish(last, pauses_queue=False) is None
    assert queues.take() is None
    assert not queues.add_thread()
