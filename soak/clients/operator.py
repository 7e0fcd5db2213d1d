"""Operator requests during a soak: pause, resume, disable, retry, ping and erasure of persons.

It is one client among the others, and the only one that turns targets on and off, so that the events knows at any moment
what may arrive. Whatever it pauses it resumes before it goes on.
"""

import json
import math
import time
from collections.abc import Callable
from typing import Final

from soak.clients.submitters import ACCEPTED, CREATED, EXPORTS, TARGETS, Shared, SoakClient
from tests.support.factories import capture
from tests.support.http.storefront import WEBHOOKS, ShopCustomer, redact_body, signature

_TAKEN: Final = frozenset({204})
_DONE_OR_TOO_LATE: Final = frozenset({200, 409})
#: 422: its target is not active.
_ACCEPTED_OR_TOO_LATE: Final = frozenset({202, 409, 422})
#: Mean seconds between actions.
_EVERY_S: Final = 2.0
_PAUSE_S: Final = 2.0
_FEW: Final = 3
#: Each erasure reads all stored rows and takes longer as they grow; at a higher rate, requests would pile up.
_FORGET_EVERY_S: Final = 60.0


class OperatorClient(SoakClient):
    """Sends an operator request every few seconds; `shut_origins` have an address that workers must not use."""

    def __init__(self, shared: Shared, port: int, origins: list[str], shut_origins: list[str]) -> None:
        super().__init__(shared, -1, port)
        self.name = "operator"
        self._origins = origins
        self._shut_origins = shut_origins
        self._forgot_at = -math.inf
        self._acts: list[Callable[[], None]] = [
            self._pause,
            self._disable,
            self._meet_one_that_is_gone,
            self._meet_one_that_is_shut,
            self._retry,
            self._ping,
            self._forget_somebody,
        ]

    def act(self) -> None:
        """Act until the run is over."""
        while not self.shared.pace.stop.wait(self.chance.uniform(0.5, 1.5) * _EVERY_S):
            self.chance.choice(self._acts)()

    def _pause(self) -> None:
        target_id = self.chance.choice(self.known.paused_at_times)
        paused = self.ask("POST", f"{TARGETS}/{target_id}/pause", expected=_DONE_OR_TOO_LATE)
        if paused is not None and paused.status == 200 and paused.body["status_reason"] == "client":
            self.events.note("paused", target=target_id)
            self.shared.pace.stop.wait(_PAUSE_S)
        while True:
            self.events.note("resuming", target=target_id)
            if self.ask("POST", f"{TARGETS}/{target_id}/resume") is not None:
                return

    def _disable(self) -> None:
        target_id = self._register(f"{self._origin()}/kind/{self.shared.names.new()[0]}")
        if target_id is None:
            return
        for _ in range(_FEW):
            self._approve_one(target_id)
        if self.ask("POST", f"{TARGETS}/{target_id}/disable") is not None:
            self.events.note("disabled", target=target_id)

    def _meet_one_that_is_gone(self) -> None:
        target_id = self._register(f"{self._origin()}/gone/{self.shared.names.new()[0]}")
        if target_id is not None:
            self._approve_one(target_id)

    def _meet_one_that_is_shut(self) -> None:
        target_id = self._register(f"{self.chance.choice(self._shut_origins)}/shut/{self.shared.names.new()[0]}")
        if target_id is not None:
            # A worker may have checked its address already and blocked it.
            self._approve_one(target_id, frozenset({202, 422}))

    def _retry(self) -> None:
        listed = self.ask("GET", f"{EXPORTS}?status=failed&limit=20")
        if listed is None or not listed.body["items"]:
            return
        export_id = self.chance.choice(listed.body["items"])["id"]
        self.ask("POST", f"{EXPORTS}/{export_id}/retry", expected=_ACCEPTED_OR_TOO_LATE)

    def _ping(self) -> None:
        self.ask("POST", f"{TARGETS}/{self.chance.choice(self.known.targets)}/ping")

    def _forget_somebody(self) -> None:
        """Submit and approve data that names a person, then request the erasure at once; at a limited rate."""
        if time.monotonic() - self._forgot_at < _FORGET_EVERY_S:
            return
        self._forgot_at = time.monotonic()
        name, number = self.shared.names.new()
        person = ShopCustomer(
            88_000_000 + number, f"person.{number}@mail.example", f"+1 555 {number:07}", (770_000_000 + number,)
        )
        body = capture(self.known.shop_project_id, page_title=name, selected_text=f"Ask {person.email} about it.")
        for export_id in self.upload(name, "/api/browser-extension/evidence-captures", body):
            self.approve(export_id, self.chance.choice(self.known.targets))
            self._redact(person, export_id)

    def _redact(self, person: ShopCustomer, export_id: str) -> None:
        content = json.dumps(redact_body(person, self.known.shop_domain)).encode()
        headers = {
            "X-Platform-Hmac-Sha256": signature(content),
            "X-Platform-Topic": "customers/redact",
            "X-Platform-Shop-Domain": self.known.shop_domain,
        }
        self.events.note("forgetting", export=export_id)
        if self.api.request("POST", WEBHOOKS, headers, expected=_TAKEN, content=content) is not None:
            self.events.note("redacting", export=export_id)

    def _origin(self) -> str:
        return self.chance.choice(self._origins)

    def _register(self, url: str) -> str | None:
        body = {"provider_key": "generic_webhook", "base_url": url, "name": "Tracker"}
        answer = self.ask("POST", TARGETS, body, CREATED)
        if answer is None:
            return None
        target_id: str = answer.body["id"]
        self.events.note("registered", target=target_id, url=url)
        return target_id

    def _approve_one(self, target_id: str, expected: frozenset[int] = ACCEPTED) -> None:
        for export_id in self.prepare(self.shared.names.new()[0]):
            if expected == ACCEPTED:
                self.approve(export_id, target_id)
                continue
            self.events.note("approving", export=export_id, target=target_id)
            answer = self.api.request(
                "POST",
                f"{EXPORTS}/{export_id}/approve",
                self.keyed(f"approve-{export_id}"),
                {"target_id": target_id},
                expected,
            )
            if answer is not None and answer.status == 202:
                self.events.note("approved", export=export_id, target=target_id, digest=answer.body["ticket_digest"])
