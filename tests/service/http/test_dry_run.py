"""A dry run does everything but store: on every route that creates records, on both databases."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.inspect import inspect_routes
from falcon.testing import Result, TestClient
from freezegun import freeze_time

from schemas.base.timestamps import format_rfc3339
from schemas.settings.definitions import Settings
from service.app import create_app
from storage.compliance import requests as compliance_requests
from tests.support.factories import NOW, Customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import RULES, TARGETS, Call, assert_is_error, everything_stored, is_of_the_console
from tests.support.http.specification import COMPLIANCE, CloudInstallation, everything, make_world, signed

#: Those of the nine endpoints that create records.
CREATING: Final = {1: 202, 2: 202, 3: 201, 6: 201, 7: 201, 8: 201, 9: 204}
CREDENTIALS: Final = {
    1: "X-Scanner-Secret",
    2: "X-Email-Webhook-Secret",
    **dict.fromkeys((3, 6, 7, 8), "Authorization"),
    9: "X-Platform-Hmac-Sha256",
}
KEY: Final = ("Idempotency-Key", "k")
_NEW_VALUES: Final = re.compile(r"^([a-z]{3}_[0-9A-HJKMNP-TV-Z]{26}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)$")


@pytest.fixture
def world(customer: Customer, tmp_path: Path) -> CloudInstallation:
    """An installation with every feature enabled."""
    settings = make_settings(tmp_path, everything(customer))
    wake_ups = FakeWakeUpQueue()
    return make_world(settings, make_client(settings, wake_ups), wake_ups, customer)


def make_client(settings: Settings, wake_ups: FakeWakeUpQueue) -> TestClient:
    """Return a process of the service, with its own rate limits."""
    return TestClient(create_app(settings, wake_ups, FakeResolver({"tracker.example.com": ["93.184.215.14"]})))


def as_dry_run(call: Call) -> Call:
    return replace(call, query="dry_run=true")


def without_new_values(reported: Any) -> Any:
    """Return a response body without the values that are new each time: IDs and times."""
    if isinstance(reported, dict):
        return {name: without_new_values(inner) for name, inner in reported.items()}
    if isinstance(reported, list):
        return [without_new_values(inner) for inner in reported]
    return "new" if isinstance(reported, str) and _NEW_VALUES.match(reported) else reported


def refusal(answer: Result) -> Any:
    error = answer.json["error"]
    return answer.status_code, error["code"], error["details"]


#: Records that manage an account have no dry run.
MANAGED = tuple(f"/api/{noun}" for noun in ("accounts", "projects", "users", "grants", "tokens", "scan-runs"))


def test_every_route_that_creates_records_has_a_dry_run(world: CloudInstallation) -> None:
    taking = {world.call(endpoint).path for endpoint in CREATING}
    app: Any = world.client.app
    posts = {
        route.path
        for route in inspect_routes(app)
        for each in route.methods
        if each.method == "POST"
        and not each.internal
        and not is_of_the_console(route.path)
        and not route.path.startswith(("/api/ticket-exports", "/api/ticket-export-recoveries", RULES, *MANAGED))
    }
    # Actions on an existing target store nothing from the request body.
    assert {path for path in posts if "{" not in path} == taking
    assert TARGETS in taking


def test_a_dry_run_returns_what_would_be_stored_and_stores_nothing(world: CloudInstallation) -> None:
    for endpoint, status in CREATING.items():
        call = world.call(endpoint)
        stored, notifications = everything_stored(), world.wake_ups.notifications

        answers = [as_dry_run(each).send(world.client) for each in (call, call.plus(KEY))]

        assert (everything_stored(), world.wake_ups.notifications) == (stored, notifications), endpoint
        real = call.plus(KEY).send(world.client)
        assert real.status_code == status, endpoint
        # The dry run did not use up the key.
        assert "idempotency-replayed" not in real.headers, endpoint
        assert everything_stored() != stored, endpoint
        for answer in answers:
            assert answer.status_code == 200, answer.text
            assert {"location", "idempotency-replayed"} & set(answer.headers) == set(), endpoint
            if real.content:
                assert without_new_values(answer.json) == without_new_values(real.json), endpoint


def test_a_dry_run_considers_stored_records(world: CloudInstallation) -> None:
    known = {
        1: ("findings", {"new": 0, "seen": 1, "fixed": 0, "reopened": 0}),
        2: ("duplicate", True),
        9: ("duplicate", True),
    }
    for endpoint, status in CREATING.items():
        call = world.call(endpoint).plus(KEY)
        assert call.send(world.client).status_code == status
        stored = everything_stored()
        answer = as_dry_run(call).send(world.client)
        assert (answer.status_code, everything_stored()) == (200, stored), endpoint
        # A dry run replays no response: it reports what a new request would do.
        assert "idempotency-replayed" not in answer.headers, endpoint
        if endpoint in known:
            name, actual = known[endpoint]
            assert answer.json[name] == actual


@pytest.mark.parametrize("fault", ["missing", "wrong"])
def test_a_dry_run_rejects_the_same_callers(fault: str, world: CloudInstallation) -> None:
    settings = replace(world.settings, auth_failures_per_minute=2)
    for endpoint, name in CREDENTIALS.items():
        client = make_client(settings, world.wake_ups)
        call = world.call(endpoint).without(name)
        if fault == "wrong":
            call = call.plus((name, "Bearer rrt_no" if name == "Authorization" else "no"))
        problems = refusal(as_dry_run(call).send(client))
        assert (problems[0], problems) == (401, refusal(call.send(client))), endpoint
        # Both counted as failures; from the next request on, credentials are not checked.
        for each in (call, world.call(endpoint)):
            assert_is_error(as_dry_run(each).send(client), 429, "RATE_LIMITED")


def test_a_dry_run_counts_against_the_rate_limit(world: CloudInstallation) -> None:
    settings = replace(world.settings, rate_limit_per_minute=2)
    for endpoint in CREATING:
        client, call = make_client(settings, world.wake_ups), world.call(endpoint)
        left = [as_dry_run(call).send(client).headers["ratelimit"].partition(";t=")[0] for _ in range(2)]
        if left[0] == left[1]:
            # The minute ended between the two requests.
            left[1] = as_dry_run(call).send(client).headers["ratelimit"].partition(";t=")[0]
        assert left == ['"principal";r=1', '"principal";r=0'], endpoint
        for each in (call, as_dry_run(call)):
            assert_is_error(each.send(client), 429, "RATE_LIMITED")


def test_a_dry_run_rejects_the_same_requests(world: CloudInstallation) -> None:
    stored = everything_stored()
    for endpoint in CREATING:
        for each in rejected_calls(world, endpoint):
            problems = refusal(as_dry_run(each).send(world.client))
            assert problems == refusal(each.send(world.client)), each
            assert problems[0] in {406, 413, 415, 422}, each
    assert everything_stored() == stored


#: Something invalid for each route; a route ignores members that it does not know.
_INVALID_MEMBERS: Final = {
    "page": {"url": "no", "responseHeaders": {"set-cookie": "a=1"}},
    "to": "nobody",
    "text": "4242 4242 4242 4242",
    "base_url": "https://10.0.0.1/",
    "password": "x",
    "shop_domain": "other.example.com",
}


def rejected_calls(world: CloudInstallation, endpoint: int) -> Iterator[Call]:
    """Yield invalid requests to a route, each for a different reason."""
    call = world.call(endpoint)
    for body in (b"{not json", b'{"a": 1, "a": 1}', b"[]", b"{}", json.dumps({**call.json, **_INVALID_MEMBERS}).encode()):
        spoiled = replace(call, body=body)
        yield signed(spoiled) if endpoint == 9 else spoiled
    yield call.without("Content-Type").plus(("Content-Type", "text/plain"))
    yield call.without("Accept").plus(("Accept", "text/html"))
    too_large = replace(call, body=b" " * (1024 * 1024 + 1))
    yield signed(too_large) if endpoint == 9 else too_large
    if endpoint != 9:
        yield call.plus(("Idempotency-Key", "x" * 256))


def test_the_dry_run_of_a_compliance_webhook_returns_what_would_be_recorded(world: CloudInstallation) -> None:
    with freeze_time(NOW):
        record = as_dry_run(world.call(9)).send(world.client).json
        assert world.call(9).send(world.client).status_code == 204
        again = as_dry_run(world.call(9)).send(world.client).json
    [line] = compliance_requests.list_all()
    assert record == {
        "status": "accepted",
        "duplicate": False,
        "topic": line.topic.value,
        "shop_domain": line.shop_domain,
        "due_at": format_rfc3339(line.due_at),
    }
    assert again == {**record, "duplicate": True, "due_at": None}


def test_a_dry_run_rejects_a_compliance_webhook_that_cannot_be_encrypted(world: CloudInstallation) -> None:
    settings = replace(world.settings, encryption_keys=(), webhook_secret=None)
    client = make_client(settings, world.wake_ups)
    call = world.call(9)
    assert call.path == COMPLIANCE
    assert_is_error(as_dry_run(call).send(client), 503, "SERVICE_UNAVAILABLE")
