"""Who sits on the connections that a process has, and who has to get up when they are all taken.

A connection that waits for its client costs nothing but its place, so all of them may be kept while there is room. When the
last one is taken, the service hangs up on clients that it waits for: those of the address that holds most, and among them
those that have asked for nothing for longest; then those that stall in a body, then those that do not take their answer.
Who asks at once is served; who keeps a connection between polls opens a new one. Behind a proxy all clients have one
address, and the longest idle goes.
"""

from collections import Counter
from heapq import nsmallest
from typing import Final

from service.server.client_connection import ClientConnection

#: One in so many gets up at once: to look for them takes 0.3 ms among a thousand, too much to do it for each that comes.
_PART: Final = 50


class ConnectionLimit:
    """`count` connections, each held by one client."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._connections: set[ClientConnection] = set()

    def add(self, connection: ClientConnection) -> None:
        """Sit down; where that was the last seat, let others go."""
        if len(self._connections) + 1 >= self._count:
            self._evict_idle()
        self._connections.add(connection)

    def remove(self, connection: ClientConnection) -> None:
        """Get up."""
        self._connections.discard(connection)

    def enforce(self) -> None:
        """Make room where all seats are taken: they were all busy, it may be, when the last one was.

        Nobody else would, for with no seat left nobody comes.
        """
        if len(self._connections) >= self._count:
            self._evict_idle()

    def close(self) -> None:
        """Let go of whoever asks nothing."""
        for each in self._connections:
            if each.is_idle:
                each.disconnect()

    def _evict_idle(self) -> None:
        held = Counter(each.host for each in self._connections)
        waiting = [each for each in self._connections if each.is_evictable]
        for each in nsmallest(max(1, self._count // _PART), waiting, key=lambda one: (-held[one.host], *one.eviction_order)):
            each.disconnect()
