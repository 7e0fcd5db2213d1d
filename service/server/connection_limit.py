"""Caps open connections; at the cap, evicts idle clients of the busiest address.

An idle connection uses only its place, so all connections are kept while there is room. At the cap the service disconnects
clients that it waits for. It starts with the address that has most connections; of these, it disconnects first the longest
idle clients, then clients that stall in a body, then clients that do not read their response. Active clients are served; a
client that polls reconnects. Behind a proxy all clients share one address, so the longest idle client is evicted.
"""

from collections import Counter
from heapq import nsmallest
from typing import Final

from service.server.client_connection import ClientConnection

#: At the cap, one connection in this many is evicted at once. Finding the clients to evict takes 0.3 ms among a thousand,
#: which is too much to do for each new connection.
_PART: Final = 50


class ConnectionLimit:
    """Tracks up to `count` connections."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._connections: set[ClientConnection] = set()

    def add(self, connection: ClientConnection) -> None:
        """Track a connection; at the cap, evict other connections."""
        if len(self._connections) + 1 >= self._count:
            self._evict_idle()
        self._connections.add(connection)

    def remove(self, connection: ClientConnection) -> None:
        """Stop tracking a connection."""
        self._connections.discard(connection)

    def enforce(self) -> None:
        """Evict clients at the cap: all of them may have been busy when the last connection was added.

        Call this regularly, because at the cap no new connection triggers an eviction.
        """
        if len(self._connections) >= self._count:
            self._evict_idle()

    def close(self) -> None:
        """Disconnect every client without a request in progress."""
        for each in self._connections:
            if each.is_idle:
                each.disconnect()

    def _evict_idle(self) -> None:
        held = Counter(each.host for each in self._connections)
        waiting = [each for each in self._connections if each.is_evictable]
        for each in nsmallest(max(1, self._count // _PART), waiting, key=lambda one: (-held[one.host], *one.eviction_order)):
            each.disconnect()
