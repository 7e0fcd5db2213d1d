"""webhook-only mode is complete by itself: create an export, approve it, deliver it, poll it, and retry a failed one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import TestClient

from runtime.wake_up_queue import WakeUpQueue, connect
from service.app import create_app
from tests.support.factories import LOOPBACK, Customer, make_settings
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.raw_http import BASE, EXPORTS, JSON, TARGETS, Call, target_request
from tests.support.processes.workers import CountingReceiver, WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer

TICKET = {"title": "The total is wrong", "severity": "high", "evidence": {"expected": 10, "shown": 12}}


@pytest.fixture
def client(database: str, redis: RedisServer, tmp_path: Path) -> TestClient:
    """The service in webhook-only mode, with loopback targets allowed."""
    settings = make_settings(tmp_path, {"DEPLOYMENT_MODE": "webhook-only", "REDIS_URL": redis.url, **LOOPBACK})
    return TestClient(create_app(settings, WakeUpQueue(connect(redis.url))))


def send(client: TestClient, customer: Customer, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """Send a request that must succeed, and return the body of the response."""
    call = Call(method, path.removeprefix(BASE), tuple(customer.bearer.items()))
    answer = (call if body is None else call.plus(*JSON.items()).with_json(body)).send(client)
    assert answer.status_code < 300, answer.text
    reported: dict[str, Any] = answer.json
    return reported


def poll(client: TestClient, customer: Customer, export_id: str, until: str) -> dict[str, Any]:
    """Poll an export until it has a status; return its record."""
    path = f"{EXPORTS}/{export_id}"
    wait_until(lambda: send(client, customer, "GET", path)["status"] == until)
    return send(client, customer, "GET", path)


def test_a_manual_ticket_is_prepared_approved_delivered_and_polled(
    client: TestClient, customer: Customer, receiver: CountingReceiver, start: Callable[..., WorkerProcess]
) -> None:
    with start(DEPLOYMENT_MODE="webhook-only", SWEEP_SECONDS="600"):
        export = send(client, customer, "POST", EXPORTS, {"ticket": TICKET, "source": {"type": "manual", "id": "NOTE-7"}})
        target = send(client, customer, "POST", TARGETS, target_request(receiver.url()))
        approval = {"target_id": target["id"], "ticket_digest": export["ticket_digest"]}
        send(client, customer, "POST", f"{EXPORTS}/{export['id']}/approve", approval)
        exported = poll(client, customer, export["id"], "exported")

    [request] = receiver.requests
    body = json.loads(request.body)
    assert (body["id"], body["ticket"], body["export"]["source"]) == (export["id"], export["ticket"], export["source"])
    assert exported["provider_ticket"] == {"id": "T-1", "url": None}
    [attempt] = send(client, customer, "GET", f"{EXPORTS}/{export['id']}/attempts")["items"]
    assert (attempt["id"], attempt["outcome"]) == (request.headers["x-request-id"], "delivered")
    assert send(client, customer, "GET", EXPORTS)["items"] == [exported]


def test_a_rejected_export_is_delivered_on_retry(
    client: TestClient, customer: Customer, start: Callable[..., WorkerProcess]
) -> None:
    statuses = iter([400, 202])

    def refuse_once(peer: Peer) -> None:
        while peer.read():
            peer.answer(next(statuses))

    with LoopbackServer(refuse_once) as server, start(DEPLOYMENT_MODE="webhook-only", SWEEP_SECONDS="600"):
        export = send(client, customer, "POST", EXPORTS, {"ticket": TICKET})
        target = send(client, customer, "POST", TARGETS, target_request(server.url()))
        send(client, customer, "POST", f"{EXPORTS}/{export['id']}/approve", {"target_id": target["id"]})
        poll(client, customer, export["id"], "failed")
        send(client, customer, "POST", f"{EXPORTS}/{export['id']}/retry")
        poll(client, customer, export["id"], "exported")

    attempts = send(client, customer, "GET", f"{EXPORTS}/{export['id']}/attempts")["items"]
    assert [(each["number"], each["response_status"]) for each in attempts] == [(2, 202), (1, 400)]
