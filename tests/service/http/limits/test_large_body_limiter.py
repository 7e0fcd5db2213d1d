"""Large bodies: their total size is limited, and they are processed one by one, fairly by sender; small ones never wait."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import falcon
import pytest
from falcon.testing import Result, TestClient

from schemas.base.checkpoint import Checkpoint
from schemas.base.fields import LenientForm
from schemas.base.principal import SharedSecretPrincipal
from schemas.base.strict_json import MAX_VALUES
from service.app import create_app
from service.http.limits.large_body_limiter import LARGE_BYTES, BodyBudgets, ByteBudget, LargeBodyOverload, LargeBodyQueue
from service.http.limits.rate_limits import RateLimits
from service.http.request_pipeline import Operation, RequestPipeline
from tests.support.factories import SCANNER_SECRET, Customer, make_settings, postback
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import FieldRefusal, assert_is_error
from tests.support.processes.workers import wait_until

LARGE: Final = LARGE_BYTES + 1
#: A timeout for events that happen within milliseconds.
PATIENCE_S: Final = 20.0


def test_a_budget_is_reserved_and_released_by_the_byte() -> None:
    budget = ByteBudget(100)
    budget.reserve(60)
    budget.reserve(40)
    with pytest.raises(LargeBodyOverload):
        budget.reserve(1)
    budget.release(1)
    budget.reserve(1)
    assert budget.reserved_bytes == 100


def test_a_reservation_beyond_the_budget_reserves_nothing() -> None:
    budget = ByteBudget(100)
    with pytest.raises(LargeBodyOverload):
        budget.reserve(101)
    assert budget.reserved_bytes == 0


class Sender(threading.Thread):
    """Waits for a slot, appends its name to `order` when it gets one, and keeps the slot until `may_go` is set."""

    def __init__(self, turns: LargeBodyQueue, name: str, order: list[str]) -> None:
        super().__init__(name=name, daemon=True)
        self._turns = turns
        self._order = order
        self.may_go = threading.Event()
        self.was_refused = False

    def run(self) -> None:
        try:
            with self._turns.slot(self.name.partition("-")[0], LARGE):
                self._order.append(self.name)
                self.may_go.wait(PATIENCE_S)
        except LargeBodyOverload:
            self.was_refused = True


def _has(order: list[str], count: int) -> bool:
    return len(order) == count


def waiting_for(turns: LargeBodyQueue, count: int) -> Any:
    return lambda: sum(map(len, turns._waiting.values())) == count


def test_large_bodies_are_processed_in_turns_by_sender() -> None:
    turns, order = LargeBodyQueue(), list[str]()
    senders = []
    for number, name in enumerate(["eager-1", "eager-2", "eager-3", "eager-4", "other-1", "third-1", "other-2"]):
        senders.append(Sender(turns, name, order))
        senders[-1].start()
        wait_until(lambda: order) if number == 0 else wait_until(waiting_for(turns, number))
    for number in range(len(senders)):
        wait_until(partial(_has, order, number + 1))
        next(each for each in senders if each.name == order[-1]).may_go.set()
    for sender in senders:
        sender.join(PATIENCE_S)
    assert order == ["eager-1", "eager-2", "other-1", "third-1", "eager-3", "other-2", "eager-4"]
    assert turns._waiting == {}


def test_a_request_without_a_slot_in_time_is_refused_and_leaves_the_queue() -> None:
    turns, order = LargeBodyQueue(within_s=0.05), list[str]()
    first, second = Sender(turns, "a-1", order), Sender(turns, "a-2", order)
    first.start()
    wait_until(lambda: order)
    second.start()
    second.join(PATIENCE_S)
    assert second.was_refused
    assert turns._waiting == {}
    first.may_go.set()
    first.join(PATIENCE_S)
    with turns.slot("a", LARGE):
        order.append("again")
    assert order == ["a-1", "again"]


def test_a_slot_is_released_after_an_exception() -> None:
    turns = LargeBodyQueue(within_s=0.05)
    with pytest.raises(ValueError, match="broken"), turns.slot("a", LARGE):
        raise ValueError("broken")
    with turns.slot("b", LARGE) as yield_to_others:
        yield_to_others()


def test_a_small_body_never_waits() -> None:
    turns = LargeBodyQueue(within_s=0.05)
    with turns.slot("a", LARGE), turns.slot("b", LARGE_BYTES) as yield_to_others:
        yield_to_others()


#: Half a megabyte; the largest body here has a third of that.
ROOM_BYTES: Final = 32 * LARGE_BYTES


@pytest.fixture
def body_budgets() -> Iterator[BodyBudgets]:
    """Small budgets, which must be empty again after the test."""
    made = BodyBudgets(ByteBudget(ROOM_BYTES), ByteBudget(ROOM_BYTES))
    yield made
    assert (made.authenticated.reserved_bytes, made.unauthenticated.reserved_bytes) == (0, 0)


@pytest.fixture
def client(customer: Customer, tmp_path: Path, body_budgets: BodyBudgets) -> TestClient:
    """An application with these budgets and the route that authenticates its senders by a signature."""
    actual = {"DEFAULT_PROJECT_ID": str(customer.project_id), "DEPLOYMENT_MODE": "cloud"}
    return TestClient(
        create_app(make_settings(tmp_path, actual), FakeWakeUpQueue(), FakeResolver({}), body_budgets=body_budgets)
    )


def large_postback() -> bytes:
    body = {**postback(42), "padding": "x" * LARGE_BYTES}
    return json.dumps(body).encode()


def send(client: TestClient, body: bytes) -> Result:
    headers = {"X-Scanner-Secret": SCANNER_SECRET, "Content-Type": "application/json"}
    return client.simulate_post("/api/scanner/results", headers=headers, body=body)


def test_the_budget_of_a_large_body_is_released_after_the_response(client: TestClient, body_budgets: BodyBudgets) -> None:
    assert send(client, large_postback()).status_code == 202
    assert body_budgets.authenticated.reserved_bytes == 0


def test_a_large_body_beyond_the_budget_may_be_retried(client: TestClient, body_budgets: BodyBudgets) -> None:
    body_budgets.authenticated.reserve(ROOM_BYTES)
    refused = send(client, large_postback())
    assert_is_error(refused, 503, "SERVICE_UNAVAILABLE")
    assert int(refused.headers["Retry-After"]) > 0
    small = json.dumps(postback(42)).encode()
    assert send(client, small).status_code == 202
    body_budgets.authenticated.release(ROOM_BYTES)
    assert send(client, large_postback()).status_code == 202


def test_unauthenticated_senders_use_no_budget_of_authenticated_ones(client: TestClient, body_budgets: BodyBudgets) -> None:
    body_budgets.unauthenticated.reserve(ROOM_BYTES)
    route = "/api/storefront-app/webhooks/compliance"
    assert client.simulate_post(route, body=large_postback()).status_code == 503
    assert send(client, large_postback()).status_code == 202
    body_budgets.unauthenticated.release(ROOM_BYTES)


def test_a_body_of_too_many_values_is_refused_by_name(client: TestClient) -> None:
    body = json.dumps({**postback(42), "padding": [0] * MAX_VALUES}).encode()
    assert_is_error(send(client, body), 422, "VALIDATION_FAILED", (FieldRefusal("", "too_many"),))
    fits = json.dumps({**postback(42), "padding": [0] * (MAX_VALUES - 100)}).encode()
    assert send(client, fits).status_code == 202


def test_the_budget_suffices_for_the_largest_allowed_body() -> None:
    body_budgets = BodyBudgets.for_bodies_of(256 * 1024 * 1024)
    for budget in (body_budgets.authenticated, body_budgets.unauthenticated):
        budget.reserve(256 * 1024 * 1024)
        with pytest.raises(LargeBodyOverload):
            budget.reserve(1)


def test_a_payload_is_prepared_while_its_request_holds_the_slot(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    pipeline = RequestPipeline(settings.max_body_bytes, RateLimits(settings))
    was_busy: list[bool] = []

    def prepare(payload: Any, checkpoint: Checkpoint) -> Any:
        checkpoint()
        was_busy.append(pipeline._large_bodies._is_busy)
        return {**payload, "is": "prepared"}

    class Resource:
        operations: Final = {
            "POST": Operation(lambda _req: SharedSecretPrincipal("scanner"), LenientForm(), prepare=prepare)
        }

        def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
            resp.media = [req.context.payload, pipeline._large_bodies._is_busy]

    app: falcon.App[Any, Any] = falcon.App(middleware=[pipeline])
    app.add_route("/", Resource())
    answer = TestClient(app).simulate_post("/", json={"padding": "x" * LARGE_BYTES})
    assert (answer.json, was_busy) == ([{"is": "prepared"}, False], [True])
