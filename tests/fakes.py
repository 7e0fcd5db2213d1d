"""Small stand-ins for what the tests do not want to be real: a doorbell that remembers, a resolver with given answers."""

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address

from storage.doorbell import Doorbell
from storage.name_lookup import Answer, LookupReason, NameLookup, NameLookupFailed


class FakeDoorbell(Doorbell):
    """Counts its rings, and looks where it is told to whenever it is rung."""

    def __init__(self, look: Callable[[], object] = lambda: None) -> None:
        self.look = look
        self.seen: list[object] = []
        self.is_connected = True

    @property
    def rings(self) -> int:
        """How often it was rung."""
        return len(self.seen)

    def ring(self) -> bool:
        self.seen.append(self.look())
        return self.is_connected

    def answer(self) -> None:
        """Nobody waits at this one."""

    def is_reachable(self) -> bool:
        return self.is_connected


class FakeLookup(NameLookup):
    """Answers with the addresses, or fails with the reason, that `table` holds for a name; knows no other names."""

    def __init__(self, table: Mapping[str, Sequence[str] | LookupReason]) -> None:
        super().__init__()
        self.table = dict(table)
        self.asked: list[str] = []

    def resolve(self, host: str, port: int, timeout_s: float) -> Answer:
        self.asked.append(host)
        found = self.table.get(host, LookupReason.NOT_FOUND)
        if isinstance(found, LookupReason):
            raise NameLookupFailed(found)
        return tuple(ip_address(address) for address in found)
