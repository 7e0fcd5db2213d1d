"""One client of a second account that means harm: its targets never respond, and it tries what the first account has.

The first account's client requests and deliveries are verified as ever, so a neighbour that delays or changes them shows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from soak.clients.submitters import CREATED, EXPORTS, TARGETS, Shared, SoakClient

#: Another account's rows are not there.
_NOT_THERE: Final = frozenset({404})
_REFUSED: Final = frozenset({400, 404, 409, 413, 414, 422})
#: 422: its own target, which never responds, is on hold or was found unreachable.
_APPROVED_OR_REFUSED: Final = frozenset({202, 409, 422})
_DONE: Final = frozenset({200})
#: Seconds between its bursts, and the requests of each.
_EVERY_S: Final = 0.5
_BURST: Final = 8


class HostileClient(SoakClient):
    """Sends bursts of requests; its `targets` accept connections and say nothing."""

    def __init__(self, shared: Shared, port: int, bearer: Mapping[str, str], targets: Sequence[str]) -> None:
        super().__init__(shared, -4, port)
        self.name = "hostile_client"
        self._bearer = bearer
        self._own = targets
        self._acts: list[Callable[[], None]] = [self._fill_its_target, self._try_others, self._send_nonsense, self._search]

    def act(self) -> None:
        """Send bursts until the run is over; turn its targets off in the end, so that nothing of it is left waiting."""
        while not self.shared.pace.stop.wait(self.chance.uniform(0.5, 1.5) * _EVERY_S):
            self.chance.choice(self._acts)()
        for target_id in self._own:
            self._send("POST", f"{TARGETS}/{target_id}/disable", None, _DONE)

    def _fill_its_target(self) -> None:
        for _ in range(_BURST):
            made = self._send("POST", EXPORTS, {"ticket": {"title": "Mine", "description": "y" * 4000}}, CREATED)
            if made is not None:
                approval = {"target_id": self.chance.choice(self._own)}
                self._send("POST", f"{EXPORTS}/{made.body['id']}/approve", approval, _APPROVED_OR_REFUSED)

    def _try_others(self) -> None:
        theirs = self.chance.choice(self.known.targets)
        self._send("GET", f"{TARGETS}/{theirs}", None, _NOT_THERE)
        for verb in ("pause", "disable", "resume"):
            self._send("POST", f"{TARGETS}/{theirs}/{verb}", None, _NOT_THERE)
        made = self._send("POST", EXPORTS, {"ticket": {"title": "For them"}}, CREATED)
        if made is not None:
            self._send("POST", f"{EXPORTS}/{made.body['id']}/approve", {"target_id": theirs}, _REFUSED)
        wanted = {"action": "approve", "target_id": theirs, "filter": {"status": "prepared"}, "expected_count": 1}
        self._send("POST", f"{EXPORTS}/bulk", wanted, _REFUSED)

    def _send_nonsense(self) -> None:
        deep: Any = "x"
        for _ in range(200):
            deep = [deep]
        bodies: list[Any] = [{"ticket": {"title": deep}}, {"ticket": {"title": "x" * 100_000}}, {"nothing": 1}, []]
        for body in bodies:
            self._send("POST", EXPORTS, body, _REFUSED)
        rule = {"name": "Slow", "match": {"rule": "*a" * 100 + "b"}, "action": {"type": "approve", "target_id": "tgt_none"}}
        self._send("POST", "/api/approval-rules", rule, _REFUSED)

    def _search(self) -> None:
        for _ in range(_BURST):
            words = "+".join("a" * self.chance.randint(1, 6) for _ in range(5))
            self._send("GET", f"{EXPORTS}?q={words}&limit=200", None, _DONE)

    def _send(self, method: str, path: str, body: Any, expected: frozenset[int]) -> Any:
        key = {} if method == "GET" else {"Idempotency-Key": "-".join(map(str, self.shared.names.new()))}
        self.shared.counts["hostile"] += 1
        return self.api.request(method, path, {**self._bearer, **key}, body, expected)
