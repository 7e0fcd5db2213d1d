"""Workers are notified only after the commit of an approval; without Redis, approvals succeed and deliveries are late."""

import sqlite3
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.base.timestamps import to_ms
from schemas.settings.definitions import Settings
from schemas.targets.target import BREAKER_OPEN, RATE_LIMITED, RECEIVER_UNAVAILABLE
from schemas.targets.validations import EXPIRES_SOON, Validation
from service.app import create_app
from storage.db.engine import execute, rows
from storage.exports import queries
from storage.targets import targets
from tests.support.factories import Customer, make_customer, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    EXPORTS,
    JSON,
    Call,
    FieldRefusal,
    assert_is_error,
    everything_stored,
    field_message,
    prepared,
)
from tests.support.servers.redis_and_postgres import RedisServer

NOT_ACTIVE: Final = FieldRefusal("/target_id", "target_not_active")


def approve(client: TestClient, customer: Customer, export_id: str, body: dict[str, Any], key: str | None = None) -> Result:
    keyed = () if key is None else (("Idempotency-Key", key),)
    headers = (*customer.bearer.items(), *JSON.items(), *keyed)
    return Call("POST", f"{EXPORTS}/{export_id}/approve", headers).with_json(body).send(client)


def status_elsewhere(url: str, export_id: str) -> Callable[[], str]:
    """Return a function that reads an export's status over its own connection, as a worker would."""

    def read() -> str:
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            reader = sqlite3.connect(path)
            try:
                return str(reader.execute("SELECT status FROM exports WHERE id = ?", (export_id,)).fetchone()[0])
            finally:
                reader.close()
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT status FROM exports WHERE id = %s", (export_id,)).fetchone()
            assert row is not None
            return str(row[0])

    return read


def test_a_notified_worker_finds_the_export_approved(
    client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue, database: str
) -> None:
    export_id, target = prepared(client), make_target(customer)
    wake_ups.on_notify = status_elsewhere(database, export_id)
    assert wake_ups.on_notify() == "prepared"

    assert approve(client, customer, export_id, {"target_id": target.id}).status_code == 202

    assert wake_ups.seen == ["approved"]


def test_a_keyed_approval_notifies_after_its_commit_too(
    client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue, database: str
) -> None:
    export_id, target = prepared(client), make_target(customer)
    wake_ups.on_notify = status_elsewhere(database, export_id)

    assert approve(client, customer, export_id, {"target_id": target.id}, key="k").status_code == 202

    assert wake_ups.seen == ["approved"]


def test_a_refused_approval_does_not_notify(client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue) -> None:
    export_id, target = prepared(client), make_target(customer)
    refused = [
        approve(client, customer, export_id, {}),  # 422
        approve(client, customer, export_id, {"target_id": "tgt_nobody"}),  # 422
        approve(client, customer, "exp_nobody", {"target_id": target.id}),  # 404
        approve(client, customer, export_id, {"target_id": target.id, "ticket_digest": "sha256:0"}),  # 409
        Call("POST", f"{EXPORTS}/{export_id}/approve").send(client),  # 401
    ]
    assert [answer.status_code for answer in refused] == [422, 422, 404, 409, 401]
    assert wake_ups.notifications == 0


def test_preparing_and_reading_an_export_does_not_notify(
    client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    export_id = prepared(client)
    Call("GET", f"{EXPORTS}/{export_id}", tuple(customer.bearer.items())).send(client)
    assert wake_ups.notifications == 0


def test_approving_again_for_the_same_target_starts_nothing(client: TestClient, customer: Customer) -> None:
    export_id, target = prepared(client), make_target(customer)
    first = approve(client, customer, export_id, {"target_id": target.id})
    before = everything_stored()

    second = approve(client, customer, export_id, {"target_id": target.id})

    assert (second.status_code, second.json) == (202, first.json)
    assert everything_stored() == before


def test_approving_again_for_another_target_is_a_conflict(client: TestClient, customer: Customer) -> None:
    export_id = prepared(client)
    one, two = make_target(customer, name="One"), make_target(customer, name="Two")
    approve(client, customer, export_id, {"target_id": one.id})

    assert_is_error(approve(client, customer, export_id, {"target_id": two.id}), 409, "CONFLICT")
    assert queries.get(export_id).target_id == one.id


def test_the_digest_that_was_read_is_the_one_to_approve(client: TestClient, customer: Customer) -> None:
    export_id, target = prepared(client), make_target(customer)
    read = Call("GET", f"{EXPORTS}/{export_id}", tuple(customer.bearer.items())).send(client).json
    body = {"target_id": target.id, "ticket_digest": read["ticket_digest"]}
    assert approve(client, customer, export_id, body).status_code == 202


# Columns: status with its reason; texts of the error message.
NOT_ACTIVE_STATES: Final = [
    ("paused", "operator", ("is paused (operator)", "with a command", "`target resume`")),
    ("paused", "restored", ("is paused (restored)", "from a backup", "`target resume`")),
    ("inactive", "no_secret", ("is inactive (no_secret)", "no signing secret", "`secret set target`")),
    ("disabled", "receiver_gone", ("is disabled (receiver_gone)", "410 Gone", "`target resume`")),
    ("blocked", "address_private", ("is blocked (address_private)", "not allowed", "`target resume`")),
]


@pytest.mark.parametrize(("status", "reason", "expected"), NOT_ACTIVE_STATES)
def test_a_target_that_is_not_active_is_refused_with_its_status_and_the_fix(
    status: str, reason: str, expected: tuple[str, ...], client: TestClient, customer: Customer
) -> None:
    export_id, target = prepared(client), make_target(customer)
    execute("UPDATE targets SET status = ?, status_reason = ? WHERE id = ?", (status, reason, target.id))
    answer = approve(client, customer, export_id, {"target_id": target.id})
    assert_is_error(answer, 422, "VALIDATION_FAILED", (NOT_ACTIVE,))
    assert [text for text in expected if text not in field_message(answer)] == []
    assert queries.get(export_id).status == "prepared"


@pytest.mark.parametrize("reason", [RATE_LIMITED, RECEIVER_UNAVAILABLE, BREAKER_OPEN])
def test_an_export_can_be_approved_for_a_target_held_by_its_receiver_or_the_breaker(
    reason: str, client: TestClient, customer: Customer
) -> None:
    export_id, target = prepared(client), make_target(customer)
    until = to_ms(utc_now() + timedelta(hours=3))
    execute("UPDATE targets SET held_until = ?, held_reason = ?, failures_in_row = 7", (until, reason))
    answer = approve(client, customer, export_id, {"target_id": target.id})
    assert (answer.status_code, answer.json["status"]) == (202, "approved")


def test_a_repeat_for_a_target_that_was_paused_meanwhile_changes_nothing(client: TestClient, customer: Customer) -> None:
    export_id, target = prepared(client), make_target(customer)
    assert approve(client, customer, export_id, {"target_id": target.id}).status_code == 202
    targets.change_status(target.id, "pause", utc_now(), "operator")
    assert approve(client, customer, export_id, {"target_id": target.id}).status_code == 202


def test_a_target_whose_validation_failed_takes_no_approval_until_a_validation_passes(
    client: TestClient, customer: Customer
) -> None:
    export_id, target = prepared(client), make_target(customer)
    targets.record_validation(target.id, None, Validation("connect_refused"), utc_now(), "worker")
    body = {"target_id": target.id}

    refused = approve(client, customer, export_id, body, key="k")
    assert_is_error(refused, 422, "VALIDATION_FAILED", (FieldRefusal("/target_id", "target_unavailable"),))
    expected = ("failed (connect_refused)", "nothing listens on its port", "Start the receiver", "`target validate`")
    assert [text for text in expected if text not in field_message(refused)] == []
    assert queries.get(export_id).status == "prepared"

    targets.record_validation(target.id, None, Validation(EXPIRES_SOON), utc_now(), "worker")
    # The refusal was not stored under the key.
    assert approve(client, customer, export_id, body, key="k").status_code == 202


def test_an_approval_blocks_a_target_whose_url_the_current_policy_refuses(
    client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    """The target was created while TARGET_ALLOWED_PORTS included this port."""
    export_id, target = prepared(client), make_target(customer, "https://tracker.example.com:9443/hook")
    for _ in range(2):
        answer = approve(client, customer, export_id, {"target_id": target.id}, key="k")
        assert_is_error(answer, 422, "VALIDATION_FAILED", (NOT_ACTIVE,))
        assert "is blocked (port_not_allowed)" in field_message(answer)

    now = targets.get(target.id, None)
    assert (now.status, now.status_reason) == ("blocked", "port_not_allowed")
    assert (now.validation_status, now.validation_reason) == ("failed", "port_not_allowed")
    assert now.validated_at is not None
    assert (queries.get(export_id).status, wake_ups.notifications) == ("prepared", 0)
    actor = f"user:{customer.user_id}"
    entries = rows("SELECT actor, action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (target.id,))
    assert entries[1:] == [(actor, "validate_target", "port_not_allowed"), (actor, "target_blocked", "port_not_allowed")]


def test_another_accounts_target_is_not_blocked_by_an_approval(client: TestClient, customer: Customer) -> None:
    export_id, theirs = prepared(client), make_target(make_customer(), "https://tracker.example.com:9443/hook")
    answer = approve(client, customer, export_id, {"target_id": theirs.id})
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/target_id", "unknown_target"),))
    assert targets.get(theirs.id, None).status == "active"


def test_a_preview_that_is_not_safe_is_not_approved(client: TestClient, customer: Customer) -> None:
    export_id, target = prepared(client), make_target(customer)
    execute("UPDATE exports SET preview_problems = ? WHERE id = ?", ('[{"rule": "x", "path": "/title"}]', export_id))
    answer = approve(client, customer, export_id, {"target_id": target.id})
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("", "preview_not_safe"),))


def client_with_redis(settings: Settings, url: str) -> TestClient:
    return TestClient(create_app(settings, WakeUpQueue(connect(url)), FakeResolver({})))


def test_an_approval_succeeds_while_redis_is_unavailable(customer: Customer, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id)})
    with RedisServer() as redis_server:
        client = client_with_redis(settings, redis_server.url)
        one, two, target = prepared(client, 1), prepared(client, 2, issues=[{"code": "b"}]), make_target(customer)
        assert approve(client, customer, one, {"target_id": target.id}).status_code == 202
        redis_server.stop()

        began = time.monotonic()
        answer = approve(client, customer, two, {"target_id": target.id})
        took_s = time.monotonic() - began
        ready = Call("GET", "/readyz").send(client)

    assert (answer.status_code, answer.json["status"]) == (202, "approved")
    assert took_s < 1
    assert (ready.status_code, ready.json["status"]) == (200, "degraded")
    assert queries.count_due(utc_now(), 1)
