"""A browser extension uploads evidence, and reads from its handoff when the ticket is approved and where it is."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from schemas.base.principal import Ability
from tests.support.factories import LOOPBACK, Customer, capture, environment, make_platform_token, make_target
from tests.support.fakes import LoopbackServer
from tests.support.http.raw_http import EXPORTS
from tests.support.processes.gunicorn_process import RawResponse, Service
from tests.support.processes.workers import WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.worker.receivers import always

CAPTURES = "/api/browser-extension/evidence-captures"
ANSWER = b'{"ticket_id": "T-9", "ticket_url": "https://tracker.example/T-9"}'


@pytest.fixture
def service(database: str, redis: RedisServer, tmp_path: Path) -> Iterator[Service]:
    """The service in cloud mode, with loopback targets allowed."""
    folder = tmp_path / "service"
    folder.mkdir()
    settings = {"DEPLOYMENT_MODE": "cloud", "RATE_LIMIT_PER_MINUTE": "100000", **LOOPBACK}
    with Service(environment(folder, DATABASE_URL=database, REDIS_URL=redis.url, **settings)) as made:
        yield made


def test_an_extension_polls_the_status_of_its_capture_until_delivery(
    service: Service, customer: Customer, start: Callable[..., WorkerProcess]
) -> None:
    bearer = {"Authorization": f"Bearer {make_platform_token(customer, Ability.UPLOAD_EVIDENCE)}"}

    def hand_in() -> Mapping[str, str]:
        answer = service.request("POST", CAPTURES, bearer, capture(customer.project_id))
        assert answer.status == 201, answer.content
        handoff: Mapping[str, str] = answer.json["handoff"]
        return handoff

    def poll(tag: str = "") -> RawResponse:
        conditional = {"If-None-Match": tag} if tag else {}
        return service.request("GET", f"/api/handoffs/{handoff['id']}", {**bearer, **conditional})

    handoff = hand_in()
    assert handoff["status"] == "received"
    prepared = poll()
    assert (prepared.status, prepared.json["status"]) == (200, "prepared")
    tag = prepared.headers["etag"]
    assert (poll(tag).status, poll(tag).content) == (304, b"")
    assert hand_in() == handoff

    with LoopbackServer(always(201, ANSWER)) as receiver:
        approval = {"target_id": make_target(customer, receiver.url()).id}
        path = f"{EXPORTS}/{handoff['ticket_export_id']}/approve"
        assert service.request("POST", path, customer.bearer, approval).status == 202
        approved = poll(tag)
        assert (approved.status, approved.json["status"]) == (200, "approved")
        # The default secret signs deliveries to targets of the operator's account.
        with start(DEPLOYMENT_MODE="cloud", OPERATOR_ACCOUNT_ID=str(customer.account_id)):
            wait_until(lambda: poll().json["status"] == "delivered")

    delivered = poll(approved.headers["etag"])
    ticket = {"id": "T-9", "url": "https://tracker.example/T-9"}
    assert delivered.json == {**prepared.json, "status": "delivered", "provider_ticket": ticket}
    assert poll(delivered.headers["etag"]).status == 304
    # A repeated upload returns the same handoff, whatever the state of its ticket.
    assert hand_in() == handoff
