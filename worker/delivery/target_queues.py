"""Lanes: what this process has claimed and not yet sent, by target, on its way to the threads that send.

No target has more requests open here than the slots its lane was given, whatever is claimed for it; what waits in one lane
takes no thread from another. A lane closes by itself when an answer ends its target's turn, and stays closed until that
answer is written: who reads the row before would open it again.
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
    open: int = 0  # in the queue of the threads, or being sent
    unwritten: int = 0  # answers that ended the turn, of which the target's row does not tell yet
    waiting: deque[Claim] = field(default_factory=deque)


class TargetQueues:
    """Hands claims to threads, each lane's in order, as many at once as the lane has slots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, _TargetQueue] = {}
        #: What may be sent now; None ends one thread. A simple queue, because an executor's future costs a delivery more
        #: than its share of the database does.
        self._ready: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()

    def add(self, claims: Iterable[Claim]) -> None:
        """Let claims wait in their lanes; `open` gives them slots."""
        with self._lock:
            for claim in claims:
                self._queues.setdefault(claim.target_id, _TargetQueue()).waiting.append(claim)

    def open(self, target_id: str, slots: int) -> None:
        """Give a lane its slots and send what they have room for."""
        with self._lock:
            lane = self._queues.get(target_id)
            if lane is not None:
                lane.slots = 0 if lane.unwritten else slots
                self._send(lane)

    def waiting(self) -> set[str]:
        """Return the targets that claims wait for."""
        with self._lock:
            return {target_id for target_id, lane in self._queues.items() if lane.waiting}

    def behind(self) -> int:
        """Return how many claims wait behind all slots of their lanes: no thread that is free could send them."""
        with self._lock:
            return sum(max(0, len(lane.waiting) - max(0, lane.slots - lane.open)) for lane in self._queues.values())

    def is_ahead(self) -> bool:
        """Tell whether more may be sent now than there are threads to send it."""
        return not self._ready.empty()

    def take(self) -> Claim | None:
        """Wait for a claim that may be sent; None ends the thread."""
        claim = self._ready.get()
        while claim is not None and self._is_closed_for(claim):
            claim = self._ready.get()
        return claim

    def after(self, claim: Claim, *, pauses_queue: bool) -> Claim | None:
        """Free the slot of a claim that was sent; return another of its lane, if no other lane waits for the thread.

        One that `ends_turn` closes the lane until `written` is called for it.
        """
        with self._lock:
            lane = self._queues[claim.target_id]
            lane.open -= 1
            if pauses_queue:
                lane.slots = 0
                lane.unwritten += 1
            if lane.waiting and lane.open < lane.slots:
                lane.open += 1
                following = lane.waiting.popleft()
                if self._ready.empty():
                    return following
                self._ready.put(following)
            self._forget_if_empty(claim.target_id)
        return None

    def written(self, target_id: str) -> None:
        """Take note that the row tells of an answer that ended a turn."""
        with self._lock:
            self._queues[target_id].unwritten -= 1
            self._forget_if_empty(target_id)

    def take_back(self, target_id: str) -> list[Claim]:
        """Return what waits in a lane and let it be sent no more."""
        with self._lock:
            lane = self._queues.get(target_id)
            if lane is None:
                return []
            lane.slots = 0
            taken = list(lane.waiting)
            lane.waiting.clear()
            self._forget_if_empty(target_id)
            return taken

    def take_back_all(self) -> list[Claim]:
        """Return everything that no thread has begun with."""
        with self._lock:
            taken = self._not_taken()
            for claim in taken:
                self._queues[claim.target_id].open -= 1
            for lane in self._queues.values():
                lane.slots = 0
                taken += lane.waiting
                lane.waiting.clear()
        return taken

    def end(self, threads: int) -> None:
        """End this many threads once they have nothing left."""
        for _ in range(threads):
            self._ready.put(None)

    def _is_closed_for(self, claim: Claim) -> bool:
        """Tell whether its lane closed while a claim waited for a thread; it waits in the lane again then."""
        with self._lock:
            lane = self._queues[claim.target_id]
            if lane.slots:
                return False
            lane.open -= 1
            lane.waiting.appendleft(claim)
            return True

    def _not_taken(self) -> list[Claim]:
        taken = []
        # Threads take without the lock: what was there a moment ago may be gone.
        with suppress(queue.Empty):
            while (claim := self._ready.get_nowait()) is not None:
                taken.append(claim)
        return taken

    def _forget_if_empty(self, target_id: str) -> None:
        lane = self._queues[target_id]
        if not (lane.waiting or lane.open or lane.unwritten):
            del self._queues[target_id]

    def _send(self, lane: _TargetQueue) -> None:
        while lane.waiting and lane.open < lane.slots:
            lane.open += 1
            self._ready.put(lane.waiting.popleft())
