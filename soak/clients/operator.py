"""Operator requests during a soak: pause, resume, disable, retry, ping and erasure of persons.

It is the only client that pauses, resumes and disables targets, so that the event log shows at any moment which arrivals are
allowed. It resumes a paused target before its next action.
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
_EXPORTS_PER_TARGET: Final = 3
#: Each erasure reads all stored rows and takes longer as they grow; at a higher rate, requests would pile up.
_ERASE_EVERY_S: Final = 60.0


class OperatorClient(SoakClient):
    """Sends an operator request every few seconds; `forbidden_origins` have an address that workers must not use."""

    def __init__(self, shared: Shared, port: int, origins: list[str], forbidden_origins: list[str]) -> None:
        super().__init__(shared, -1, port)
        self.name = "operator"
        self._origins = origins
        self._forbidden_origins = forbidden_origins
        self._erased_at = -math.inf
        self._actions: list[Callable[[], None]] = [
            self._pause,
            self._disable,
            self._approve_for_gone_target,
            self._approve_for_forbidden_target,
            self._retry,
            self._ping,
            self._erase_person,
        ]

    def act(self) -> None:
        """Act until the run is over."""
        while not self.shared.pace.stop.wait(self.rng.uniform(0.5, 1.5) * _EVERY_S):
            self.rng.choice(self._actions)()

    def _pause(self) -> None:
        target_id = self.rng.choice(self.access.paused_at_times)
        paused = self.call_api("POST", f"{TARGETS}/{target_id}/pause", expected=_DONE_OR_TOO_LATE)
        if paused is not None and paused.status == 200 and paused.body["status_reason"] == "client":
            self.events.append("paused", target=target_id)
            self.shared.pace.stop.wait(_PAUSE_S)
        while True:
            self.events.append("resuming", target=target_id)
            if self.call_api("POST", f"{TARGETS}/{target_id}/resume") is not None:
                return

    def _disable(self) -> None:
        target_id = self._register(f"{self._origin()}/accept/{self.shared.names.new()[0]}")
        if target_id is None:
            return
        for _ in range(_EXPORTS_PER_TARGET):
            self._approve_one(target_id)
        if self.call_api("POST", f"{TARGETS}/{target_id}/disable") is not None:
            self.events.append("disabled", target=target_id)

    def _approve_for_gone_target(self) -> None:
        target_id = self._register(f"{self._origin()}/gone/{self.shared.names.new()[0]}")
        if target_id is not None:
            self._approve_one(target_id)

    def _approve_for_forbidden_target(self) -> None:
        target_id = self._register(f"{self.rng.choice(self._forbidden_origins)}/forbidden/{self.shared.names.new()[0]}")
        if target_id is not None:
            # 422: a worker may already have checked the address and blocked the target.
            self._approve_one(target_id, frozenset({202, 422}))

    def _retry(self) -> None:
        listed = self.call_api("GET", f"{EXPORTS}?status=failed&limit=20")
        if listed is None or not listed.body["items"]:
            return
        export_id = self.rng.choice(listed.body["items"])["id"]
        self.call_api("POST", f"{EXPORTS}/{export_id}/retry", expected=_ACCEPTED_OR_TOO_LATE)

    def _ping(self) -> None:
        self.call_api("POST", f"{TARGETS}/{self.rng.choice(self.access.targets)}/ping")

    def _erase_person(self) -> None:
        """Submit and approve an export that names a person, then request the erasure at once; at a limited rate."""
        if time.monotonic() - self._erased_at < _ERASE_EVERY_S:
            return
        self._erased_at = time.monotonic()
        name, number = self.shared.names.new()
        person = ShopCustomer(
            88_000_000 + number, f"person.{number}@mail.example", f"+1 555 {number:07}", (770_000_000 + number,)
        )
        body = capture(self.access.shop_project_id, page_title=name, selected_text=f"Ask {person.email} about it.")
        for export_id in self.upload(name, "/api/browser-extension/evidence-captures", body):
            self.approve(export_id, self.rng.choice(self.access.targets))
            self._redact(person, export_id)

    def _redact(self, person: ShopCustomer, export_id: str) -> None:
        content = json.dumps(redact_body(person, self.access.shop_domain)).encode()
        headers = {
            "X-Platform-Hmac-Sha256": signature(content),
            "X-Platform-Topic": "customers/redact",
            "X-Platform-Shop-Domain": self.access.shop_domain,
        }
        self.events.append("erasure requested", export=export_id)
        if self.api.request("POST", WEBHOOKS, headers, expected=_TAKEN, content=content) is not None:
            self.events.append("erasure accepted", export=export_id)

    def _origin(self) -> str:
        return self.rng.choice(self._origins)

    def _register(self, url: str) -> str | None:
        body = {"provider_key": "generic_webhook", "base_url": url, "name": "Tracker"}
        response = self.call_api("POST", TARGETS, body, CREATED)
        if response is None:
            return None
        target_id: str = response.body["id"]
        self.events.append("registered", target=target_id, url=url)
        return target_id

    def _approve_one(self, target_id: str, expected: frozenset[int] = ACCEPTED) -> None:
        for export_id in self.prepare(self.shared.names.new()[0]):
            if expected == ACCEPTED:
                self.approve(export_id, target_id)
                continue
            self.events.append("approving", export=export_id, target=target_id)
            response = self.api.request(
                "POST",
                f"{EXPORTS}/{export_id}/approve",
                self.keyed(f"approve-{export_id}"),
                {"target_id": target_id},
                expected,
            )
            if response is not None and response.status == 202:
                self.events.append("approved", export=export_id, target=target_id, digest=response.body["ticket_digest"])
