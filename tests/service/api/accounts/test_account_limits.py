"""Every route that stores something keeps the limits of its account, and stores nothing of a request that it refuses."""

from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import TestClient

from service.app import create_app
from storage.db.engine import rows
from tests.support.factories import Customer, issue, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, JSON, Call, FieldRefusal, assert_is_error, everything_stored
from tests.support.http.specification import CloudInstallation, everything, make_world

#: Endpoints that store something, with a setting that limits each of them.
LIMITED: Final = [
    (1, "MAX_FINDINGS_PER_ACCOUNT"),
    (1, "MAX_WAITING_EXPORTS_PER_ACCOUNT"),
    (2, "MAX_WAITING_EXPORTS_PER_ACCOUNT"),
    (3, "MAX_TARGETS_PER_ACCOUNT"),
    *((endpoint, "MAX_WAITING_EXPORTS_PER_ACCOUNT") for endpoint in (6, 7, 8)),
    *((endpoint, "MAX_UPLOADS_PER_DAY") for endpoint in (6, 7, 8)),
]


def limited(world: CloudInstallation, folder: Path, **settings: str) -> TestClient:
    """Return the application of another process of the installation, with other settings."""
    changed = make_settings(folder, {**everything(world.customer), **settings})
    resolver = FakeResolver({"tracker.example.com": ["93.184.215.14"]})
    return TestClient(create_app(changed, FakeWakeUpQueue(), resolver))


@pytest.fixture
def world(customer: Customer, tmp_path: Path) -> CloudInstallation:
    settings = make_settings(tmp_path, everything(customer))
    wake_ups = FakeWakeUpQueue()
    client = TestClient(create_app(settings, wake_ups, FakeResolver({"tracker.example.com": ["93.184.215.14"]})))
    made = make_world(settings, client, wake_ups, customer)
    # One record of each kind, so that a limit of one is reached.
    for endpoint in (1, 3, 6):
        assert made.call(endpoint).send(client).status_code < 300
    return made


@pytest.mark.parametrize("is_dry", [False, True])
@pytest.mark.parametrize(("endpoint", "setting"), LIMITED)
def test_a_route_refuses_a_request_beyond_an_account_limit(
    endpoint: int, setting: str, is_dry: bool, world: CloudInstallation, tmp_path: Path
) -> None:
    client = limited(world, tmp_path, **{setting: "1"})
    others: dict[int, dict[str, Any]] = {1: {"issues": [issue("another")]}, 6: {"selected_text": "Another text."}}
    call = world.changed(endpoint, **others.get(endpoint, {}))
    before = everything_stored()
    answer = client.simulate_post(
        call.path, query_string="dry_run=true" if is_dry else "", headers=dict(call.headers), body=call.body
    )
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("", "limit_reached"),))
    assert setting in answer.json["error"]["details"]["fields"][0]["message"]
    assert everything_stored() == before


def test_a_manual_ticket_beyond_the_limit_is_refused(world: CloudInstallation, tmp_path: Path) -> None:
    client = limited(world, tmp_path, MAX_WAITING_EXPORTS_PER_ACCOUNT="1")
    call = Call("POST", EXPORTS, (*world.customer.bearer.items(), *JSON.items())).with_json({"ticket": {"title": "T"}})
    assert_is_error(call.send(client), 422, "VALIDATION_FAILED", (FieldRefusal("", "limit_reached"),))


def test_a_repeat_is_accepted_at_the_limit(world: CloudInstallation, tmp_path: Path) -> None:
    client = limited(world, tmp_path, MAX_FINDINGS_PER_ACCOUNT="1", MAX_WAITING_EXPORTS_PER_ACCOUNT="1")
    again = world.call(1).send(client)
    assert (again.status_code, again.json["findings"]) == (202, {"new": 0, "seen": 1, "fixed": 0, "reopened": 0})
    client = limited(world, tmp_path, MAX_UPLOADS_PER_DAY="1")
    again = world.call(6).send(client)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")


def test_a_postback_beyond_the_limit_is_refused_as_a_whole(world: CloudInstallation, tmp_path: Path) -> None:
    [(stored,)] = rows("SELECT COUNT(*) FROM findings")
    client = limited(world, tmp_path, MAX_FINDINGS_PER_ACCOUNT=str(stored + 2))
    three = [issue(f"new-{letter}") for letter in "abc"]
    assert world.changed(1, issues=three).send(client).status_code == 422
    assert rows("SELECT COUNT(*) FROM findings") == [(stored,)]
    assert world.changed(1, issues=three[:2]).send(client).status_code == 202
