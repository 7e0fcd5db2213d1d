"""With any responses of a tracker and any crash of a worker, an approved export becomes exactly one issue in the end.

Hypothesis draws the outcomes of creates and lookups. Workers die before or after the request, and users retry and resume.
Rows, claims, attempts and verdicts are the product's; the tracker is a list of issues.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from schemas.exports.delivery import Outcome
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import TargetStatus
from schemas.trackers.exchange import Steps, TrackerAccess, TrackerIssue, TrackerRequest, TrackerTicket
from schemas.trackers.failures import failure_of
from storage.db.engine import transaction
from storage.exports import claims_sql, queries, transitions
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.factories import Customer, in_s, make_approved, make_tracker
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.outcomes import Schedule
from worker.delivery.throttle_writer import effects_of, write_effects
from worker.http.deadline import Exchange
from worker.http.errors import transport_error
from worker.http.response_parser import ParsedResponse
from worker.trackers.runner import TrackerRunner

VAULT: Final = Vault([b"k" * 32])
PLAN: Final = Schedule((5.0, 30.0), timedelta(days=365))
#: Longer than a lease, a schedule and a hold.
STEP_S: Final = 4000.0

#: Outcomes of a create: whether it makes an issue, whether it is sent, and the status of its response, None if lost.
CREATES: Final[dict[str, tuple[bool, bool, int | None]]] = {
    "created": (True, True, 201),
    "created, response lost": (True, True, None),
    "created, then a 500": (True, True, 500),
    "created, response without a name": (True, True, 200),
    "lost": (False, True, None),
    "never sent": (False, False, None),
    "500": (False, True, 500),
    "token rejected": (False, True, 401),
    "rejected": (False, True, 422),
    "rate limit": (False, True, 429),
}
UNKNOWN: Final = ("created, response lost", "created, then a 500", "created, response without a name", "lost", "500")
LOOKUPS: Final = ("found", "500", "cut", "lost", "forbidden")


class Step(NamedTuple):
    """One attempt: the outcomes of its requests, and the point at which its worker dies."""

    create: str
    lookup: str
    death: str | None


FINE: Final = Step("created", "found", None)

steps: Final = st.builds(
    Step,
    # Outcomes that the worker cannot know are drawn most often.
    st.sampled_from([*CREATES, *UNKNOWN, *UNKNOWN]),
    st.sampled_from(["found", *LOOKUPS]),
    st.sampled_from([None, None, None, "before the request", "before the result"]),
)


@dataclass
class ListOfIssues:
    """A tracker's server in place of the worker's HTTP client; `now` is the current step."""

    now: Step = FINE
    issues: list[str] = field(default_factory=list)
    lookups: int = 0

    def begin(self, account_id: int | None, *_: object) -> Exchange:
        return Exchange(3600.0)

    def exchange(
        self, exchange: Exchange, method: str, url: str, headers: dict[str, str], body: bytes, **_: Any
    ) -> ParsedResponse:
        if method == "GET":
            return self._find(exchange, url)
        is_created, is_sent, status = CREATES[self.now.create]
        exchange.has_sent = is_sent
        if is_created:
            self.issues.append(body.decode())
        if status is None:
            raise transport_error("connection_closed" if is_sent else "connect_refused")
        return _response(status, {"id": str(len(self.issues))} if status == 201 else {})

    def _find(self, exchange: Exchange, url: str) -> ParsedResponse:
        self.lookups += 1
        exchange.has_sent = True
        match self.now.lookup:
            case "lost":
                raise transport_error("deadline_exceeded")
            case "500":
                return _response(500, {})
            case "forbidden":
                return _response(403, {})
            case "cut":
                return ParsedResponse(200, [], b'[{"id": "1"', True)
        found = [{"id": str(number)} for number, marker in enumerate(self.issues, 1) if marker == url.rpartition("=")[2]]
        return _response(200, found)


def _response(status: int, body: object) -> ParsedResponse:
    return ParsedResponse(status, [], json.dumps(body).encode(), False)


class MarkedIssues:
    """A tracker whose issues consist of their marker. Lookups accept any response that they can parse."""

    key, lookup_delay_s = "gitea", 0

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[Any]:
        response = yield TrackerRequest("POST", access.base_url, {}, ticket.export_id.encode(), creates=True)
        found = response.json()
        return failure_of(response) or (TrackerIssue(found["id"], access.base_url) if "id" in found else None)

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[Any]:
        response = yield TrackerRequest("GET", f"{access.base_url}?q={ticket.export_id}", {})
        found = response.json() or []
        return failure_of(response) or (TrackerIssue(found[0]["id"], access.base_url) if found else None)


def _never(*_: object, **__: object) -> Outcome:
    raise AssertionError("A tracker is sent no webhook.")


class World:
    """One export at one tracker, and the clock."""

    def __init__(self, customer: Customer) -> None:
        self.seconds = 0.0
        self.customer = customer
        self.tracker = ListOfIssues()
        self.target_id = make_tracker(customer, "https://gitea.example.com/acme/shop", VAULT)
        self.export_id = make_approved(customer, self.target_id)
        trackers = TrackerRunner(self.tracker, VAULT, "https://riskrelay.example.com", {"gitea": MarkedIssues()})  # type: ignore[arg-type,dict-item]  # fakes with the methods that a delivery uses
        options = AttemptOptions(DefaultSecret("s"), PLAN, lambda: in_s(self.seconds), lambda: 0.0, lambda claim, _: claim)
        self.runner = AttemptRunner(_never, VAULT, options, trackers)

    def play(self, step: Step) -> None:
        """Make the next attempt. If no export is due, act as a user who makes it due."""
        self.seconds += STEP_S
        self.tracker.now = step
        claims = claims_sql.claim_due({self.target_id: 1}, in_s(self.seconds), 6, "worker")
        if not claims:
            self._help()
            return
        [claim] = claims
        if step.death == "before the request":
            return
        lookups = self.tracker.lookups
        attempt = self.runner.run(claim)
        assert attempt is not None
        # No lookup after all tries were started and none ended: then nothing is sent.
        is_looked_up = claim.is_outcome_unknown and claim.try_number <= len(PLAN.delays_s) + 1
        assert self.tracker.lookups - lookups == is_looked_up, "A lookup belongs to an unknown outcome."
        if step.death == "before the result":
            return
        with transaction():
            moved = claims_sql.record_attempts([attempt], in_s(self.seconds), "worker")
            write_effects(effects_of([attempt], moved), in_s(self.seconds), "worker")

    def status(self) -> ExportStatus:
        return queries.get(self.export_id).status

    def _help(self) -> None:
        now = in_s(self.seconds)
        with transaction():
            transitions.end_waiting([self.target_id], now, "worker", 10)
            if targets.get(self.target_id, None).status is not TargetStatus.ACTIVE:
                targets.change_status(self.target_id, "resume", now, "user:1")
                transitions.requeue_blocked(self.target_id, now, "user:1")
        if self.status() is ExportStatus.FAILED:
            transitions.retry(self.export_id, self.customer.account_id, now, "user:1")


@given(drawn=st.lists(steps, min_size=6, max_size=12))
def test_an_export_never_creates_a_second_issue_and_finally_has_one(customer: Customer, drawn: Sequence[Step]) -> None:
    world = World(customer)
    for step in drawn:
        world.play(step)
        assert len(world.tracker.issues) <= 1, step
        if world.status() is ExportStatus.EXPORTED:
            break
    for _ in range(4):
        if world.status() is not ExportStatus.EXPORTED:
            world.play(FINE)
    assert (world.status(), world.tracker.issues) == (ExportStatus.EXPORTED, [world.export_id])
