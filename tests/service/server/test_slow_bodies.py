"""A request whose caller loses permission while the body is being received changes nothing."""

import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.exports.state_machine import ExportStatus
from service.app import create_app
from service.http.request_pipeline import REAUTHENTICATE_AFTER_S
from storage.accounts import tokens
from storage.db.engine import database, rows
from storage.exports import queries
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.vault import Vault
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_settings, make_target, postback
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, JSON, RESULTS, SCANNER, Call, SlowBody, prepared

# Slow bodies do not depend on the database.
pytestmark = on_sqlite


def send_slowly(call: Call, client: TestClient, meanwhile: Callable[[], object]) -> Result:
    """Send a request whose body arrives after an event, and after the time for which an authentication is trusted."""

    def wait() -> None:
        if not happened:
            happened.append(meanwhile())
            time.sleep(REAUTHENTICATE_AFTER_S + 0.05)

    happened: list[object] = []
    headers = [*call.headers, ("Content-Length", str(len(call.body)))]
    return client.simulate_request(call.method, call.path, headers=headers, extras={"wsgi.input": SlowBody(call.body, wait)})


def do_nothing() -> None:
    """Do nothing while time passes."""


def approval(client: TestClient, customer: Customer) -> Call:
    path = f"{EXPORTS}/{prepared(client)}/approve"
    return Call("POST", path, (*customer.bearer.items(), *JSON.items())).with_json({"target_id": make_target(customer).id})


def test_a_request_whose_token_is_revoked_during_its_body_does_nothing(client: TestClient, customer: Customer) -> None:
    call = approval(client, customer)
    answer = send_slowly(call, client, lambda: tokens.revoke_all(customer.email, utc_now()))
    assert (answer.status_code, answer.json["error"]["code"]) == (401, "UNAUTHORIZED")
    assert queries.get(call.path.split("/")[-2]).status is ExportStatus.PREPARED


def test_a_token_that_is_revoked_during_its_body_counts_as_a_failed_authentication(
    customer: Customer, tmp_path: Path
) -> None:
    """One further failure then exceeds the limit."""
    settings = make_settings(tmp_path, {"AUTH_FAILURES_PER_MINUTE": "1", "DEFAULT_PROJECT_ID": str(customer.project_id)})
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
    call = approval(client, customer)
    assert send_slowly(call, client, lambda: tokens.revoke_all(customer.email, utc_now())).status_code == 401
    assert call.send(client).status_code == 429


def test_a_request_whose_secret_is_replaced_during_its_body_is_refused(client: TestClient, tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    secrets = SharedSecrets(settings, Vault(settings.encryption_keys))
    call = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(postback(7))
    answer = send_slowly(call, client, lambda: secrets.set(Integration.SCANNER, "another secret of the scanner", utc_now()))
    assert (answer.status_code, answer.json["error"]["code"]) == (401, "UNAUTHORIZED")
    assert rows("SELECT COUNT(*) FROM scan_runs") == [(0,)]


def test_a_slow_request_with_a_valid_token_succeeds(client: TestClient, customer: Customer) -> None:
    call = approval(client, customer)
    assert send_slowly(call, client, do_nothing).status_code == 202
    assert queries.get(call.path.split("/")[-2]).status is ExportStatus.APPROVED


def test_no_database_connection_is_held_while_a_body_is_received(client: TestClient, customer: Customer) -> None:
    call = approval(client, customer)
    held: list[bool] = []
    body = SlowBody(call.body, lambda: held.append(not database.is_closed()))
    headers = [*call.headers, ("Content-Length", str(len(call.body)))]
    assert client.simulate_request(call.method, call.path, headers=headers, extras={"wsgi.input": body}).status_code == 202
    assert set(held) == {False}


def test_an_incomplete_body_is_not_treated_as_a_missing_one(client: TestClient, customer: Customer) -> None:
    path = f"{EXPORTS}/{prepared(client)}/dismiss"
    headers = [*customer.bearer.items(), ("Content-Length", "5")]
    answer = client.simulate_post(path, headers=headers, extras={"wsgi.input": BytesIO()})
    assert (answer.status_code, "malformed_json" in answer.text) == (422, True)
    assert queries.get(path.split("/")[-2]).status is ExportStatus.PREPARED
