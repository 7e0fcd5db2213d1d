"""The options of a target reach the receiver with every attempt and with a ping."""

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import pytest
from standardwebhooks import Webhook

from runtime.clock import utc_now
from schemas.targets.target import Target, TargetEdit
from storage.secrets.vault import Vault
from storage.targets import changes, pings, webhook_secrets
from tests.support.factories import DEFAULT_SECRET, Customer, claim_due, make_approved, make_target
from tests.support.fakes import NO_TRACKERS, LoopbackServer, Peer, ReceivedRequest
from tests.support.worker.account_tasks import run_once
from tests.support.worker.receivers import made_client
from worker.background.pings import PingTask
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.outcomes import Schedule
from worker.http.client import HttpClient
from worker.http.signed_request import SignedPost

VAULT: Final = Vault([b"k" * 32])
STANDARD: Final = f"whsec_{b64encode(bytes(32)).decode()}"


@dataclass
class RequestRecorder:
    """Stores every request, and responds to the first one with 503."""

    requests: list[ReceivedRequest] = field(default_factory=list)

    def __call__(self, peer: Peer) -> None:
        while received := peer.read():
            self.requests.append(received)
            peer.answer(503 if len(self.requests) == 1 else 200)


@pytest.fixture
def recorder() -> RequestRecorder:
    return RequestRecorder()


@pytest.fixture
def target(customer: Customer, recorder: RequestRecorder) -> Iterator[Target]:
    """A target on loopback with a header, Standard Webhooks and CloudEvents."""
    with LoopbackServer(recorder) as server:
        made, now = make_target(customer, server.url()), utc_now()
        webhook_secrets.set_header(made.id, "Authorization", "Bearer of ours", VAULT, now, "operator")
        webhook_secrets.set_standard_secret(made.id, STANDARD, VAULT, DEFAULT_SECRET, now, "operator")
        edit = TargetEdit(signature="standard-webhooks", format="cloudevents")
        changes.edit(made.id, edit, DEFAULT_SECRET, now, "operator")
        yield made


@pytest.fixture
def client() -> Iterator[HttpClient]:
    with made_client() as made:
        yield made


def test_every_attempt_has_the_header_the_same_event_and_a_signature_of_its_own(
    customer: Customer, target: Target, recorder: RequestRecorder, client: HttpClient
) -> None:
    export_id = make_approved(customer, target.id, utc_now())
    [claim] = claim_due(1, utc_now(), 60, "worker")
    options = AttemptOptions(DEFAULT_SECRET, Schedule((0,), timedelta(hours=1)), utc_now)
    runner = AttemptRunner(client.post, VAULT, options, NO_TRACKERS)
    for _ in range(2):
        assert runner.run(claim) is not None
    assert [received.headers["authorization"] for received in recorder.requests] == ["Bearer of ours"] * 2
    first, second = recorder.requests
    assert first.body == second.body
    assert json.loads(first.body)["data"]["export"]["id"] == export_id
    for received in recorder.requests:
        assert received.headers["content-type"] == "application/cloudevents+json"
        assert received.headers["webhook-id"] == export_id
        assert "x-service-signature" not in received.headers
        Webhook(STANDARD).verify(received.body, received.headers)


def test_a_header_that_was_replaced_after_the_claim_is_not_sent(
    customer: Customer, target: Target, recorder: RequestRecorder, client: HttpClient
) -> None:
    make_approved(customer, target.id, utc_now())
    [claim] = claim_due(1, utc_now(), 60, "worker")
    webhook_secrets.set_header(target.id, "Authorization", "Bearer of today", VAULT, utc_now(), "operator")
    stale = claim._replace(claimed_at=claim.claimed_at - timedelta(seconds=1))
    options = AttemptOptions(DEFAULT_SECRET, Schedule((0,), timedelta(hours=1)), utc_now)
    assert AttemptRunner(client.post, VAULT, options, NO_TRACKERS).run(stale) is not None
    assert [received.headers["authorization"] for received in recorder.requests] == ["Bearer of today"]


def test_a_ping_is_sent_as_a_delivery_is(target: Target, recorder: RequestRecorder, client: HttpClient) -> None:
    ping_id = pings.request(target.id, target.account_id, utc_now(), "operator")
    assert run_once(PingTask(SignedPost(client.post, VAULT, DEFAULT_SECRET), "worker", utc_now, NO_TRACKERS))
    [received] = recorder.requests
    assert (received.headers["webhook-id"], received.headers["authorization"]) == (ping_id, "Bearer of ours")
    Webhook(STANDARD).verify(received.body, received.headers)
    assert json.loads(received.body)["type"] == "io.riskrelay.target.ping"
