"""The contents of successful responses, the headers of all responses, and how long a client has to wait."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import falcon
import pytest
from falcon.testing import TestClient
from freezegun import freeze_time

from runtime.clock import utc_now
from schemas.base.errors import NotFound
from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import format_rfc3339, from_ms, to_ms
from schemas.exports.state_machine import ExportStatus
from service.app import create_app
from service.http import error_responses
from storage.accounts import tokens
from storage.db.engine import execute
from storage.exports import queries
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.vault import Vault
from tests.service.conftest import LogLines
from tests.support.database.databases import on_sqlite
from tests.support.database.query_plans import statements
from tests.support.factories import (
    NOW,
    SCANNER_SECRET,
    Customer,
    make_approved,
    make_customer,
    make_exports,
    make_settings,
    make_target,
    postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    BASE,
    CANARY,
    EXPORTS,
    JSON,
    RESULTS,
    SCANNER,
    TARGETS,
    Call,
    approved,
    assert_has_standard_headers,
    assert_is_error,
    everything_stored,
    prepared,
    schedule_retry,
    target_request,
    was_made,
)

# The contents of a response do not depend on the database.
pytestmark = on_sqlite


def poll(client: TestClient, customer: Customer, export_id: str, *headers: tuple[str, str]) -> Call:
    return Call("GET", f"{EXPORTS}/{export_id}", (*customer.bearer.items(), *headers))


ACCEPTED_IDS = ["a", "A.b_c-9", "0", "f" * 128, "req_01ARZ3NDEKTSV4RRFFQ69G5FAV", "..", "-"]
REFUSED_IDS = ["", "f" * 129, "a b", "a,b", "a/b", "gr\xfcn", "a;b", "<b>", "a:b", "{x}"]


@pytest.mark.parametrize("request_id", ACCEPTED_IDS)
def test_a_valid_request_id_is_echoed(request_id: str, client: TestClient) -> None:
    answer = Call("GET", "/healthz", (("X-Request-Id", request_id),)).send(client)
    assert answer.headers["x-request-id"] == request_id


@pytest.mark.parametrize("request_id", REFUSED_IDS)
def test_an_invalid_request_id_is_replaced(request_id: str, client: TestClient) -> None:
    answer = Call("GET", "/healthz", (("X-Request-Id", request_id),)).send(client)
    assert was_made(answer.headers["x-request-id"])


def test_every_request_gets_a_unique_id(client: TestClient) -> None:
    made = {Call("GET", "/healthz").send(client).headers["x-request-id"] for _ in range(20)}
    assert len(made) == 20
    assert all(was_made(request_id) for request_id in made)


def test_the_request_id_is_in_the_access_log(client: TestClient, log_lines: LogLines) -> None:
    Call("GET", f"{EXPORTS}/exp_secret", (("X-Request-Id", "look-for-me"),), query="token=x").send(client)
    record = [json.loads(line) for line in log_lines.lines if "look-for-me" in line]
    lines = [line for line in record if line["logger"] == "riskrelay.access"]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [("GET", f"{EXPORTS}/{{export_id}}", 401)]
    assert "exp_secret" not in log_lines.text


def test_the_access_log_contains_the_caller_of_refused_requests_too(
    client: TestClient, customer: Customer, log_lines: LogLines
) -> None:
    def asked(*headers: tuple[str, str]) -> tuple[object, ...]:
        Call("POST", EXPORTS, (*headers, *JSON.items())).with_json({}).send(client)
        line = json.loads(next(line for line in reversed(log_lines.lines) if '"riskrelay.access"' in line))
        return line.get("caller"), line["status"]

    _, reader = tokens.create(customer.email, TokenKind.API, utc_now(), [Ability.READ_EXPORTS])
    known = f"user:{customer.user_id}"
    assert asked(*customer.bearer.items()) == (known, 422)
    assert asked(("Authorization", f"Bearer {reader}")) == (known, 403)
    assert asked(("Authorization", f"Bearer {reader}x")) == (None, 401)
    assert asked() == (None, 401)


def test_the_access_log_names_the_rows_that_a_request_is_about(
    client: TestClient, customer: Customer, log_lines: LogLines
) -> None:
    def last(*names: str) -> tuple[object, ...]:
        line = json.loads(next(line for line in reversed(log_lines.lines) if '"riskrelay.access"' in line))
        return tuple(line.get(name) for name in names)

    headers = (*customer.bearer.items(), *JSON.items())
    made = Call("POST", TARGETS, headers).with_json(target_request()).send(client).json["id"]
    assert last("target_id", "status") == (made, 201)
    # The target of a dry run does not exist.
    Call("POST", TARGETS, headers, query="dry_run=true").with_json(target_request()).send(client)
    assert last("target_id", "status") == (None, 200)
    export_id = prepared(client)
    assert last("export_id", "count") == (None, 1)
    Call("POST", f"{EXPORTS}/{export_id}/approve", headers).with_json({"target_id": made}).send(client)
    assert last("export_id", "target_id", "status") == (export_id, made, 202)
    Call("GET", f"{EXPORTS}/{export_id}").send(client)
    assert last("export_id", "target_id", "status") == (export_id, None, 401)
    # Another request on the same thread.
    Call("GET", "/healthz").send(client)
    assert last("export_id", "target_id", "status") == (None, None, 200)


def test_an_accepted_postback_returns_its_result(client: TestClient) -> None:
    call = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(postback(7))
    first, second = call.send(client), call.send(client)

    assert first.status_code == second.status_code == 202
    assert_has_standard_headers(first)
    assert first.headers["content-type"] == "application/json"
    export_id = first.json["ticket_exports"][0]
    findings = {"new": 1, "seen": 0, "fixed": 0, "reopened": 0}
    assert first.json == {"scan_run_id": 7, "status": "accepted", "findings": findings, "ticket_exports": [export_id]}
    assert second.json["findings"] == {"new": 0, "seen": 1, "fixed": 0, "reopened": 0}
    assert second.json["ticket_exports"] == []


def test_unknown_fields_of_a_scanner_result_are_ignored(client: TestClient) -> None:
    page = {**postback()["page"], CANARY: CANARY}
    body = {**postback(7, page=page, artifacts={CANARY: 1}), CANARY: {"deep": [CANARY]}}

    answer = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(body).send(client)

    assert answer.status_code == 202
    assert CANARY not in repr(everything_stored())


def test_the_response_to_a_new_target_has_its_location(client: TestClient, customer: Customer) -> None:
    call = Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items())).with_json(target_request())
    answer = call.send(client)

    assert answer.status_code == 201
    assert_has_standard_headers(answer)
    assert answer.headers["location"] == f"{BASE}{TARGETS}/{answer.json['id']}"
    assert answer.headers["content-type"] == "application/json"


def test_an_approval_returns_the_location_of_the_record(client: TestClient, customer: Customer) -> None:
    export_id, target = prepared(client), make_target(customer)
    call = Call("POST", f"{EXPORTS}/{export_id}/approve", (*customer.bearer.items(), *JSON.items()))
    answer = call.with_json({"target_id": target.id}).send(client)

    assert answer.status_code == 202
    assert_has_standard_headers(answer)
    assert answer.headers["location"] == f"{BASE}{EXPORTS}/{export_id}"
    followed = Call("GET", answer.headers["location"].removeprefix(BASE), tuple(customer.bearer.items())).send(client)
    assert followed.json == answer.json
    assert (followed.json["status"], followed.json["target_id"]) == ("approved", target.id)


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
def test_a_charset_parameter_is_accepted(content_type: str, client: TestClient) -> None:
    call = Call("POST", RESULTS, (*SCANNER.items(), ("Content-Type", content_type))).with_json(postback(7))
    assert call.send(client).status_code == 202


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/*",
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "text/html, application/json;q=0.1",
        "application/problem+json",
        "text/html, */*;q=0.1",
    ],
)
def test_an_accept_header_that_includes_json_is_served(accept: str, client: TestClient, customer: Customer) -> None:
    answer = poll(client, customer, prepared(client), ("Accept", accept)).send(client)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


def test_a_missing_accept_is_served(client: TestClient, customer: Customer) -> None:
    assert poll(client, customer, prepared(client)).send(client).status_code == 200


# --- versions -----------------------------------------------------------------


MATCHES = ['"v1"', 'W/"v1"', "*", '"v0", "v1"', 'W/"v0",W/"v1"']
MISSES = ['"v2"', '"v10"', '"V1"', '""', ",", 'W/"v2"', '"prefix-v1"']


@pytest.mark.parametrize("tag", MATCHES)
def test_a_client_with_the_current_version_gets_304(tag: str, client: TestClient, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    answer = poll(client, customer, export_id, ("If-None-Match", tag)).send(client)
    assert answer.status_code == 304
    assert answer.content == b""
    assert answer.headers["etag"] == '"v1"'
    assert_has_standard_headers(answer)


@pytest.mark.parametrize("tag", MISSES)
def test_a_client_with_another_version_gets_the_record(tag: str, client: TestClient, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    answer = poll(client, customer, export_id, ("If-None-Match", tag)).send(client)
    assert answer.status_code == 200
    assert answer.headers["etag"] == '"v1"'


def test_the_version_changes_with_the_record(client: TestClient, customer: Customer) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    answer = poll(client, customer, export_id, ("If-None-Match", '"v1"')).send(client)
    assert (answer.status_code, answer.headers["etag"]) == (200, '"v2"')


def test_the_version_of_a_finding_changes_when_it_is_seen_again(client: TestClient, customer: Customer) -> None:
    export_id = prepared(client, 1)
    tag = poll(client, customer, export_id).send(client).headers["etag"]
    call = poll(client, customer, export_id, ("If-None-Match", tag))
    assert call.send(client).status_code == 304

    Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(postback(2)).send(client)

    answer = call.send(client)
    assert (answer.status_code, answer.json["finding"]["times_seen"]) == (200, 2)
    assert answer.headers["etag"] != tag


def test_head_returns_the_headers_of_get_without_a_body(client: TestClient, customer: Customer) -> None:
    get = poll(client, customer, prepared(client))
    got, actual = get.send(client), replace(get, method="HEAD").send(client)
    assert (actual.status_code, actual.content) == (200, b"")
    assert actual.headers["etag"] == got.headers["etag"]
    assert actual.headers["content-length"] == str(len(got.content))
    unchanged = replace(get, method="HEAD").plus(("If-None-Match", got.headers["etag"])).send(client)
    assert unchanged.status_code == 304


def test_a_poll_takes_one_statement_whatever_its_response(client: TestClient, customer: Customer) -> None:
    call = poll(client, customer, prepared(client))
    tag = call.send(client).headers["etag"]
    others = replace(call, headers=tuple(make_customer().bearer.items()))
    for each, status in ((call, 200), (call.plus(("If-None-Match", tag)), 304), (others, 404)):
        with statements() as asked:
            assert each.send(client).status_code == status
        assert len(asked) == 1


def test_if_none_match_does_not_replace_a_token(client: TestClient, customer: Customer) -> None:
    answer = Call("GET", f"{EXPORTS}/{prepared(client)}", (("If-None-Match", "*"),)).send(client)
    assert_is_error(answer, 401, "UNAUTHORIZED")


# --- waiting ------------------------------------------------------------------

#: Milliseconds until the next attempt, and the seconds in `Retry-After`.
WAITS = [
    (-5_000, 1),  # already due: a worker is about to claim it
    (0, 1),
    (1, 1),
    (999, 1),
    (1_000, 1),
    (1_001, 2),  # rounded up, so that no client comes too early
    (59_500, 60),
    (3_600_000, 3600),
]


@pytest.mark.parametrize(("wait_ms", "seconds"), WAITS)
def test_the_retry_after_header_and_the_body_report_the_same_wait(
    wait_ms: int, seconds: int, client: TestClient, customer: Customer
) -> None:
    with freeze_time(NOW + timedelta(days=1)):
        export_id, _ = approved(client, customer)
        schedule_retry(export_id, wait_ms / 1000)
        answer = poll(client, customer, export_id).send(client)
        etag = answer.headers["etag"]
        unchanged = poll(client, customer, export_id, ("If-None-Match", etag)).send(client)

    assert answer.json["retry_after_seconds"] == seconds
    assert answer.headers["retry-after"] == unchanged.headers["retry-after"] == str(seconds)
    assert unchanged.status_code == 304


@pytest.mark.parametrize("status", list(ExportStatus))
def test_a_due_export_reports_a_wait_only_for_a_scheduled_retry(
    status: ExportStatus, client: TestClient, customer: Customer
) -> None:
    export_id, _ = approved(client, customer)
    has_due = status in {ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED, ExportStatus.DELIVERING}
    lease = "lse_1" if status is ExportStatus.DELIVERING else None
    due_at = to_ms(utc_now()) if has_due else None
    execute("UPDATE exports SET status = ?, due_at = ?, lease = ? WHERE id = ?", (status.value, due_at, lease, export_id))

    answer = poll(client, customer, export_id).send(client)

    is_waiting = status is ExportStatus.RETRY_SCHEDULED
    assert answer.json["status"] == status.value
    assert ("retry_after_seconds" in answer.json) is is_waiting
    assert ("retry-after" in answer.headers) is is_waiting


#: Columns: a change of the target's row; its value; the reported wait in seconds; the reason. The export was due until then.
HELD_MS = to_ms(NOW) + 90_000
HOLDS = [
    ("held_until = ?, held_reason = 'rate_limited'", HELD_MS, 90, None),
    ("held_until = ?, held_reason = 'receiver_unavailable'", HELD_MS, 90, None),
    ("held_until = ?, held_reason = 'breaker_open'", HELD_MS, 90, None),
    ("max_per_minute = 1, paced_until = ?", HELD_MS * 1000, 90, None),
    ("status = 'paused', status_reason = 'client', held_until = ?", HELD_MS, 60, "target_paused"),
    ("status = 'inactive', status_reason = 'no_secret', held_until = ?", HELD_MS, 60, "target_inactive"),
]


@pytest.mark.parametrize(("change", "value", "seconds", "reason"), HOLDS)
def test_an_approved_export_of_a_held_target_reports_the_wait_everywhere(
    change: str, value: int, seconds: int, reason: str | None, client: TestClient, customer: Customer
) -> None:
    with freeze_time(NOW):
        export_id, target_id = approved(client, customer)
        before = poll(client, customer, export_id).send(client)
        execute(f"UPDATE targets SET {change}", (value,))  # noqa: S608 - from the table above
        seen = ("If-None-Match", before.headers["etag"])
        answer = poll(client, customer, export_id, seen).send(client)
        unchanged = poll(client, customer, export_id, ("If-None-Match", answer.headers["etag"])).send(client)
        approval = Call("POST", f"{EXPORTS}/{export_id}/approve", (*customer.bearer.items(), *JSON.items()))
        again = approval.with_json({"target_id": target_id}).send(client)
        [listed] = Call("GET", EXPORTS, tuple(customer.bearer.items())).send(client).json["items"]

    assert (before.status_code, answer.status_code, unchanged.status_code, again.status_code) == (200, 200, 304, 202)
    assert "retry-after" not in before.headers
    assert answer.headers["retry-after"] == unchanged.headers["retry-after"] == again.headers["retry-after"] == str(seconds)
    shown = (None if reason else format_rfc3339(from_ms(HELD_MS)), reason, seconds)
    for record in (answer.json, again.json, listed):
        assert (record["next_attempt_at"], record["status_reason"], record["retry_after_seconds"]) == shown


def test_a_poll_with_the_tag_of_a_hold_gets_the_record_once_the_hold_is_over(client: TestClient, customer: Customer) -> None:
    with freeze_time(NOW) as frozen:
        export_id, _ = approved(client, customer)
        execute("UPDATE targets SET held_until = ?", (HELD_MS,))
        call = poll(client, customer, export_id)
        seen = call.plus(("If-None-Match", call.send(client).headers["etag"]))
        frozen.tick(89.5)
        waiting = seen.send(client)
        frozen.tick(0.5)
        over = seen.send(client)

    assert (waiting.status_code, waiting.headers["retry-after"]) == (304, "1")
    assert (over.status_code, over.json["status_reason"]) == (200, None)
    assert "retry_after_seconds" not in over.json
    assert "retry-after" not in over.headers


# --- the framework's own responses, and internal errors -----------------------


def test_options_names_the_methods(client: TestClient) -> None:
    answer = Call("OPTIONS", RESULTS).send(client)
    assert (answer.status_code, answer.headers["allow"], answer.content) == (200, "POST", b"")
    assert_has_standard_headers(answer)


def test_the_health_route_is_open_and_uses_no_dependency(client: TestClient, wake_ups: FakeWakeUpQueue) -> None:
    wake_ups.is_connected = False
    answer = Call("GET", "/healthz").send(client)
    assert (answer.status_code, answer.json["status"]) == (200, "ok")
    assert re.fullmatch("[0-9a-f]{16}", answer.json["installation"])
    assert_has_standard_headers(answer)


def test_an_internal_error_is_reported_without_its_message(
    client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue, log_lines: LogLines
) -> None:
    def fail() -> None:
        raise RuntimeError(f"a message that quotes {CANARY}")

    export_id, target = prepared(client), make_target(customer)
    wake_ups.on_notify = fail
    call = Call("POST", f"{EXPORTS}/{export_id}/approve", (*customer.bearer.items(), *JSON.items()))

    answer = call.with_json({"target_id": target.id}).send(client)

    assert_is_error(answer, 500, "INTERNAL_ERROR")
    assert answer.json["error"]["message"] == "Internal error: report the request id to the operator."
    # The response was already set when the wake-up queue failed.
    assert "location" not in answer.headers
    assert CANARY not in answer.text
    assert CANARY not in log_lines.text
    [line] = [json.loads(line) for line in log_lines.lines if '"level": "error"' in line]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert "RuntimeError" in line["trace"]
    assert "in notify" in line["trace"]
    # The approval was committed before the wake-up queue was used.
    assert queries.get(export_id).status == "approved"


def test_a_secret_that_cannot_be_decrypted_is_logged_for_the_operator(
    customer: Customer, tmp_path: Path, log_lines: LogLines
) -> None:
    settings = make_settings(tmp_path)
    other_key = Vault((b"another key of thirty-two bytes!",))
    SharedSecrets(settings, other_key).set(Integration.SCANNER, SCANNER_SECRET, utc_now())
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))

    answer = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(postback(7)).send(client)

    assert_is_error(answer, 500, "INTERNAL_ERROR")
    assert answer.json["error"]["message"] == "Internal error: report the request id to the operator."
    assert "WrongEncryptionKey" in log_lines.text


def test_a_secret_in_the_database_replaces_the_environments_at_once(client: TestClient, tmp_path: Path) -> None:
    secrets = SharedSecrets(make_settings(tmp_path), Vault(make_settings(tmp_path).encryption_keys))
    call = Call("POST", RESULTS, (*JSON.items(),)).with_json(postback(7))
    before = call.plus(*SCANNER.items()).send(client)

    secrets.set(Integration.SCANNER, "the-new-one", utc_now())

    assert before.status_code == 202
    assert_is_error(call.plus(*SCANNER.items()).send(client), 401, "UNAUTHORIZED")
    assert call.plus(("X-Scanner-Secret", "the-new-one")).send(client).status_code == 202


def test_an_error_has_no_header_of_the_response_that_it_replaces() -> None:
    actual = ("Location", "ETag", "Link", "Retry-After", "Idempotency-Replayed")

    class BrokenResource:
        def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
            req.context.request_id = "req_1"
            resp.set_headers(dict.fromkeys(actual, "1"))
            raise NotFound

    app: Any = falcon.App()
    error_responses.install(app)
    app.add_route("/", BrokenResource())
    answer = TestClient(app).simulate_get("/")
    assert answer.status_code == 404
    assert [name for name in actual if name.lower() in answer.headers] == []
