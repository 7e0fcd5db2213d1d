"""Batches the work of concurrent callers: calls that arrive while a batch runs form the next batch.

Before a batch begins, greenlets whose input has arrived run until they join it. It never waits for input, so a single caller
loses no time; the more callers there are, the less each call costs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: The most items of one batch: they take a few milliseconds in a transaction, for which other writers wait.
_MAX_BATCH: Final = 32
#: A sleep of one iteration of gevent's loop, in which every ready greenlet runs; a thread only lets other threads run.
_YIELD_S: Final = 0.000_001


class Batches(Generic[Item, Result]):
    """Calls `together` with the items of one group that wait at the same moment, in the order of their arrival.

    `together` returns one result per item; for a None, the caller runs its item alone. If `together` raises,
    each caller runs its own item alone.
    """

    def __init__(self, together: Callable[[Sequence[Item]], Sequence[Result | None]]) -> None:
        self._together = together
        self._lock = threading.Lock()
        #: The waiting callers, by group. A group has an entry while one of its callers runs a batch.
        self._waiting: dict[Hashable, deque[_Caller[Item, Result]]] = {}

    def run(self, group: Hashable, item: Item, alone: Callable[[], Result | None]) -> Result | None:
        """Return the result of `item`, from a batch or from `alone`. Raises what `alone` raises."""
        me = _Caller[Item, Result](item)
        with self._lock:
            waiting = self._waiting.get(group)
            if waiting is None:
                self._waiting[group] = deque()
                me.is_leader = True
            else:
                waiting.append(me)
        try:
            if not me.is_leader:
                me.is_ready.wait()
            if me.is_leader:
                self._gather(group)
                batch = self._next_batch(group, me)
                if len(batch) == 1:
                    return alone()
                self._run_together(batch)
        finally:
            self._leave(group, me)
        return alone() if me.result is None else me.result

    def _gather(self, group: Hashable) -> None:
        """Yield to callers that can join at once, until none has joined."""
        waiting, before = self._waiting[group], -1
        while before < len(waiting) < _MAX_BATCH - 1:
            before = len(waiting)
            time.sleep(_YIELD_S)

    def _next_batch(self, group: Hashable, me: "_Caller[Item, Result]") -> "list[_Caller[Item, Result]]":
        with self._lock:
            waiting = self._waiting[group]
            return [me, *(waiting.popleft() for _ in range(min(len(waiting), _MAX_BATCH - 1)))]

    def _run_together(self, batch: "Sequence[_Caller[Item, Result]]") -> None:
        try:
            results = self._together([caller.item for caller in batch])
            for caller, result in zip(batch, results, strict=True):
                caller.result = result
        except Exception:  # noqa: BLE001 - each caller runs its item alone and gets its own error
            for caller in batch:
                caller.result = None
        finally:
            for caller in batch:
                caller.is_ready.set()

    def _leave(self, group: Hashable, me: "_Caller[Item, Result]") -> None:
        """Make the next waiting caller the leader; a caller that was interrupted while it waited leaves the queue."""
        with self._lock:
            waiting = self._waiting.get(group)
            if waiting is None or not me.is_leader:
                if waiting is not None and me in waiting:
                    waiting.remove(me)
                return
            if waiting:
                following = waiting.popleft()
                following.is_leader = True
                following.is_ready.set()
            else:
                del self._waiting[group]


class _Caller(Generic[Item, Result]):
    """A caller that waits for its result, or to lead the next batch."""

    __slots__ = ("is_leader", "is_ready", "item", "result")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.result: Result | None = None
        self.is_leader = False
        self.is_ready = threading.Event()
