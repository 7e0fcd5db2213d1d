"""Queues of claims by target, between the dispatcher that claims and the threads that send.

A target never has more open requests in this worker than its queue has slots, however many exports are claimed for it.
Claims that wait in one queue take no thread from another. A result that pauses a queue removes its slots until the result
is committed: a throttle state that was read earlier would otherwise restore them.

Accounts share the threads by `runtime.account_shares`; each open request holds a slot there. The threads of an account
alternate between its targets. A target gets half of the reserved threads at most, so that a target that hangs leaves threads
to the others.
"""

import queue
import threading
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from runtime.account_shares import AccountId, AccountShares
from schemas.exports.delivery import Claim


@dataclass(slots=True)
class _TargetQueue:
    account_id: int
    slots: int = 0
    open: int = 0  # handed to a thread, or being sent
    uncommitted: int = 0  # results that paused the queue and are not in the target's row yet
    is_listed: bool = False  # among the queues of its account that wait for a thread
    waiting: deque[Claim] = field(default_factory=deque)

    def has_work(self) -> bool:
        return bool(self.waiting) and self.open < self.slots


class WaitingClaims(NamedTuple):
    """How many claims wait, by account: for a thread, or for a slot of their target. No free thread may send the latter."""

    for_threads: Counter[AccountId]
    for_slots: Counter[AccountId]


class TargetQueues:
    """Hands claims to threads, each target's in order, as far as its queue has slots and its account has threads."""

    def __init__(self, threads: int) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, _TargetQueue] = {}
        self._shares = AccountShares(threads)
        #: By account, the queues whose next claim only waits for a thread, each once.
        self._listed: dict[AccountId, deque[_TargetQueue]] = {}
        #: Claims for which there is a thread; None ends one thread. A simple queue, because an executor's future would cost
        #: more than a delivery's share of the database work.
        self._handed_out: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()
        self._threads = 0

    def add(self, claims: Iterable[Claim]) -> None:
        """Append claims to the queues of their targets; `set_slots` lets them be sent."""
        with self._lock:
            for claim in claims:
                self._queues.setdefault(claim.target_id, _TargetQueue(claim.account_id)).waiting.append(claim)

    def set_slots(self, target_id: str, slots: int) -> None:
        """Set how many requests to a target may be open, and hand out as many claims as there may be threads for."""
        with self._lock:
            target = self._queues.get(target_id)
            if target is not None:
                target.slots = 0 if target.uncommitted else slots
                self._list(target)
                self._hand_out()

    def waiting(self) -> set[str]:
        """Return the targets with waiting claims."""
        with self._lock:
            return {target_id for target_id, target in self._queues.items() if target.waiting}

    def count_waiting(self) -> WaitingClaims:
        """Return how many claims of each account wait, by the reason."""
        counts = WaitingClaims(Counter(), Counter())
        with self._lock:
            for each in self._queues.values():
                for_threads = min(len(each.waiting), max(0, each.slots - each.open))
                counts.for_threads[each.account_id] += for_threads
                counts.for_slots[each.account_id] += len(each.waiting) - for_threads
        return counts

    def has_ready(self) -> bool:
        """Return whether more claims are ready than threads are free to send them."""
        return bool(self._listed)

    def add_thread(self) -> bool:
        """Count one more thread if a shared thread is missing, or a thread for a claim; return whether one was missing."""
        with self._lock:
            is_missing = self._threads < max(self._shares.shared, self._shares.total)
            self._threads += is_missing
            return is_missing

    def remove_thread(self) -> None:
        """Count one thread less: it could not be started."""
        with self._lock:
            self._threads -= 1

    def take(self) -> Claim | None:
        """Wait for a claim that may be sent; None ends the thread."""
        with self._lock:
            if self._threads > max(self._shares.shared, self._shares.total):
                self._threads -= 1
                return None
        claim = self._handed_out.get()
        while claim is not None and self._requeue_if_paused(claim):
            claim = self._handed_out.get()
        return claim

    def finish(self, claim: Claim, *, pauses_queue: bool) -> Claim | None:
        """Free the slot of a claim that was sent; return the claim that its thread sends next, if there is one.

        A result that `pauses_queue` keeps the queue closed until `commit` is called for it.
        """
        with self._lock:
            target = self._queues[claim.target_id]
            self._release(target)
            if pauses_queue:
                target.slots = 0
                target.uncommitted += 1
            self._list(target)
            self._delete_if_empty(claim.target_id)
            return self._next()

    def commit(self, target_id: str) -> None:
        """Record that a result that paused a queue is in the target's row."""
        with self._lock:
            self._queues[target_id].uncommitted -= 1
            self._delete_if_empty(target_id)

    def remove(self, target_id: str) -> list[Claim]:
        """Close a queue; remove and return the claims that wait in it."""
        with self._lock:
            target = self._queues.get(target_id)
            if target is None:
                return []
            removed = _close(target)
            self._delete_if_empty(target_id)
            return removed

    def remove_all(self) -> list[Claim]:
        """Close every queue; remove and return all claims that no thread has taken."""
        with self._lock:
            removed = self._remove_ready()
            for claim in removed:
                self._release(self._queues[claim.target_id])
            for target in self._queues.values():
                removed += _close(target)
        return removed

    def end_threads(self) -> None:
        """End every thread once nothing is ready for it."""
        with self._lock:
            for _ in range(self._threads):
                self._handed_out.put(None)

    def _list(self, target: _TargetQueue) -> None:
        if target.has_work() and not target.is_listed:
            target.is_listed = True
            self._listed.setdefault(target.account_id, deque()).append(target)

    def _hand_out(self) -> None:
        while (claim := self._next()) is not None:
            self._handed_out.put(claim)

    def _next(self) -> Claim | None:
        """Take the claim that gets the next thread. The lock is held."""
        for account_id in self._shares.in_order(self._listed):
            claim = self._next_of(self._listed[account_id])
            if not self._listed[account_id]:
                del self._listed[account_id]
            if claim is not None:
                self._shares.take(account_id)
                return claim
        return None

    def _next_of(self, listed: deque[_TargetQueue]) -> Claim | None:
        """Return the next claim of an account, whose targets alternate; None if no target may get one."""
        most = self._shares.half_reserved if self._shares.is_reserve else self._shares.shared
        for _ in range(len(listed)):
            target = listed.popleft()
            claim = None
            if target.has_work() and target.open < most:
                target.open += 1
                claim = target.waiting.popleft()
            target.is_listed = target.has_work()
            if target.is_listed:
                listed.append(target)
            if claim is not None:
                return claim
        return None

    def _release(self, target: _TargetQueue) -> None:
        target.open -= 1
        self._shares.release(target.account_id)

    def _requeue_if_paused(self, claim: Claim) -> bool:
        """Put a claim back to the front if its queue was closed while it waited for a thread; return whether it was."""
        with self._lock:
            target = self._queues[claim.target_id]
            if target.slots:
                return False
            self._release(target)
            target.waiting.appendleft(claim)
            self._hand_out()
            return True

    def _remove_ready(self) -> list[Claim]:
        removed = []
        # Threads take claims without the lock, so the queue may become empty at any moment.
        with suppress(queue.Empty):
            while (claim := self._handed_out.get_nowait()) is not None:
                removed.append(claim)
        return removed

    def _delete_if_empty(self, target_id: str) -> None:
        target = self._queues[target_id]
        if not (target.waiting or target.open or target.uncommitted):
            del self._queues[target_id]


def _close(target: _TargetQueue) -> list[Claim]:
    target.slots = 0
    removed = list(target.waiting)
    target.waiting.clear()
    return removed
