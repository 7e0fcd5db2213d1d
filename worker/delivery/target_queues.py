"""Queues of claims by target, between the dispatcher that claims and the threads that send.

A target never has more open requests here than the slots that its queue was given, whatever is claimed for it; claims that
wait in one queue take no thread from another. A result that pauses the queue takes its slots away at once, until the result
is committed: a row that was read before would give them back.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from schemas.exports.delivery import Claim


@dataclass(slots=True)
class _TargetQueue:
    slots: int = 0
    open: int = 0  # ready for a thread, or being sent
    uncommitted: int = 0  # results that paused the queue and are not in the target's row yet
    waiting: deque[Claim] = field(default_factory=deque)

    def has_work(self) -> bool:
        return bool(self.waiting) and self.open < self.slots

    def next(self) -> Claim:
        self.open += 1
        return self.waiting.popleft()


class TargetQueues:
    """Hands claims to threads, each target's in order, as many at once as the target's queue has slots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, _TargetQueue] = {}
        #: What may be sent now; None ends one thread. A simple queue, because an executor's future costs a delivery more
        #: than its share of the database does.
        self._ready: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()

    def add(self, claims: Iterable[Claim]) -> None:
        """Append claims to the queues of their targets; `set_slots` lets them be sent."""
        with self._lock:
            for claim in claims:
                self._queues.setdefault(claim.target_id, _TargetQueue()).waiting.append(claim)

    def set_slots(self, target_id: str, slots: int) -> None:
        """Set how many requests to a target may be open, and make as many claims ready."""
        with self._lock:
            target = self._queues.get(target_id)
            if target is not None:
                target.slots = 0 if target.uncommitted else slots
                while target.has_work():
                    self._ready.put(target.next())

    def waiting(self) -> set[str]:
        """Return the targets that claims wait for."""
        with self._lock:
            return {target_id for target_id, target in self._queues.items() if target.waiting}

    def count_beyond_slots(self) -> int:
        """Return how many claims wait beyond the slots of their targets: no free thread could send them."""
        with self._lock:
            return sum(max(0, len(each.waiting) - max(0, each.slots - each.open)) for each in self._queues.values())

    def has_ready(self) -> bool:
        """Return whether more claims are ready than threads are free to send them."""
        return not self._ready.empty()

    def take(self) -> Claim | None:
        """Wait for a claim that may be sent; None ends the thread."""
        claim = self._ready.get()
        while claim is not None and self._requeue_if_paused(claim):
            claim = self._ready.get()
        return claim

    def finish(self, claim: Claim, *, pauses_queue: bool) -> Claim | None:
        """Free the slot of a claim that was sent; return its target's next claim if no other target waits for the thread.

        A result that `pauses_queue` keeps the queue closed until `commit` is called for it.
        """
        with self._lock:
            target = self._queues[claim.target_id]
            target.open -= 1
            if pauses_queue:
                target.slots = 0
                target.uncommitted += 1
            if target.has_work():
                following = target.next()
                if self._ready.empty():
                    return following
                self._ready.put(following)
            self._delete_if_empty(claim.target_id)
        return None

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
                self._queues[claim.target_id].open -= 1
            for target in self._queues.values():
                removed += _close(target)
        return removed

    def end_threads(self, count: int) -> None:
        """End this many threads once nothing is ready for them."""
        for _ in range(count):
            self._ready.put(None)

    def _requeue_if_paused(self, claim: Claim) -> bool:
        """Put a claim back to the front if its queue was closed while it waited for a thread."""
        with self._lock:
            target = self._queues[claim.target_id]
            if target.slots:
                return False
            target.open -= 1
            target.waiting.appendleft(claim)
            return True

    def _remove_ready(self) -> list[Claim]:
        removed = []
        # Threads take without the lock: what was there a moment ago may be gone.
        with suppress(queue.Empty):
            while (claim := self._ready.get_nowait()) is not None:
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
