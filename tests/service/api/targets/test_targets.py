"""Targets are registered only if their URL passes the present policy; the addresses of a host are never reported."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from runtime.dns_resolver import Addresses, DnsFailure
from schemas.base.timestamps import format_rfc3339, to_ms
from service.app import create_app
from storage.db.engine import database as peewee_database
from storage.db.engine import execute
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.database.databases import on_sqlite
from tests.support.factories import NOW, Customer, claim_due, make_approved, make_customer, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    JSON,
    TARGETS,
    Call,
    FieldRefusal,
    assert_is_error,
    everything_stored,
    field_message,
    target_request,
)

# Registration does not depend on the database.
pytestmark = on_sqlite

NAMES = {
    "tracker.example.com": ["93.184.215.14"],
    "two.example.com": ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
    "inside.example.com": ["10.20.30.40"],
    "mixed.example.com": ["93.184.215.14", "10.20.30.40"],
    "metadata.example.com": ["169.254.169.254"],
    "loop.example.com": ["::1"],
    "mapped.example.com": ["::ffff:10.20.30.40"],
    "silent.example.com": DnsFailure.TIMEOUT,
    "broken.example.com": DnsFailure.FAILED,
    "busy.example.com": DnsFailure.OVERLOADED,
}

#: Columns: URL; reason of the refusal.
UNSAFE = [
    ("http://tracker.example.com/", "scheme_not_allowed"),
    ("ftp://tracker.example.com/", "scheme_not_allowed"),
    ("tracker.example.com/hook", "scheme_missing"),
    ("https://user:pw@tracker.example.com/", "userinfo"),
    ("https://tracker.example.com:22/", "port_not_allowed"),
    ("https://tracker.example.com/#x", "fragment"),
    ("https://localhost/", "local_suffix"),
    ("https://intranet/", "local_suffix"),
    ("https://tracker/", "single_label"),
    ("https://2130706433/", "host_numeric"),
    ("https://127.0.0.1/", "address_loopback"),
    ("https://10.20.30.40/", "address_private"),
    ("https://169.254.169.254/latest", "address_metadata"),
    ("https://[::1]/", "address_loopback"),
    ("https://[::ffff:10.20.30.40]/", "address_private"),
    ("https://inside.example.com/", "address_private"),
    ("https://mixed.example.com/", "address_private"),  # one forbidden address refuses all
    ("https://metadata.example.com/", "address_metadata"),
    ("https://loop.example.com/", "address_loopback"),
    ("https://mapped.example.com/", "address_private"),
    ("https://nobody.example.com/", "dns_not_found"),
    ("https://silent.example.com/", "dns_timeout"),
    ("https://broken.example.com/", "dns_failed"),
]


@pytest.fixture
def resolver() -> FakeResolver:
    return FakeResolver(NAMES)


def register(client: TestClient, customer: Customer, key: str | None = None, **changes: Any) -> Result:
    keyed = () if key is None else (("Idempotency-Key", key),)
    headers = (*customer.bearer.items(), *JSON.items(), *keyed)
    return Call("POST", TARGETS, headers).with_json(target_request(**changes)).send(client)


@pytest.mark.parametrize(("base_url", "reason"), UNSAFE)
def test_an_unsafe_address_is_rejected_with_the_reason(
    base_url: str, reason: str, client: TestClient, customer: Customer
) -> None:
    before = everything_stored()

    answer = register(client, customer, base_url=base_url)

    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/base_url", reason),))
    assert everything_stored() == before
    for hidden in ("10.20.30.40", "169.254.169.254", "93.184", "example.com", base_url):
        assert hidden not in answer.text


def test_an_overload_of_our_own_lookups_is_reported_as_unavailable(client: TestClient, customer: Customer) -> None:
    before = everything_stored()
    answer = register(client, customer, base_url="https://busy.example.com/")
    assert_is_error(answer, 503, "SERVICE_UNAVAILABLE")
    assert int(answer.headers["Retry-After"]) > 0
    assert everything_stored() == before


def test_a_target_that_signs_by_standard_webhooks_waits_for_its_secret(client: TestClient, customer: Customer) -> None:
    answer = register(client, customer, signature="standard-webhooks", format="sarif")
    assert answer.status_code == 201
    members = {name: answer.json[name] for name in ("status", "status_reason", "signature", "format")}
    assert members == {
        "status": "inactive",
        "status_reason": "no_standard_secret",
        "signature": "standard-webhooks",
        "format": "sarif",
    }


#: The values do not look like credentials, so only the names of the parameters matter.
@pytest.mark.parametrize("query", ["token=hidden", "a=1&API-Key=hidden", "t%6Fken=hidden", "sig=hidden", "auth", "key="])
def test_a_url_with_a_parameter_for_a_credential_is_refused(
    query: str, client: TestClient, customer: Customer, resolver: FakeResolver
) -> None:
    before = everything_stored()
    answer = register(client, customer, base_url=f"https://tracker.example.com/hook?{query}")
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/base_url", "credential_in_query"),))
    assert "`secret set target`" in field_message(answer)
    assert "hidden" not in answer.text
    assert (everything_stored(), resolver.asked) == (before, [])


def test_a_credential_in_a_url_is_refused_by_its_name_and_by_its_form(client: TestClient, customer: Customer) -> None:
    secret = "Zk3vR8qLw2Xn7TbYc5Hd9Mf4"
    answer = register(client, customer, base_url=f"https://tracker.example.com/hook?access_token={secret}")
    codes = [each["code"] for each in answer.json["error"]["details"]["fields"]]
    assert (answer.status_code, codes[0]) == (422, "credential_in_query")
    assert secret not in answer.text


def test_an_existing_url_with_a_credential_is_masked_and_keeps_working(client: TestClient, customer: Customer) -> None:
    target = make_target(customer, "https://tracker.example.com/hook?team=7&token=s3cr3t")
    shown = Call("GET", f"{TARGETS}/{target.id}", tuple(customer.bearer.items())).send(client)
    assert shown.json["base_url"] == "https://tracker.example.com/hook?team=7&token=***"
    listed = Call("GET", TARGETS, tuple(customer.bearer.items())).send(client)
    assert listed.json["items"] == [shown.json]
    for verb in ("pause", "resume"):
        changed = Call("POST", f"{TARGETS}/{target.id}/{verb}", tuple(customer.bearer.items())).send(client)
        assert changed.status_code == 200
        assert "s3cr3t" not in changed.text
    make_approved(customer, target.id)
    [claim] = claim_due(1, utc_now(), 6, "worker")
    assert claim.base_url == target.base_url


@pytest.mark.parametrize("host", ["tracker.example.com", "two.example.com", "93.184.215.14", "[2606:2800:21f:cb07::1]"])
def test_a_safe_address_becomes_an_active_target(host: str, client: TestClient, customer: Customer) -> None:
    answer = register(client, customer, base_url=f"https://{host}/hook?x=1")

    assert answer.status_code == 201
    record = answer.json
    assert record == {
        "id": record["id"],
        "provider_key": "generic_webhook",
        "base_url": f"https://{host}/hook?x=1",
        "deployment_mode": "self-hosted",
        "name": "Tracker",
        "status": "active",
        "status_reason": None,
        "secret": {"configured": True, "fingerprint": record["secret"]["fingerprint"]},
        "connected": {"status": "unknown", "last_success_at": None},
        "last_validation": {"status": "passed", "reason": None, "checked_at": record["created_at"]},
        "max_per_minute": None,
        "provider_settings": {},
        "signature": "service",
        "format": "ticket",
        "events": [],
        "headers": [],
        "standard_secret": {"configured": False, "fingerprint": None},
        "delivery": {"concurrency": 4, "failures_in_row": 0, "max_per_minute": None, "waits_until": None},
        "created_at": record["created_at"],
    }
    assert record["id"].startswith("tgt_")
    assert record["secret"]["fingerprint"].startswith("fp:")
    assert len(record["secret"]["fingerprint"]) == len("fp:") + 12


def test_in_cloud_mode_a_target_of_another_account_than_the_operators_waits_for_its_own_secret(
    customer: Customer, tmp_path: Path, resolver: FakeResolver
) -> None:
    theirs = make_customer()
    changes = {"DEPLOYMENT_MODE": "cloud", "OPERATOR_ACCOUNT_ID": str(customer.account_id)}
    settings = make_settings(tmp_path, changes)
    client = TestClient(create_app(settings, FakeWakeUpQueue(), resolver))

    own, other = register(client, customer).json, register(client, theirs).json

    assert (own["status"], own["secret"]["configured"]) == ("active", True)
    assert (other["status"], other["status_reason"]) == ("inactive", "no_secret")
    assert other["secret"] == {"configured": False, "fingerprint": None}
    targets.set_secret(other["id"], "their own secret", Vault(settings.encryption_keys), NOW)
    shown = Call("GET", f"{TARGETS}/{other['id']}", tuple(theirs.bearer.items())).send(client).json
    assert (shown["status"], shown["secret"]["configured"]) == ("active", True)
    assert shown["secret"]["fingerprint"] != own["secret"]["fingerprint"]


@pytest.mark.parametrize("limit", [None, 1, 60, 60_000])
def test_a_rate_limit_may_be_set(client: TestClient, customer: Customer, limit: int | None) -> None:
    answer = register(client, customer, max_per_minute=limit)
    assert (answer.status_code, answer.json["max_per_minute"]) == (201, limit)
    assert answer.json["delivery"]["max_per_minute"] == limit


@pytest.mark.parametrize(
    ("limit", "code"),
    [(0, "out_of_range"), (60_001, "out_of_range"), (1.5, "invalid_type"), ("60", "invalid_type"), (True, "invalid_type")],
)
def test_an_invalid_rate_limit_is_rejected(client: TestClient, customer: Customer, limit: Any, code: str) -> None:
    before = everything_stored()
    answer = register(client, customer, max_per_minute=limit)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/max_per_minute", code),))
    assert everything_stored() == before


# Columns: reason of the hold; status and reason that are shown while the target is held.
HELD = [
    ("rate_limited", "paused", "rate_limited"),
    ("receiver_unavailable", "paused", "receiver_unavailable"),
    ("breaker_open", "active", "breaker_open"),
]


@pytest.mark.parametrize(("held_reason", "status", "reason"), HELD)
def test_a_held_target_shows_the_end_of_its_hold_also_in_lists(
    client: TestClient, customer: Customer, held_reason: str, status: str, reason: str
) -> None:
    target_id = register(client, customer).json["id"]
    until = utc_now() + timedelta(hours=1)
    execute("UPDATE targets SET held_until = ?, held_reason = ?", (to_ms(until), held_reason))
    shown = Call("GET", f"{TARGETS}/{target_id}", tuple(customer.bearer.items())).send(client).json
    assert (shown["status"], shown["status_reason"]) == (status, reason)
    assert shown["delivery"]["waits_until"] == format_rfc3339(until)
    for asked in ("active", "paused", "disabled"):
        found = Call("GET", TARGETS, tuple(customer.bearer.items()), query=f"status={asked}").send(client).json["items"]
        assert found == ([shown] if asked == status else [])


def test_an_expired_hold_is_not_shown(client: TestClient, customer: Customer) -> None:
    record = register(client, customer).json
    ended = utc_now() - timedelta(milliseconds=1)
    execute("UPDATE targets SET held_until = ?, held_reason = 'rate_limited'", (to_ms(ended),))
    listed = Call("GET", TARGETS, tuple(customer.bearer.items()), query="status=active").send(client).json["items"]
    assert listed == [record]


def test_a_target_without_any_secret_is_inactive(customer: Customer, tmp_path: Path, resolver: FakeResolver) -> None:
    client = TestClient(create_app(make_settings(tmp_path, {"WEBHOOK_SECRET": ""}), FakeWakeUpQueue(), resolver))
    record = register(client, customer).json
    assert (record["status"], record["status_reason"]) == ("inactive", "no_secret")
    assert record["secret"] == {"configured": False, "fingerprint": None}


def test_the_deployment_mode_of_a_target_defaults_to_that_of_the_installation(
    customer: Customer, tmp_path: Path, resolver: FakeResolver
) -> None:
    client = TestClient(
        create_app(make_settings(tmp_path, {"DEPLOYMENT_MODE": "webhook-only"}), FakeWakeUpQueue(), resolver)
    )
    headers = (*customer.bearer.items(), *JSON.items())
    body = {name: value for name, value in target_request().items() if name != "deployment_mode"}
    assert Call("POST", TARGETS, headers).with_json(body).send(client).json["deployment_mode"] == "webhook-only"


def test_no_name_is_looked_up_for_an_account_without_webhooks(client: TestClient, resolver: FakeResolver) -> None:
    poor = make_customer(may_use_webhooks=False)
    assert_is_error(register(client, poor), 403, "FORBIDDEN")
    assert resolver.asked == []


def test_the_body_is_validated_before_the_name_is_looked_up(
    client: TestClient, customer: Customer, resolver: FakeResolver
) -> None:
    register(client, customer, base_url="http://tracker.example.com/")
    register(client, customer, name="")
    assert resolver.asked == []


class ConnectionCheckingResolver(FakeResolver):
    """Records whether a connection is held during a lookup."""

    def __init__(self) -> None:
        super().__init__(NAMES)
        self.held: list[bool] = []

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
        self.held.append(not peewee_database.is_closed())
        return super().resolve(host, port, timeout_s, account_id)


@pytest.mark.parametrize("key", [None, "k"])
def test_no_database_connection_is_held_during_a_lookup(key: str | None, customer: Customer, tmp_path: Path) -> None:
    resolver = ConnectionCheckingResolver()
    client = TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), resolver))
    assert register(client, customer, key).status_code == 201
    assert resolver.held == [False]


def test_a_repeated_request_with_a_key_looks_up_no_address(
    client: TestClient, customer: Customer, resolver: FakeResolver
) -> None:
    first = register(client, customer, "k")
    resolver.table["tracker.example.com"] = DnsFailure.TIMEOUT

    again = register(client, customer, "k")

    assert (again.status_code, again.json) == (first.status_code, first.json) == (201, first.json)
    assert again.headers["idempotency-replayed"] == "true"
    assert_is_error(
        register(client, customer, "another"), 422, "VALIDATION_FAILED", (FieldRefusal("/base_url", "dns_timeout"),)
    )


def test_a_refused_address_stores_no_key(client: TestClient, customer: Customer, resolver: FakeResolver) -> None:
    resolver.table["tracker.example.com"] = DnsFailure.TIMEOUT
    assert register(client, customer, "k").status_code == 422
    resolver.table["tracker.example.com"] = ["93.184.215.14"]

    answer = register(client, customer, "k")

    assert answer.status_code == 201
    assert "idempotency-replayed" not in answer.headers
