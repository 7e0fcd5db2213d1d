"""Exports by the API: prepared by hand, listed, their attempts read, retried and dismissed."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from schemas.exports.state_machine import ExportStatus, Transition
from schemas.triage.export_filter import ExportQuery
from service.app import create_app
from storage.accounts import tokens
from storage.db.engine import execute
from storage.exports import claims_sql, queries
from storage.exports.search import export_list
from storage.triage import decisions
from tests.service.conftest import LogLines
from tests.support.factories import (
    Customer,
    claim_due,
    completed_attempt,
    issue,
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
    Call,
    FieldRefusal,
    assert_has_standard_headers,
    assert_is_error,
    base64url,
    everything_stored,
    field_message,
    prepared,
)

TICKET: Final = {
    "title": "The total is wrong",
    "description": "It counts the discount twice.",
    "severity": "serious",
    "page_url": "https://shop.example/cart",
    "labels": ["checkout", "Ärger"],
    "evidence": {"total": 12.5, "seen": ["a", {"b": None}]},
}


def prepare(customer: Customer, body: Any, *headers: tuple[str, str]) -> Call:
    return Call("POST", EXPORTS, (*customer.bearer.items(), *JSON.items(), *headers)).with_json(body)


def listed(customer: Customer, query: str = "", path: str = EXPORTS) -> Call:
    return Call("GET", path, tuple(customer.bearer.items()), query=query)


def edited(customer: Customer, export_id: str, body: Any, *headers: tuple[str, str]) -> Call:
    return Call("PATCH", f"{EXPORTS}/{export_id}", (*customer.bearer.items(), *JSON.items(), *headers)).with_json(body)


def transition(customer: Customer, export_id: str, verb: str, *headers: tuple[str, str]) -> Call:
    return Call("POST", f"{EXPORTS}/{export_id}/{verb}", (*customer.bearer.items(), *headers))


def failed(customer: Customer, how: Transition = Transition.FAIL) -> str:
    """Return an export that failed or was blocked at its first attempt."""
    export_id = make_approved(customer, make_target(customer).id, utc_now())
    [claim] = claim_due(1, utc_now() + timedelta(seconds=1), 6, "worker:host-of-ours:1")
    claims_sql.record_attempts(
        [completed_attempt(claim, how, utc_now(), reason="receiver_gone")], utc_now(), "worker:host-of-ours:1"
    )
    return export_id


def every_page(client: TestClient, customer: Customer, query: str = "", path: str = EXPORTS) -> list[dict[str, Any]]:
    """Read all pages of a list by the Link header, as clients do; require that next_cursor is the same."""
    items: list[dict[str, Any]] = []
    while True:
        answer = listed(customer, query, path).send(client)
        assert answer.status_code == 200, answer.text
        assert_has_standard_headers(answer)
        assert set(answer.json) - {"total"} == {"items", "next_cursor"}
        items += answer.json["items"]
        if answer.json["next_cursor"] is None:
            assert "link" not in answer.headers
            return items
        url, _, relation = answer.headers["link"].partition("; ")
        assert (url[0], url[-1], relation) == ("<", ">", 'rel="next"')
        assert url[1:].startswith(f"{BASE}{path}?")
        query = urlsplit(url[1:-1]).query
        assert dict(parse_qsl(query))["cursor"] == answer.json["next_cursor"]


# --- by hand ------------------------------------------------------------------


def test_a_ticket_is_prepared_as_it_was_written(client: TestClient, customer: Customer) -> None:
    body = {"ticket": TICKET, "source": {"type": "manual", "id": "NOTE-7"}, "project_id": customer.project_id}

    answer = prepare(customer, body).send(client)

    assert answer.status_code == 201
    assert_has_standard_headers(answer)
    record = answer.json
    assert answer.headers["location"] == f"{BASE}{EXPORTS}/{record['id']}"
    assert (record["status"], record["target_id"], record["attempts"]) == ("prepared", None, 0)
    assert record["source"] == {"type": "manual", "id": "NOTE-7"}
    assert record["ticket"] == {**TICKET, "severity": "high"}
    assert record["preview"] == {"safe": True, "problems": []}
    assert "finding" not in record
    read = Call("GET", answer.headers["location"].removeprefix(BASE), tuple(customer.bearer.items())).send(client)
    assert read.json == record
    assert listed(customer).send(client).json["items"] == [record]


def test_a_title_is_enough(client: TestClient, customer: Customer) -> None:
    record = prepare(customer, {"ticket": {"title": "The total is wrong"}}).send(client).json
    assert record["source"] == {"type": "manual", "id": record["id"]}
    assert record["ticket"] == {
        "title": "The total is wrong",
        "description": "The total is wrong",
        "severity": "info",
        "page_url": None,
        "labels": [],
        "evidence": {},
    }


def test_null_members_count_as_omitted(client: TestClient, customer: Customer) -> None:
    ticket = {**dict.fromkeys(TICKET), "title": "The total is wrong", "page_url": "https://shop.example/cart"}
    body = {"ticket": ticket, "source": {"type": "manual", "id": None}, "project_id": None}
    record = prepare(customer, body).send(client).json
    assert record["ticket"]["description"] == "The total is wrong\n\nPage: https://shop.example/cart"
    assert (record["ticket"]["severity"], record["ticket"]["labels"]) == ("info", [])


#: Columns: member of the ticket; value; code of the error.
REFUSED_MEMBERS: Final[list[tuple[str, Any, str]]] = [
    ("title", "", "too_short"),
    ("title", " \t ", "too_short"),
    ("title", "x" * 251, "too_long"),
    ("title", "two\nlines", "not_one_line"),
    ("title", "a line and its end\n", "not_one_line"),
    ("title", "two\u2028lines", "not_one_line"),
    ("title", [CANARY], "invalid_type"),
    ("title", None, "null"),
    ("description", "x" * 20_001, "too_long"),
    ("description", 7, "invalid_type"),
    ("severity", CANARY, "not_allowed"),
    ("severity", 3, "invalid_type"),
    ("page_url", CANARY, "invalid_url"),
    ("page_url", "javascript:alert(1)", "invalid_url"),
    ("page_url", f"https://shop.example/{'x' * 2048}", "too_long"),
    ("page_url", "https://user:hunter22@shop.example/", "url_credentials"),
    ("labels", CANARY, "invalid_type"),
    ("labels", ["x"] * 51, "too_many"),
    ("evidence", [CANARY], "invalid_type"),
    ("evidence", {"a": "x" * 8185}, "too_long"),  # {"a":"…"} is 8 characters
    ("evidence", {"a": "é" * 4093}, "too_long"),  # bytes, not characters
]

#: Columns: invalid body; path and code of the error.
REFUSED: Final[list[tuple[dict[str, Any], tuple[str, str]]]] = [
    ({}, ("/ticket", "required")),
    ({"ticket": None}, ("/ticket", "null")),
    ({"ticket": []}, ("/ticket", "invalid_type")),
    ({"ticket": {}}, ("/ticket/title", "required")),
    ({"ticket": {"title": "x"}, CANARY: 1}, ("", "unknown_member")),
    ({"ticket": {"title": "x", CANARY: 1}}, ("/ticket", "unknown_member")),
    ({"ticket": {"title": "x"}, "source": {CANARY: 1}}, ("/source", "unknown_member")),
    ({"ticket": {"title": "x"}, "source": CANARY}, ("/source", "invalid_type")),
    ({"ticket": {"title": "x"}, "source": {"type": "finding"}}, ("/source/type", "not_allowed")),
    ({"ticket": {"title": "x"}, "source": {"type": "manual", "id": ""}}, ("/source/id", "too_short")),
    ({"ticket": {"title": "x"}, "source": {"type": "manual", "id": "x" * 201}}, ("/source/id", "too_long")),
    ({"ticket": {"title": "x"}, "source": {"type": "manual", "id": 7}}, ("/source/id", "invalid_type")),
    ({"ticket": {"title": "x"}, "project_id": "1"}, ("/project_id", "invalid_type")),
    ({"ticket": {"title": "x"}, "project_id": 0}, ("/project_id", "out_of_range")),
    ({"ticket": {"title": "x"}, "project_id": 2**63}, ("/project_id", "out_of_range")),
    ({"ticket": {"title": "x"}, "project_id": 2**63 - 1}, ("/project_id", "unknown_project")),
    ({"ticket": {"title": "x"}, "project_id": 2**31}, ("/project_id", "unknown_project")),
    ({"ticket": {"title": "x", "title ": "y"}}, ("/ticket", "unknown_member")),
    *(({"ticket": {"title": "x", name: value}}, (f"/ticket/{name}", code)) for name, value, code in REFUSED_MEMBERS),
    *(
        ({"ticket": {"title": "x", "labels": ["a", bad]}}, ("/ticket/labels/1", code))
        for bad, code in (("", "too_short"), ("x" * 101, "too_long"), (7, "invalid_type"), (None, "null"))
    ),
]


@pytest.mark.parametrize(("body", "refusal"), REFUSED)
def test_a_refused_ticket_is_not_stored_and_not_repeated(
    body: dict[str, Any], refusal: tuple[str, str], client: TestClient, customer: Customer, log_lines: LogLines
) -> None:
    before = everything_stored()
    answer = prepare(customer, body).send(client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal(*refusal),))
    assert everything_stored() == before
    assert CANARY not in answer.text + log_lines.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("title", "x" * 250),
        ("title", "  a tab\tand spaces  "),
        ("labels", ["x" * 100] * 50),
        ("evidence", {"a": "x" * 8184}),
        ("description", "x" * 20_000),
        ("description", "two\n\nlines\r\n"),
    ],
)
def test_values_at_a_limit_are_stored_completely(name: str, value: Any, client: TestClient, customer: Customer) -> None:
    answer = prepare(customer, {"ticket": {"title": "x", name: value}}).send(client)
    assert (answer.status_code, answer.json["ticket"][name]) == (201, value)


def test_another_accounts_project_is_unknown(client: TestClient, customer: Customer) -> None:
    body = {"ticket": {"title": "x"}, "project_id": make_customer().project_id}
    answer = prepare(customer, body).send(client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/project_id", "unknown_project"),))


def test_a_repeat_with_its_key_prepares_nothing_more(client: TestClient, customer: Customer) -> None:
    call = prepare(customer, {"ticket": TICKET}, ("Idempotency-Key", "k"))
    first, second = call.send(client), call.send(client)
    assert (first.status_code, second.status_code) == (201, 201)
    assert (second.json, second.headers["location"]) == (first.json, first.headers["location"])
    assert second.headers["idempotency-replayed"] == "true"
    assert export_list.count(ExportQuery(customer.account_id)) == 1
    other = prepare(customer, {"ticket": {"title": "x"}}, ("Idempotency-Key", "k")).send(client)
    assert_is_error(other, 409, "IDEMPOTENCY_CONFLICT")


# --- lists --------------------------------------------------------------------


def in_every_state(customer: Customer) -> dict[str, str]:
    """Return an export of the customer for each status, the oldest first."""
    ids = {}
    for second, status in enumerate(ExportStatus):
        [export_id] = make_exports(customer, 1, utc_now() + timedelta(seconds=second))
        ids[status.value] = export_id
        is_due = status in {ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED, ExportStatus.DELIVERING}
        lease = "lse_1" if status is ExportStatus.DELIVERING else None
        execute(
            "UPDATE exports SET status = ?, due_at = ?, lease = ?, body = ?, target_id = ? WHERE id = ?",
            (status.value, 1 if is_due else None, lease, b"{}", make_target(customer).id, export_id),
        )
    return ids


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 200])
def test_a_list_is_read_to_its_end_newest_first_whatever_the_page(
    limit: int, client: TestClient, customer: Customer
) -> None:
    ids = list(in_every_state(customer).values())
    make_exports(make_customer(), 2)
    assert [item["id"] for item in every_page(client, customer, f"limit={limit}")] == ids[::-1]


def test_an_entry_of_a_list_is_the_record(client: TestClient, customer: Customer) -> None:
    export_id = prepared(client)
    [item] = every_page(client, customer)
    assert item == Call("GET", f"{EXPORTS}/{export_id}", tuple(customer.bearer.items())).send(client).json
    assert item["finding"]["times_seen"] == 1


def test_an_account_without_exports_gets_an_empty_list(client: TestClient, customer: Customer) -> None:
    answer = listed(customer).send(client)
    assert (answer.status_code, answer.json) == (200, {"items": [], "next_cursor": None, "total": 0})


def test_a_list_has_its_total_and_the_counts_of_each_filter(client: TestClient, customer: Customer) -> None:
    in_every_state(customer)
    every = len(ExportStatus)
    answer = listed(customer, "status=failed,blocked&facets=true&limit=1&sort=created_at").send(client).json
    assert (answer["total"], len(answer["items"])) == (2, 1)
    assert answer["facets"] == {
        "status": {status.value: 1 for status in ExportStatus},
        "severity": {"high": 2},
        "project_id": {str(customer.project_id): 2},
        "source": {"manual": 2},
        "rule": {},
    }
    assert listed(customer, "q=MISSING+name&host=shop.example").send(client).json["total"] == every
    found = listed(customer, "q=missing+nothing&facets=false").send(client).json
    assert found == {"items": [], "next_cursor": None, "total": 0}


def test_a_cursor_is_refused_with_other_filters_and_in_another_order(client: TestClient, customer: Customer) -> None:
    make_exports(customer, 3)
    cursor = listed(customer, "limit=1&sort=-severity").send(client).json["next_cursor"]
    assert listed(customer, f"limit=2&sort=-severity&cursor={cursor}").send(client).status_code == 200
    for query in ("", "sort=-findings", "sort=-severity&status=prepared"):
        answer = listed(customer, f"{query}&cursor={cursor}").send(client)
        assert [each["path"] for each in answer.json["error"]["details"]["fields"]] == ["/cursor"]


@pytest.mark.parametrize(
    ("query", "statuses"),
    [
        ("status=failed", ["failed"]),
        ("status=failed,blocked&limit=1", ["blocked", "failed"]),
        ("status=blocked%2Cfailed,failed", ["blocked", "failed"]),
        (f"status={','.join(ExportStatus)}&limit=3", list(ExportStatus)[::-1]),
        ("status=exported&source=manual", ["exported"]),
        ("source=manual&limit=5", list(ExportStatus)[::-1]),
        ("source=finding", []),
        ("status=prepared&source=inbound_email", []),
        ("status=prepared&colour=blue&per_page=1", ["prepared"]),  # unknown parameters are ignored
    ],
)
def test_filters_hold_on_every_page(query: str, statuses: list[str], client: TestClient, customer: Customer) -> None:
    in_every_state(customer)
    assert [item["status"] for item in every_page(client, customer, query)] == statuses


def test_a_list_is_filtered_by_source(client: TestClient, customer: Customer) -> None:
    by_hand, found = make_exports(customer, 1)[0], prepared(client)
    assert [item["id"] for item in every_page(client, customer, "source=finding")] == [found]
    assert [item["id"] for item in every_page(client, customer, "source=manual")] == [by_hand]


def test_a_list_is_stable_while_exports_are_added_and_moved(client: TestClient, customer: Customer) -> None:
    ids = list(in_every_state(customer).values())
    first = listed(customer, "limit=3").send(client).json
    make_exports(customer, 5, utc_now() + timedelta(hours=1))
    decisions.dismiss(ids[0], None, utc_now(), "operator")
    rest = every_page(client, customer, f"limit=3&cursor={first['next_cursor']}")
    assert [item["id"] for item in first["items"] + rest] == ids[::-1]


def test_a_cursor_gives_no_access_to_another_account(client: TestClient, customer: Customer) -> None:
    make_exports(customer, 3)
    cursor = listed(customer, "limit=1").send(client).json["next_cursor"]
    assert every_page(client, make_customer(), f"cursor={cursor}") == []


BAD_QUERIES: Final = [
    ("status=CANARY", ("/status", "not_allowed")),
    ("status=failed,CANARY", ("/status", "not_allowed")),
    ("status=failed,", ("/status", "not_allowed")),
    ("status=", ("/status", "not_allowed")),
    ("status=FAILED", ("/status", "not_allowed")),
    ("status=failed&status=blocked", ("/status", "not_allowed")),
    ("source=CANARY", ("/source", "not_allowed")),
    ("source=manual,x", ("/source", "not_allowed")),
    ("severity=high,CANARY", ("/severity", "not_allowed")),
    ("project_id=0", ("/project_id", "not_allowed")),
    ("project_id=1,x", ("/project_id", "not_allowed")),
    ("project_id=9999999999", ("/project_id", "not_allowed")),
    (f"project_id={','.join(map(str, range(1, 22)))}", ("/project_id", "too_many")),
    ("target_id=CANARY", ("/target_id", "not_allowed")),
    ("rule=", ("/rule", "not_allowed")),
    ("rule=%00", ("/rule", "not_allowed")),
    ("created_after=CANARY", ("/created_after", "invalid_timestamp")),
    ("created_before=2026-03-01", ("/created_before", "invalid_timestamp")),
    ("sort=CANARY", ("/sort", "not_allowed")),
    ("facets=yes", ("/facets", "not_allowed")),
    ("q=", ("/q", "too_short")),
    ("sort=created_at&sort=created_at", ("/sort", "not_allowed")),
    ("limit=0", ("/limit", "out_of_range")),
    ("limit=201", ("/limit", "out_of_range")),
    (f"limit={'9' * 5000}", ("/limit", "out_of_range")),
    ("limit=CANARY", ("/limit", "invalid_type")),
    ("cursor=CANARY", ("/cursor", "invalid_cursor")),
    (f"cursor={base64url('1:exp_CANARY')}", ("/cursor", "invalid_cursor")),
    (f"cursor={base64url('2:exp_01AAAAAAAAAAAAAAAAAAAAAAAA')}", ("/cursor", "invalid_cursor")),  # another version
    (f"cursor={base64url('1:tgt_01AAAAAAAAAAAAAAAAAAAAAAAA')}", ("/cursor", "invalid_cursor")),  # of another list
    ("cursor=%00", ("/cursor", "invalid_cursor")),
]


@pytest.mark.parametrize(("query", "refusal"), BAD_QUERIES)
def test_an_invalid_list_request_is_rejected(
    query: str, refusal: tuple[str, str], client: TestClient, customer: Customer
) -> None:
    make_exports(customer, 2)
    answer = listed(customer, query.replace("CANARY", CANARY)).send(client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal(*refusal),))
    assert CANARY not in answer.text


def test_all_errors_of_a_query_are_reported_at_once(client: TestClient, customer: Customer) -> None:
    answer = listed(customer, "status=x&source=y&limit=z&cursor=-").send(client)
    codes = {
        ("/status", "not_allowed"),
        ("/source", "not_allowed"),
        ("/limit", "invalid_type"),
        ("/cursor", "invalid_cursor"),
    }
    assert_is_error(answer, 422, "VALIDATION_FAILED", tuple(FieldRefusal(*each) for each in codes))


# --- attempts -----------------------------------------------------------------


def tried(customer: Customer, count: int) -> str:
    """Return an export with `count` attempts that waits for the next one."""
    began = utc_now()
    export_id = make_approved(customer, make_target(customer).id, began)
    for number in range(count):
        at = began + timedelta(minutes=number)
        [claim] = claim_due(1, at, 6, "worker:host-of-ours:1")
        waits = {"next_attempt_at": at + timedelta(seconds=30), "error_code": "http_503", "retry_after_s": 30}
        claims_sql.record_attempts(
            [completed_attempt(claim, Transition.RESCHEDULE, at, **waits)], at, "worker:host-of-ours:1"
        )
    return export_id


def test_an_attempt_shows_its_result_and_no_internals_of_the_installation(client: TestClient, customer: Customer) -> None:
    export_id = tried(customer, 1)
    answer = listed(customer, path=f"{EXPORTS}/{export_id}/attempts").send(client)
    [attempt] = answer.json["items"]
    assert attempt == {
        "id": attempt["id"],
        "number": 1,
        "started_at": attempt["started_at"],
        "outcome": "retryable",
        "response_status": 503,
        "error_code": "http_503",
        "retry_after_seconds": 30,
        "durations": {"dns_ms": 1, "connect_ms": 2, "tls_ms": 3, "first_byte_ms": 4, "total_ms": 5},
    }
    assert attempt["id"].startswith("att_")
    assert attempt["started_at"].endswith("Z")
    for private in ("192.0.2.1", "host-of-ours", "ab" * 16):
        assert private not in answer.text


@pytest.mark.parametrize("limit", [1, 2, 5, 200])
def test_attempts_are_read_to_their_end_newest_first(limit: int, client: TestClient, customer: Customer) -> None:
    path = f"{EXPORTS}/{tried(customer, 5)}/attempts"
    assert [item["number"] for item in every_page(client, customer, f"limit={limit}", path)] == [5, 4, 3, 2, 1]


def test_an_export_that_was_never_tried_has_an_empty_list(client: TestClient, customer: Customer) -> None:
    path = f"{EXPORTS}/{make_exports(customer, 1)[0]}/attempts"
    assert listed(customer, path=path).send(client).json == {"items": [], "next_cursor": None}


def test_another_accounts_attempts_are_not_found(client: TestClient, customer: Customer) -> None:
    for export_id in (tried(make_customer(), 1), "exp_01AAAAAAAAAAAAAAAAAAAAAAAA", "exp_%00", CANARY):
        assert_is_error(listed(customer, path=f"{EXPORTS}/{export_id}/attempts").send(client), 404, "NOT_FOUND")


def test_a_cursor_of_another_exports_attempts_is_refused(client: TestClient, customer: Customer) -> None:
    path = f"{EXPORTS}/{tried(customer, 2)}/attempts"
    cursor = listed(customer, "limit=1", path).send(client).json["next_cursor"]
    [other] = make_exports(customer, 1)
    answer = listed(customer, f"cursor={cursor}", f"{EXPORTS}/{other}/attempts").send(client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/cursor", "invalid_cursor"),))


# --- transitions --------------------------------------------------------------


@pytest.mark.parametrize("how", [Transition.FAIL, Transition.BLOCK])
@pytest.mark.parametrize("body", [b"", b"{}"])
def test_a_failed_export_is_retried(
    body: bytes, how: Transition, client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    export_id = failed(customer, how)
    wake_ups.on_notify = lambda: queries.get(export_id).status.value
    headers = tuple(JSON.items()) if body else ()
    call = Call("POST", f"{EXPORTS}/{export_id}/retry", (*customer.bearer.items(), *headers), body)

    answer = call.send(client)

    assert (answer.status_code, answer.json["status"], answer.json["status_reason"]) == (202, "approved", None)
    assert answer.headers["location"] == f"{BASE}{EXPORTS}/{export_id}"
    assert wake_ups.seen == ["approved"]
    assert queries.count_due(utc_now(), 1)


def test_a_prepared_export_is_dismissed(client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue) -> None:
    export_id = prepared(client)
    answer = transition(customer, export_id, "dismiss").send(client)
    assert (answer.status_code, answer.json["status"]) == (200, "dismissed")
    assert answer.json["finished_at"] is not None
    assert wake_ups.notifications == 0
    assert queries.get(export_id).status is ExportStatus.DISMISSED


#: Statuses from which a request succeeds. Dismissing a dismissed export and restoring a prepared one change nothing.
MAY: Final = {
    "retry": {"failed", "blocked"},
    "dismiss": {"prepared", "dismissed"},
    "restore": {"prepared", "dismissed"},
    "snooze": {"prepared"},
}


@pytest.mark.parametrize("verb", MAY)
@pytest.mark.parametrize("status", list(ExportStatus))
def test_a_transition_from_a_state_that_does_not_allow_it_is_a_conflict(
    status: ExportStatus, verb: str, client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    export_id = in_every_state(customer)[status.value]
    answer = transition(customer, export_id, verb).send(client)
    if status.value in MAY[verb]:
        assert answer.status_code in {200, 202}
        return
    assert_is_error(answer, 409, "CONFLICT")
    assert f"is {status.value}; {verb} needs" in answer.json["error"]["message"]
    assert queries.get(export_id).status is status
    assert wake_ups.notifications == 0


@pytest.mark.parametrize("status", ["disabled", "inactive", "paused"])
def test_a_retry_for_a_target_that_is_not_active_is_refused(
    status: str, client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    export_id = failed(customer)
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, queries.get(export_id).target_id))
    answer = transition(customer, export_id, "retry").send(client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/target_id", "target_not_active"),))
    assert f"This target is {status}." in field_message(answer)
    assert (queries.get(export_id).status, wake_ups.notifications) == (ExportStatus.FAILED, 0)


@pytest.mark.parametrize("verb", ["retry", "dismiss", "snooze"])
def test_a_repeated_request_with_its_key_changes_nothing_more(verb: str, client: TestClient, customer: Customer) -> None:
    export_id = failed(customer) if verb == "retry" else prepared(client)
    call = transition(customer, export_id, verb, ("Idempotency-Key", "k"))
    first, second = call.send(client), call.send(client)
    assert (second.status_code, second.json) == (first.status_code, first.json)
    assert second.headers["idempotency-replayed"] == "true"
    assert queries.get(export_id).version == (5 if verb == "retry" else 2)


@pytest.mark.parametrize("verb", MAY)
@pytest.mark.parametrize(
    ("body", "refusal"),
    [(b"[]", ("", "invalid_type")), (b'{"now": true}', ("", "unknown_member")), (b"{", ("", "malformed_json"))],
)
def test_a_retry_or_dismissal_accepts_no_members_in_its_body(
    body: bytes, refusal: tuple[str, str], verb: str, client: TestClient, customer: Customer
) -> None:
    path = f"{EXPORTS}/{failed(customer)}/{verb}"
    answer = Call("POST", path, (*customer.bearer.items(), *JSON.items()), body).send(client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal(*refusal),))


# --- abilities ----------------------------------------------------------------

#: Operations: the ability that each needs, and a request.
OPERATIONS: Final[dict[str, tuple[Ability, Callable[[Customer, str], Call]]]] = {
    "prepare": (Ability.PREPARE_EXPORTS, lambda customer, _: prepare(customer, {"ticket": TICKET})),
    "list": (Ability.READ_EXPORTS, lambda customer, _: listed(customer)),
    "attempts": (Ability.READ_EXPORTS, lambda customer, export_id: listed(customer, path=f"{EXPORTS}/{export_id}/attempts")),
    "retry": (Ability.APPROVE_EXPORTS, lambda customer, export_id: transition(customer, export_id, "retry")),
    "dismiss": (Ability.APPROVE_EXPORTS, lambda customer, export_id: transition(customer, export_id, "dismiss")),
    "restore": (Ability.APPROVE_EXPORTS, lambda customer, export_id: transition(customer, export_id, "restore")),
    "snooze": (Ability.APPROVE_EXPORTS, lambda customer, export_id: transition(customer, export_id, "snooze")),
    "edit": (Ability.APPROVE_EXPORTS, lambda customer, export_id: edited(customer, export_id, {"title": "Another"})),
}


def asked_with(call: Call, token: str) -> Call:
    return call.without("Authorization").plus(("Authorization", f"Bearer {token}"))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_requires_its_own_ability(operation: str, client: TestClient, customer: Customer) -> None:
    ability, make = OPERATIONS[operation]
    export_id = failed(customer) if operation == "retry" else prepared(client)
    call = make(customer, export_id)
    others = [each for each in Ability if each in (Ability.MANAGE_TARGETS, *{a for a, _ in OPERATIONS.values()} - {ability})]
    without = tokens.create(customer.email, TokenKind.API, utc_now(), others)[1]
    platform = tokens.create(customer.email, TokenKind.PLATFORM, utc_now())[1]
    before = everything_stored()
    for token in (without, platform):
        assert_is_error(asked_with(call, token).send(client), 403, "FORBIDDEN")
    assert_is_error(call.without("Authorization").send(client), 401, "UNAUTHORIZED")
    assert everything_stored() == before
    enough = tokens.create(customer.email, TokenKind.API, utc_now(), [ability])[1]
    assert asked_with(call, enough).send(client).status_code < 300


@pytest.mark.parametrize("verb", MAY)
def test_another_accounts_export_is_not_found(verb: str, client: TestClient, customer: Customer) -> None:
    for export_id in (failed(make_customer()), "exp_01AAAAAAAAAAAAAAAAAAAAAAAA", "exp_%00", CANARY):
        assert_is_error(transition(customer, export_id, verb).send(client), 404, "NOT_FOUND")


@pytest.mark.parametrize("operation", ["prepare", *MAY, "edit"])
def test_a_dry_run_is_refused_and_not_carried_out(operation: str, client: TestClient, customer: Customer) -> None:
    call = OPERATIONS[operation][1](customer, failed(customer))
    before = everything_stored()
    answer = Call(call.method, call.path, call.headers, call.body, query="dry_run=true").send(client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/dry_run", "not_supported"),))
    assert everything_stored() == before


# --- findings over scan runs --------------------------------------------------


def post(client: TestClient, scan_run_id: int, page: dict[str, Any] | None = None, **changes: Any) -> Result:
    body = postback(scan_run_id, [issue(**changes)])
    body["page"] = {**body["page"], **(page or {})}
    return Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(body).send(client)


#: Differences in a second scan run that do not make another finding.
COSMETIC: Final = [
    {"page": {"url": "https://Shop.example:443/?utm_source=news#top", "normalizedUrl": None}},
    {"location": "MAIN>img.hero.is-active"},
    {"location": "main  >  img.lazyloaded.hero", "title": "Worded otherwise", "severity": "low"},
    {"code": " IMG-ALT ", "description": None, "snippet": "<img>"},
]


@pytest.mark.parametrize("change", COSMETIC)
def test_a_cosmetic_change_of_the_page_is_no_new_finding(
    change: dict[str, Any], client: TestClient, customer: Customer
) -> None:
    [export_id] = post(client, 1).json["ticket_exports"]
    second = post(client, 2, **change)
    post(client, 2, **change)
    assert (second.json["findings"], second.json["ticket_exports"]) == ({"new": 0, "seen": 1, "fixed": 0, "reopened": 0}, [])
    [item] = every_page(client, customer)
    assert item["id"] == export_id
    finding = item["finding"]
    assert (finding["times_seen"], finding["first_scan_run_id"], finding["last_scan_run_id"]) == (2, 1, 2)
    assert finding["first_seen_at"] <= finding["last_seen_at"]
    assert set(finding) == {"id", "first_seen_at", "last_seen_at", "times_seen", "first_scan_run_id", "last_scan_run_id"}
    assert finding["id"] == item["source"]["id"]


@pytest.mark.parametrize("change", [{"location": "main > img.hero:nth-child(2)"}, {"code": "img-size"}])
def test_another_issue_is_a_new_finding(change: dict[str, Any], client: TestClient, customer: Customer) -> None:
    post(client, 1)
    assert post(client, 2, **change).json["findings"] == {"new": 1, "seen": 0, "fixed": 0, "reopened": 0}


# --- modes --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cloud", "self-hosted", "webhook-only"])
def test_every_mode_has_the_export_routes(mode: str, customer: Customer, tmp_path: Path) -> None:
    client = TestClient(create_app(make_settings(tmp_path, {"DEPLOYMENT_MODE": mode}), FakeWakeUpQueue(), FakeResolver({})))
    for _, make in OPERATIONS.values():
        call = make(customer, "exp_01AAAAAAAAAAAAAAAAAAAAAAAA").without("Authorization")
        assert_is_error(call.send(client), 401, "UNAUTHORIZED")
    methods = {EXPORTS: "GET, HEAD, POST, OPTIONS", f"{EXPORTS}/exp_1/attempts": "GET, HEAD, OPTIONS"}
    for path, allowed in {**methods, f"{EXPORTS}/exp_1/retry": "POST, OPTIONS"}.items():
        answer = Call("DELETE", path).send(client)
        assert_is_error(answer, 405, "METHOD_NOT_ALLOWED")
        assert answer.headers["allow"] == allowed
