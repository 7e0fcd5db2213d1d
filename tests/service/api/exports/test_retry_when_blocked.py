"""A retry for a blocked target checks its address again: a target that is now allowed is resumed, others stay blocked."""

from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient

from runtime.dns_resolver import Addresses, DnsFailure
from schemas.targets.target import Target
from service.app import create_app
from storage.db.engine import database as peewee_database
from storage.db.engine import execute, rows
from storage.exports import queries, transitions
from storage.targets import targets
from tests.support.factories import NOW, Customer, forbid_webhooks, make_customer, make_failed, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, Call, FieldRefusal, assert_is_error, everything_stored, field_message

HOST: Final = "tracker.example.com"
NOT_ACTIVE: Final = FieldRefusal("/target_id", "target_not_active")


@pytest.fixture
def target(customer: Customer) -> Target:
    made = make_target(customer)
    set_status(made, "blocked")
    return made


def set_status(target: Target, status: str) -> None:
    execute("UPDATE targets SET status = ?, status_reason = 'address_private' WHERE id = ?", (status, target.id))


def retry(client: TestClient, customer: Customer, export_id: str, key: str | None = None) -> Result:
    keyed = () if key is None else (("Idempotency-Key", key),)
    return Call("POST", f"{EXPORTS}/{export_id}/retry", (*customer.bearer.items(), *keyed)).send(client)


def audited_actions(subject_id: str) -> list[tuple[Any, ...]]:
    return rows("SELECT actor, action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (subject_id,))[1:]


@pytest.mark.parametrize("status", ["blocked", "failed"])
def test_a_target_whose_address_is_now_allowed_is_resumed_and_gets_the_export(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue, status: str
) -> None:
    [export_id] = make_failed(customer, target.id, status=status)
    answer = retry(client, customer, export_id)
    assert (answer.status_code, answer.json["status"], answer.json["status_reason"]) == (202, "approved", None)
    now = targets.get(target.id, None)
    assert (now.status, now.status_reason, now.validation_status, now.validation_reason) == ("active", None, "passed", None)
    assert now.validated_at is not None
    assert now.validated_at > NOW
    actor = f"user:{customer.user_id}"
    assert audited_actions(target.id) == [(actor, "validate_target", "passed"), (actor, "resume_target", "retry")]
    assert audited_actions(export_id) == [(actor, "retry", None)]
    assert wake_ups.notifications == 1


# Columns: addresses of the target's host; reason of the refusal.
REFUSED: Final = [
    (["10.0.0.7"], "address_private"),
    (["93.184.215.14", "127.0.0.1"], "address_loopback"),  # one forbidden address refuses all
    (DnsFailure.NOT_FOUND, "dns_not_found"),  # without a known address, nothing is resumed
    (DnsFailure.TIMEOUT, "dns_timeout"),
]


@pytest.mark.parametrize("status", ["blocked", "failed"])
@pytest.mark.parametrize(("leads_to", "reason"), REFUSED)
def test_a_target_whose_address_is_still_refused_changes_nothing_and_the_reason_is_returned(
    client: TestClient,
    customer: Customer,
    target: Target,
    resolver: FakeResolver,
    wake_ups: FakeWakeUpQueue,
    leads_to: Any,
    reason: str,
    status: str,
) -> None:
    [export_id] = make_failed(customer, target.id, status=status)
    resolver.table[HOST] = leads_to
    before = everything_stored()
    answer = retry(client, customer, export_id)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (NOT_ACTIVE,))
    assert f"This target is blocked ({reason})." in field_message(answer)
    for address in ("10.0.0.7", "127.0.0.1", HOST):
        assert address not in answer.text
    assert everything_stored() == before
    assert wake_ups.notifications == 0


@pytest.mark.parametrize("status", ["active", "paused", "disabled", "inactive"])
def test_only_the_address_of_a_blocked_target_is_looked_up(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver, status: str
) -> None:
    [export_id] = make_failed(customer, target.id)
    set_status(target, status)
    answer = retry(client, customer, export_id)
    if status == "active":
        assert answer.status_code == 202
    else:
        assert_is_error(answer, 422, "VALIDATION_FAILED", (NOT_ACTIVE,))
        assert f"This target is {status} (address_private)." in field_message(answer)
    assert (resolver.asked, targets.get(target.id, None).status) == ([], status)


@pytest.mark.parametrize("status", ["prepared", "exported"])
def test_an_export_that_cannot_be_retried_resumes_nothing(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver, status: str
) -> None:
    [export_id] = make_failed(customer, target.id, status=status)
    assert_is_error(retry(client, customer, export_id), 409, "CONFLICT")
    assert (resolver.asked, targets.get(target.id, None).status) == ([], "blocked")


def test_a_redacted_export_resumes_nothing(client: TestClient, customer: Customer, target: Target) -> None:
    [export_id] = make_failed(customer, target.id)
    transitions.redact([export_id], NOW, "worker:test")
    assert_is_error(retry(client, customer, export_id), 409, "CONFLICT")
    assert targets.get(target.id, None).status == "blocked"


def test_another_accounts_export_is_not_found_and_its_target_is_not_looked_up(
    client: TestClient, customer: Customer, resolver: FakeResolver
) -> None:
    other = make_customer()
    theirs = make_target(other)
    set_status(theirs, "blocked")
    [export_id] = make_failed(other, theirs.id)
    assert_is_error(retry(client, customer, export_id), 404, "NOT_FOUND")
    assert (resolver.asked, targets.get(theirs.id, None).status) == ([], "blocked")


def test_an_account_without_webhooks_resumes_no_target_with_a_retry(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver
) -> None:
    [export_id] = make_failed(customer, target.id)
    forbid_webhooks(customer)
    assert_is_error(retry(client, customer, export_id), 403, "FORBIDDEN")
    assert (resolver.asked, targets.get(target.id, None).status) == ([], "blocked")


def test_a_target_without_a_secret_stays_blocked_at_a_retry(
    customer: Customer, target: Target, resolver: FakeResolver, tmp_path: Any
) -> None:
    [export_id] = make_failed(customer, target.id)
    unsigned = make_settings(tmp_path, {"WEBHOOK_SECRET": ""})
    answer = retry(TestClient(create_app(unsigned, FakeWakeUpQueue(), resolver)), customer, export_id)
    assert_is_error(answer, 409, "CONFLICT")
    assert "no secret" in answer.json["error"]["message"]
    assert (queries.get(export_id).status, targets.get(target.id, None).status) == ("failed", "blocked")


def test_an_overload_of_our_own_lookups_decides_nothing(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver
) -> None:
    [export_id] = make_failed(customer, target.id)
    resolver.table[HOST] = DnsFailure.OVERLOADED
    assert_is_error(retry(client, customer, export_id), 503, "SERVICE_UNAVAILABLE")
    assert queries.get(export_id).status == "failed"


def test_a_repeated_request_with_a_key_looks_up_nothing(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver
) -> None:
    [export_id] = make_failed(customer, target.id)
    first = retry(client, customer, export_id, "k")
    set_status(target, "blocked")
    second = retry(client, customer, export_id, "k")
    assert (second.status_code, second.json) == (202, first.json)
    assert (resolver.asked, targets.get(target.id, None).status) == ([HOST], "blocked")


# Columns: status of the target that changes during the lookup; status of the response.
MEANWHILE: Final = [("disabled", 422), ("paused", 422), ("active", 202)]


@pytest.mark.parametrize(("status", "answered"), MEANWHILE)
def test_a_status_changed_during_the_lookup_is_kept(
    customer: Customer, target: Target, tmp_path: Any, status: str, answered: int
) -> None:
    class Meanwhile(FakeResolver):
        def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
            # No connection is held during the lookup.
            assert peewee_database.is_closed()
            set_status(target, status)
            return super().resolve(host, port, timeout_s, account_id)

    [export_id] = make_failed(customer, target.id)
    client = TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), Meanwhile({HOST: ["93.184.215.14"]})))
    assert retry(client, customer, export_id).status_code == answered
    assert targets.get(target.id, None).status == status
    assert queries.get(export_id).status == ("failed" if answered == 422 else "approved")
