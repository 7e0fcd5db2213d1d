"""A hostile client of a second account: its targets never respond, and it tries to access rows of the first account.

The requests and deliveries of the first account are verified as usual, so that any effect of the hostile client is detected.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from soak.clients.submitters import CREATED, EXPORTS, TARGETS, Shared, SoakClient

#: For rows of another account, the response is the same as for missing ones.
_NOT_FOUND: Final = frozenset({404})
_REFUSED: Final = frozenset({400, 404, 409, 413, 414, 422})
#: 422: its own target, which never responds, is on hold or was found unreachable.
_APPROVED_OR_REFUSED: Final = frozenset({202, 409, 422})
_DONE: Final = frozenset({200})
#: Seconds between its bursts, and the requests of each.
_EVERY_S: Final = 0.5
_BURST: Final = 8


class HostileClient(SoakClient):
    """Sends bursts of requests; its `targets` accept connections and never respond."""

    def __init__(self, shared: Shared, port: int, bearer: Mapping[str, str], targets: Sequence[str]) -> None:
        super().__init__(shared, -4, port)
        self.name = "hostile_client"
        self._bearer = bearer
        self._own_targets = targets
        self._actions: list[Callable[[], None]] = [
            self._fill_own_target,
            self._access_other_account,
            self._send_invalid_bodies,
            self._search,
        ]

    def act(self) -> None:
        """Send bursts until the run is over; then disable its targets, so that none of its exports is left waiting."""
        while not self.shared.pace.stop.wait(self.rng.uniform(0.5, 1.5) * _EVERY_S):
            self.rng.choice(self._actions)()
        for target_id in self._own_targets:
            self._send("POST", f"{TARGETS}/{target_id}/disable", None, _DONE)

    def _fill_own_target(self) -> None:
        for _ in range(_BURST):
            created = self._send("POST", EXPORTS, {"ticket": {"title": "Mine", "description": "y" * 4000}}, CREATED)
            if created is not None:
                approval = {"target_id": self.rng.choice(self._own_targets)}
                self._send("POST", f"{EXPORTS}/{created.body['id']}/approve", approval, _APPROVED_OR_REFUSED)

    def _access_other_account(self) -> None:
        theirs = self.rng.choice(self.access.targets)
        self._send("GET", f"{TARGETS}/{theirs}", None, _NOT_FOUND)
        for verb in ("pause", "disable", "resume"):
            self._send("POST", f"{TARGETS}/{theirs}/{verb}", None, _NOT_FOUND)
        created = self._send("POST", EXPORTS, {"ticket": {"title": "For them"}}, CREATED)
        if created is not None:
            self._send("POST", f"{EXPORTS}/{created.body['id']}/approve", {"target_id": theirs}, _REFUSED)
        decision = {"action": "approve", "target_id": theirs, "filter": {"status": "prepared"}, "expected_count": 1}
        self._send("POST", f"{EXPORTS}/bulk", decision, _REFUSED)

    def _send_invalid_bodies(self) -> None:
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
            words = "+".join("a" * self.rng.randint(1, 6) for _ in range(5))
            self._send("GET", f"{EXPORTS}?q={words}&limit=200", None, _DONE)

    def _send(self, method: str, path: str, body: Any, expected: frozenset[int]) -> Any:
        key = {} if method == "GET" else {"Idempotency-Key": "-".join(map(str, self.shared.names.new()))}
        self.shared.counts["hostile"] += 1
        return self.api.request(method, path, {**self._bearer, **key}, body, expected)
