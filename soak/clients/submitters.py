"""Clients of the API: submit findings and uploads, approve exports, poll them, dismiss some.

Each client is a thread with its own connection and random generator. `soak.clients.operator` sends the rarer requests. Each
submission carries a name, `soak-` and a number, which identifies the rows that it creates.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from soak.clients.api_connection import ApiConnection, SoakResponse
from soak.plan import SoakPlan
from soak.receivers.event_log import EventLog
from tests.support.factories import (
    SCANNER_SECRET,
    capture,
    cms_diagnostics,
    issue,
    plain_email,
    postback,
    storefront_diagnostics,
)
from tests.support.http.storefront import EMAIL_SECRET

EXPORTS: Final = "/api/ticket-exports"
TARGETS: Final = "/api/ticket-export-targets"

_OK: Final = frozenset({200})
CREATED: Final = frozenset({201})
ACCEPTED: Final = frozenset({202})
#: 422: the target is paused at this moment, or its last validation failed.
APPROVED_OR_REFUSED: Final = frozenset({202, 422})
_POLLED: Final = frozenset({200, 304})

#: Shares of prepared exports that are dismissed and left as they are; the rest is approved.
_DISMISSED: Final = 0.04
_LEFT: Final = 0.03
#: Shares of approvals that are repeated with the same key and that are polled.
_REPEATED: Final = 0.1
_POLLED_SHARE: Final = 0.5
#: Relative frequency of each source.
_SOURCES: Final = {"postback": 3, "manual": 6, "email": 1, "capture": 1, "cms": 1, "storefront": 1}
_MAX_ISSUES: Final = 12


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """Access of the clients: an account's tokens and project, a shop's project, and the targets to approve for."""

    bearer: Mapping[str, str]
    platform: Mapping[str, str]
    project_id: int
    shop_project_id: int
    shop_domain: str
    targets: Sequence[str]

    @property
    def paused_at_times(self) -> Sequence[str]:
        """The targets that the operator pauses; never reliable ones, for which lateness is measured."""
        return self.targets[1::3]


class Pace:
    """Spreads approvals evenly; catches up on approvals that outages delayed."""

    def __init__(self, rate: float, stop: threading.Event) -> None:
        self.stop = stop
        self._rate = rate
        self._began_at = time.monotonic()
        self._numbers = itertools.count()

    def wait(self) -> bool:
        """Wait for the next approval; False once the run is over."""
        due_at = self._began_at + next(self._numbers) / self._rate
        return not self.stop.wait(max(0.0, due_at - time.monotonic()))


class Names:
    """Unique names and numbers for all clients of a run."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self) -> tuple[str, int]:
        """Return a name and its number."""
        number = next(self._numbers)
        return f"soak-{number}", number


@dataclass
class Shared:
    """State that all clients of a run share."""

    plan: SoakPlan
    access: ClientAccess
    events: EventLog
    names: Names
    pace: Pace
    counts: Counter[str]

    @property
    def approved(self) -> int:
        """Number of acknowledged approvals."""
        return self.counts["approved"]


class SoakClient(threading.Thread):
    """One client: submits data and approves, dismisses or leaves each export at random."""

    def __init__(self, shared: Shared, number: int, port: int) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.rng = random.Random(f"{shared.plan.seed}:client:{number}")
        self.shared = shared
        self.events = shared.events
        self.access = shared.access
        self.api = ApiConnection(port, shared.events, shared.counts, shared.pace.stop)
        self.failed: BaseException | None = None
        self._submit_by_source: Mapping[str, Callable[[str, int], list[str]]] = {
            "postback": self.post_back,
            "manual": self.prepare,
            "email": self._email,
            "capture": lambda name, _: self.upload(
                name, "/api/browser-extension/evidence-captures", capture(self.access.project_id, page_title=name)
            ),
            "cms": lambda name, _: self.upload(
                name,
                "/api/cms-plugins/cms-commerce/diagnostics",
                cms_diagnostics(self.access.project_id, site_url=f"https://shop.example/{name}/"),
            ),
            "storefront": lambda name, _: self.upload(
                name,
                "/api/storefront-app/diagnostics",
                storefront_diagnostics(self.access.shop_project_id, shop_domain=self.access.shop_domain, shop_name=name),
            ),
        }

    def run(self) -> None:
        """Send requests until the run is over."""
        try:
            self.act()
        except BaseException as failed:  # the process that started this one reports it
            self.failed = failed
            raise
        finally:
            self.api.close()

    def act(self) -> None:
        """Submit one item after the other."""
        while not self.shared.pace.stop.is_set():
            [kind] = self.rng.choices(list(_SOURCES), list(_SOURCES.values()))
            for export_id in self._submit_by_source[kind](*self.shared.names.new()):
                if not self.decide_on(export_id):
                    return

    def decide_on(self, export_id: str) -> bool:
        """Approve, dismiss or leave an export; False once the run is over."""
        kind = self.rng.random()
        if kind < _DISMISSED:
            self._dismiss(export_id)
        elif kind > _DISMISSED + _LEFT:
            if not self.shared.pace.wait():
                return False
            self.approve(export_id, self.rng.choice(self.access.targets))
            if self.rng.random() < _POLLED_SHARE:
                self.poll(export_id)
        return True

    def approve(self, export_id: str, target_id: str) -> bool:
        """Approve the current ticket of an export; return whether the approval was acknowledged."""
        read = self.call_api("GET", f"{EXPORTS}/{export_id}")
        if read is None:
            return False
        digest = read.body["ticket_digest"]
        self.events.append("approving", export=export_id, target=target_id)
        body = {"target_id": target_id, "ticket_digest": digest}
        headers = self.keyed(f"approve-{export_id}")
        response = self.api.request("POST", f"{EXPORTS}/{export_id}/approve", headers, body, APPROVED_OR_REFUSED)
        if response is None or response.status not in ACCEPTED:
            return False
        self.shared.counts["approved"] += 1
        self.events.append("approved", export=export_id, target=target_id, digest=digest)
        if self.rng.random() < _REPEATED:
            self.api.request("POST", f"{EXPORTS}/{export_id}/approve", headers, body, ACCEPTED)
        return True

    def poll(self, export_id: str) -> None:
        """Read an export twice, the second time with the ETag of the first."""
        first = self.call_api("GET", f"{EXPORTS}/{export_id}")
        if first is None:
            return
        self._record_final_status(export_id, first)
        tagged = {**self.access.bearer, "If-None-Match": first.headers["etag"]}
        second = self.api.request("GET", f"{EXPORTS}/{export_id}", tagged, expected=_POLLED)
        if second is not None and second.status == 200:
            self._record_final_status(export_id, second)

    def prepare(self, name: str, _: int = 0) -> list[str]:
        """Prepare an export manually; return its id if acknowledged."""
        body = {"ticket": {"title": f"Note {name}", "description": "x" * 400}, "source": {"type": "manual", "id": name}}
        response = self.keyed_post(name, 1, EXPORTS, self.access.bearer, body, CREATED)
        return [] if response is None else self._acknowledge(name, [response.body["id"]])

    def upload(self, name: str, path: str, body: Any) -> list[str]:
        """Submit an upload; return the id of its export if acknowledged."""
        response = self.keyed_post(name, 1, path, self.access.platform, body, CREATED)
        return [] if response is None else self._acknowledge(name, [response.body["handoff"]["ticket_export_id"]])

    def call_api(self, method: str, path: str, body: Any = None, expected: frozenset[int] = _OK) -> SoakResponse | None:
        """Send a request with the API token; a POST gets a new key."""
        headers = self.access.bearer if method == "GET" else self.keyed("-".join(map(str, self.shared.names.new())))
        return self.api.request(method, path, headers, body, expected)

    def keyed(self, key: str) -> dict[str, str]:
        """The headers of a POST that may be repeated."""
        return {**self.access.bearer, "Idempotency-Key": key}

    def keyed_post(
        self, name: str, rows: int, path: str, credential: Mapping[str, str], body: Any, expected: frozenset[int]
    ) -> SoakResponse | None:
        """Submit data that becomes `rows` exports named `name`; the name is also the key."""
        self.events.append("submitting", name=name, rows=rows)
        return self.api.request("POST", path, {**credential, "Idempotency-Key": name}, body, expected)

    def _acknowledge(self, name: str, ids: list[str]) -> list[str]:
        self.shared.counts["acknowledged"] += 1
        self.events.append("acknowledged", name=name, ids=ids)
        return ids

    def post_back(self, name: str, number: int, rule: str = "rule") -> list[str]:
        """Submit a page with issues, whose rule codes begin with `rule`; return the ids of their exports."""
        issues: list[Mapping[str, Any]] = [issue(f"{rule}-{each}") for each in range(self.rng.randint(1, _MAX_ISSUES))]
        body = postback(number, issues, page={"url": f"https://shop.example/{name}/"})
        secret = {"X-Scanner-Secret": SCANNER_SECRET}
        response = self.keyed_post(name, len(issues), "/api/scanner/results", secret, body, ACCEPTED)
        return [] if response is None else self._acknowledge(name, response.body["ticket_exports"])

    def _email(self, name: str, _: int) -> list[str]:
        body = plain_email(message_id=f"<{name}@mail.example>", subject=f"About {name}")
        response = self.keyed_post(name, 1, "/api/email/webhook", {"X-Email-Webhook-Secret": EMAIL_SECRET}, body, ACCEPTED)
        if response is None:
            return []
        self._acknowledge(name, [])
        listed = self.call_api("GET", f"{EXPORTS}?source=inbound_email&limit=50")
        items = [] if listed is None else listed.body["items"]
        return [item["id"] for item in items if item["source"]["id"] == response.body["id"]]

    def _dismiss(self, export_id: str) -> None:
        if self.call_api("POST", f"{EXPORTS}/{export_id}/dismiss") is not None:
            self.events.append("dismissed", export=export_id)

    def _record_final_status(self, export_id: str, response: SoakResponse) -> None:
        if response.body["status"] in {"exported", "dismissed"}:
            self.events.append("seen", export=export_id, status=response.body["status"])
