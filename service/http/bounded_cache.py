"""A dictionary of bounded size, for what a process remembers of principals and addresses.

It forgets what it has had for longest when it is full: whoever makes up names must not fill the memory.
"""

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

from service.http.rate_counters import MAX_CACHED_KEYS

Kept = TypeVar("Kept")


class BoundedCache(Generic[Kept]):
    """A dictionary that forgets its oldest entry when it is full."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Kept] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Kept | None:
        """Return what is kept."""
        return self._entries.get(key)

    def keep(self, key: str, value: Kept) -> Kept:
        """Keep `value` unless the key has one already; return the one it has."""
        with self._lock:
            kept = self._entries.setdefault(key, value)
            if len(self._entries) > MAX_CACHED_KEYS:
                self._entries.popitem(last=False)
        return kept

    def forget(self, key: str) -> None:
        """Keep nothing for the key."""
        with self._lock:
            self._entries.pop(key, None)
