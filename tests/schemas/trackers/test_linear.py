"""Linear as a tracker."""

import json
from dataclasses import replace
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from graphql import GraphQLSchema, build_schema, get_operation_ast, parse, validate
from graphql.execution.values import get_variable_values

from schemas.trackers.exchange import (
    FailureKind,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
    TrackerRequest,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.linear import LinearTracker, own_id
from schemas.trackers.registry import TRACKERS
from tests.support.corpora import tracker_file
from tests.support.trackers.events import EVENT_ID, event
from tests.support.trackers.events import EXPORT_ID as EVENT_EXPORT_ID
from tests.support.trackers.steps import answer, play

LINEAR = LinearTracker()
BASE = "https://linear.app/acme"
API = "https://api.linear.app/graphql"
ACCESS = TrackerAccess(BASE, {"team": "ENG", "labels": ["web"]}, "lin_api_secret")
EXPORT_ID = "exp_01K9ZC3V5N8QWERTY0123456AB"
TICKET = TrackerTicket(
    EXPORT_ID, "The page leaks an address", "An address is visible.", "high", labels=("riskrelay", "severity:high")
)
TEAM = "f8a4c6f0-0000-4000-8000-000000000001"
ISSUE = TrackerIssue("ENG-7", "https://linear.app/acme/issue/ENG-7/the-page")


def data(**members: Any) -> TrackerResponse:
    return answer(200, {"data": members})


def error(error_type: Any, status: int = 200, **headers: str) -> TrackerResponse:
    errors = [{"message": "No.", "extensions": {"type": error_type, "userError": True}}]
    return answer(status, {"errors": errors, "data": None}, **headers)


def coded(code: Any, status: int) -> TrackerResponse:
    """Return an error that has a code but no type."""
    return answer(status, {"errors": [{"message": "No.", "extensions": {"code": code}}]})


def label(name: str, team: str | None = None, is_group: bool = False) -> dict[str, Any]:
    owner = None if team is None else {"id": team}
    return {"id": f"{name}-{'team' if team else 'workspace'}", "name": name, "isGroup": is_group, "team": owner}


def team_and_labels(*labels: Any) -> TrackerResponse:
    return data(teams={"nodes": [{"id": TEAM}]}, issueLabels={"nodes": list(labels)})


def node(**changed: Any) -> dict[str, Any]:
    return {"id": own_id(EXPORT_ID), "identifier": ISSUE.id, "url": ISSUE.url, **changed}


def created(**changed: Any) -> TrackerResponse:
    return data(issueCreate={"success": True, "issue": node(**changed)})


def found(*nodes: Any) -> TrackerResponse:
    return data(issues={"nodes": list(nodes)})


def configuration(code: str, field: str | None = None) -> TrackerFailure:
    return TrackerFailure(FailureKind.CONFIGURATION, code, field=field)


def variables_of(request: TrackerRequest) -> Any:
    return json.loads(request.body)["variables"]


REJECTED = TrackerFailure(FailureKind.PAYLOAD, "tracker_rejected")
UNAVAILABLE = TrackerFailure(FailureKind.RETRY, "tracker_unavailable")


def test_linear_is_registered() -> None:
    assert isinstance(TRACKERS["linear"], LinearTracker)


# Create


def test_an_issue_is_created_in_its_team_under_our_id() -> None:
    result, [lookup, create] = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(), created()])
    assert result == ISSUE
    assert (lookup.method, lookup.url, lookup.creates) == ("POST", API, False)
    assert (create.method, create.url, create.creates) == ("POST", API, True)
    made = variables_of(create)["input"]
    assert made["id"] == own_id(EXPORT_ID)
    assert made["teamId"] == TEAM
    assert made["title"] == TICKET.title
    assert EXPORT_ID in made["description"]
    assert made["priority"] == 2
    assert made["labelIds"] == []


def test_the_key_is_sent_as_it_is_in_one_header() -> None:
    _, requests = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(), created()])
    for request in requests:
        assert request.headers["Authorization"] == "lin_api_secret"
        others = [value for name, value in request.headers.items() if name != "Authorization"]
        assert not any(ACCESS.token in text for text in (request.url, request.body.decode(), *others))


@pytest.mark.parametrize(
    ("severity", "priority"), [("critical", 1), ("high", 2), ("medium", 3), ("low", 4), ("info", 0), ("else", 0)]
)
def test_a_severity_becomes_a_priority(severity: str, priority: int) -> None:
    _, requests = play(LINEAR.create(ACCESS, replace(TICKET, severity=severity)), [team_and_labels(), created()])
    assert variables_of(requests[1])["input"]["priority"] == priority


def test_only_labels_that_exist_for_the_team_are_set() -> None:
    listed = [
        label("web"),
        label("web", TEAM),
        label("riskrelay"),
        label("riskrelay", "another team"),
        label("severity:high", is_group=True),
        {"id": 7, "name": "riskrelay"},
        None,
    ]
    _, [lookup, create] = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(*listed), created()])
    assert variables_of(lookup)["labels"] == ["riskrelay", "severity:high", "web"]
    assert variables_of(create)["input"]["labelIds"] == ["web-team", "riskrelay-workspace"]


def test_the_id_is_a_uuid_of_version_4_that_depends_on_the_export_alone() -> None:
    made = UUID(own_id(EXPORT_ID))
    assert (made.version, made.variant) == (4, "specified in RFC 4122")
    assert own_id(EXPORT_ID) == "774d702b-52e2-4edd-b226-3fc09a8a62e4"
    assert own_id("exp_01K9ZC3V5N8QWERTY0123456AC") != own_id(EXPORT_ID)


def test_a_repeated_creation_returns_the_issue_of_the_first() -> None:
    answers = [team_and_labels(), error("invalid input"), found(node())]
    result, requests = play(LINEAR.create(ACCESS, TICKET), answers)
    assert result == ISSUE
    assert [request.creates for request in requests] == [False, True, False]


def test_a_refused_ticket_that_has_no_issue_fails() -> None:
    result, _ = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(), error("invalid input"), found()])
    assert result == REJECTED


def test_a_refused_ticket_is_retried_while_nobody_knows_of_an_issue() -> None:
    result, _ = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(), error("invalid input"), answer(503)])
    assert result == UNAVAILABLE


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"<html>",
        [],
        {},
        {"data": None},
        {"data": {"issueCreate": {"success": True}}},
        {"data": {"issueCreate": {"success": True, "issue": {"identifier": 7}}}},
        {"data": {"issueCreate": {"success": True, "issue": {"identifier": "../x-7"}}}},
    ],
)
def test_a_success_that_names_no_issue_is_an_unknown_outcome(body: Any) -> None:
    result, _ = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(), answer(200, body)])
    assert result is None


def test_a_created_issue_is_returned_in_spite_of_errors_in_the_same_response() -> None:
    body = {"data": {"issueCreate": {"issue": node()}}, "errors": [{"extensions": {"type": "internal error"}}]}
    result, _ = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(), answer(200, body)])
    assert result == ISSUE


@pytest.mark.parametrize(
    "url", [None, "javascript:alert(1)", "https://linear.app/" + "a" * 500, "https://linear.app/\u202e"]
)
def test_an_invalid_url_is_replaced_by_the_page_of_the_issue(url: Any) -> None:
    result, _ = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(), created(url=url)])
    assert result == TrackerIssue("ENG-7", f"{BASE}/issue/ENG-7")


@pytest.mark.parametrize("response", [data(teams={"nodes": []}), data(teams={"nodes": [{}]})])
def test_a_team_that_the_key_cannot_read_is_reported(response: TrackerResponse) -> None:
    for steps in (LINEAR.create(ACCESS, TICKET), LINEAR.validate(ACCESS)):
        result, _ = play(steps, [response])
        assert result == configuration("tracker_not_found", "team")


# Refusals


REFUSALS: list[tuple[TrackerResponse, TrackerFailure]] = [
    (error("authentication error"), configuration("tracker_token_rejected")),
    (error("authentication error", 400), configuration("tracker_token_rejected")),
    (answer(401), configuration("tracker_token_rejected")),
    (error("forbidden"), configuration("tracker_forbidden")),
    (error("feature not accessible"), configuration("tracker_forbidden")),
    (error("usage limit exceeded"), configuration("tracker_forbidden")),
    (answer(403), configuration("tracker_forbidden")),
    (answer(404), configuration("tracker_not_found")),
    (answer(308), configuration("tracker_moved")),
    (error("ratelimited"), TrackerFailure(FailureKind.RETRY, "tracker_rate_limited", is_rate_limit=True)),
    (
        error("ratelimited", 400, retry_after="3"),
        TrackerFailure(FailureKind.RETRY, "tracker_rate_limited", 3.0, is_rate_limit=True),
    ),
    # A rate limit may have only a code; other codes have no meaning for us.
    (coded("RATELIMITED", 400), TrackerFailure(FailureKind.RETRY, "tracker_rate_limited", is_rate_limit=True)),
    (coded("BAD_REQUEST", 400), REJECTED),
    (coded(["RATELIMITED"], 400), REJECTED),
    (
        answer(429, x_ratelimit_requests_remaining="0", x_ratelimit_requests_reset="1769860800500"),
        TrackerFailure(FailureKind.RETRY, "tracker_rate_limited", None, 1_769_860_800.5, is_rate_limit=True),
    ),
    (error("user error"), REJECTED),
    (error("graphql error", 400), REJECTED),
    (answer(400), REJECTED),
    (error("internal error"), UNAVAILABLE),
    (error("lock timeout"), UNAVAILABLE),
    (error("something new"), UNAVAILABLE),
    (error("internal error", 400), UNAVAILABLE),
    (error(None), UNAVAILABLE),
    (error(["forbidden"]), UNAVAILABLE),
    (answer(200, {"errors": ["No."]}), UNAVAILABLE),
    (error("forbidden", 502), UNAVAILABLE),
    (answer(503, b"<html>", retry_after="9"), TrackerFailure(FailureKind.RETRY, "tracker_unavailable", 9.0)),
]


@pytest.mark.parametrize(("response", "failure"), REFUSALS)
def test_a_refusal_has_its_consequence_in_every_exchange(response: TrackerResponse, failure: TrackerFailure) -> None:
    for steps in (LINEAR.create(ACCESS, TICKET), LINEAR.find(ACCESS, TICKET), LINEAR.validate(ACCESS)):
        assert play(steps, [response])[0] == failure


@pytest.mark.parametrize(("response", "failure"), [each for each in REFUSALS if each[1] != REJECTED])
def test_a_refusal_of_the_creation_itself_has_its_consequence(response: TrackerResponse, failure: TrackerFailure) -> None:
    result, _ = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(), response])
    assert result == failure


# Find


def test_an_issue_is_found_by_our_id() -> None:
    result, [request] = play(LINEAR.find(ACCESS, TICKET), [found(node())])
    assert result == ISSUE
    assert variables_of(request)["id"] == own_id(EXPORT_ID)
    assert not request.creates
    assert LINEAR.lookup_delay_s == 0


@pytest.mark.parametrize("nodes", [[], [node(id=TEAM)], [None, 7]])
def test_an_issue_with_another_id_is_not_ours(nodes: list[Any]) -> None:
    assert play(LINEAR.find(ACCESS, TICKET), [found(*nodes)])[0] is None


@pytest.mark.parametrize("body", [b"<html>", {}, {"data": None}, {"data": {"issues": None}}, []])
def test_an_unreadable_lookup_is_no_proof_of_absence(body: Any) -> None:
    assert play(LINEAR.find(ACCESS, TICKET), [answer(200, body)])[0] == UNAVAILABLE


# Validate


def test_a_working_target_passes_its_validation() -> None:
    result, [request] = play(LINEAR.validate(ACCESS), [data(viewer={"id": "x"}, teams={"nodes": [{"id": TEAM}]})])
    assert result is None
    assert "mutation" not in json.loads(request.body)["query"]


# The official description


@cache
def schema() -> GraphQLSchema:
    return build_schema(tracker_file("linear-issues.graphql").read_text())


def test_every_query_and_its_variables_match_the_official_schema() -> None:
    _, create = play(LINEAR.create(ACCESS, TICKET), [team_and_labels(label("web")), error("user error"), found()])
    _, check = play(LINEAR.validate(ACCESS), [data(teams={"nodes": [{"id": TEAM}]})])
    requests = [*create, *check]
    assert len(requests) == 4
    require_official(requests)


def require_official(requests: list[TrackerRequest]) -> None:
    for request in requests:
        sent = json.loads(request.body)
        document = parse(sent["query"])
        assert validate(schema(), document) == []
        operation = get_operation_ast(document)
        assert operation is not None
        values = get_variable_values(schema(), operation.variable_definitions or (), sent["variables"])
        assert not isinstance(values, list), values


# Events


def issue_node(state: str | None = "unstarted", *comments: str) -> TrackerResponse:
    nodes = [{"id": own_id(each)} for each in comments]
    return found(
        {"id": own_id(EVENT_EXPORT_ID), "state": {"type": state}, "team": {"id": TEAM}, "comments": {"nodes": nodes}}
    )


def states(*positions: float) -> TrackerResponse:
    return data(workflowStates={"nodes": [{"id": f"state-{each}", "position": each} for each in positions]})


def updated(state: str, title: str = "A title") -> TrackerResponse:
    return data(issueUpdate={"success": True, "issue": {"id": "x", "title": title, "state": {"type": state}}})


COMMENTED = data(commentCreate={"success": True, "comment": {"id": own_id(EVENT_ID)}})


def test_a_comment_has_our_id_and_every_request_matches_the_schema() -> None:
    result, requests = play(LINEAR.comment(ACCESS, event(issue_id="ENG-7")), [issue_node(), COMMENTED])
    assert result is None
    made = variables_of(requests[1])["input"]
    assert (made["id"], made["issueId"]) == (own_id(EVENT_ID), own_id(EVENT_EXPORT_ID))
    assert made["body"].endswith(EVENT_ID)
    assert [request.creates for request in requests] == [False, True]
    _, closing = play(LINEAR.set_open(ACCESS, event(), is_open=False), [issue_node(), states(1.0), updated("completed")])
    _, erasing = play(LINEAR.redact(ACCESS, event()), [issue_node(), updated("unstarted")])
    require_official([*requests, *closing, *erasing])


def test_a_comment_refused_because_it_exists_counts_as_a_success() -> None:
    for comments, expected in (((EVENT_ID,), None), ((), REJECTED)):
        result, _ = play(
            LINEAR.comment(ACCESS, event()), [issue_node(), error("invalid input"), issue_node("started", *comments)]
        )
        assert result == expected


def test_a_refused_comment_is_retried_while_nobody_knows_whether_it_exists() -> None:
    result, _ = play(LINEAR.comment(ACCESS, event()), [issue_node(), error("invalid input"), answer(503)])
    assert result == UNAVAILABLE


def test_a_comment_is_found_by_our_id() -> None:
    assert play(LINEAR.has_comment(ACCESS, event()), [issue_node("started", EVENT_ID)])[0] is True
    assert play(LINEAR.has_comment(ACCESS, event()), [issue_node("started", "evt_other")])[0] is False


@pytest.mark.parametrize(
    ("state", "is_open"),
    [
        ("triage", True),
        ("backlog", True),
        ("started", True),
        ("completed", False),
        ("canceled", False),
        ("duplicate", False),
    ],
)
def test_the_type_of_the_state_says_whether_an_issue_is_open(state: str, is_open: bool) -> None:
    assert play(LINEAR.is_open(ACCESS, event()), [issue_node(state)])[0] is is_open


@pytest.mark.parametrize(("is_open", "state_type"), [(False, "completed"), (True, "unstarted")])
def test_an_issue_gets_the_first_state_of_its_own_team(is_open: bool, state_type: str) -> None:
    answers = [issue_node(), states(3.0, 1.5, 2.0), updated(state_type)]
    result, requests = play(LINEAR.set_open(ACCESS, event(), is_open=is_open), answers)
    assert result is True
    assert variables_of(requests[1]) == {"team": TEAM, "type": state_type}
    assert variables_of(requests[2]) == {"id": own_id(EVENT_EXPORT_ID), "input": {"stateId": "state-1.5"}}


def test_a_team_without_such_a_state_closes_nothing() -> None:
    assert play(LINEAR.set_open(ACCESS, event(), is_open=False), [issue_node(), states()])[0] is False
    answers = [issue_node(), states(1.0), updated("started")]
    assert play(LINEAR.set_open(ACCESS, event(), is_open=False), answers)[0] is False


def test_an_erased_issue_has_the_title_erased_ticket() -> None:
    title = f"Erased ticket {EVENT_EXPORT_ID}"
    result, requests = play(LINEAR.redact(ACCESS, event()), [issue_node(), updated("started", title)])
    assert result is None
    assert variables_of(requests[1])["input"]["title"] == title
    assert EVENT_EXPORT_ID in variables_of(requests[1])["input"]["description"]
    assert play(LINEAR.redact(ACCESS, event()), [issue_node(), updated("started")])[0] == UNAVAILABLE


def test_a_deleted_issue_is_not_found() -> None:
    for steps in operations():
        assert play(steps, [found()])[0] == configuration("tracker_not_found")


@pytest.mark.parametrize(("response", "failure"), REFUSALS)
def test_every_refusal_of_an_event_has_its_consequence(response: TrackerResponse, failure: TrackerFailure) -> None:
    for steps in operations():
        assert play(steps, [response])[0] == failure


def operations() -> list[Any]:
    return [
        LINEAR.comment(ACCESS, event()),
        LINEAR.has_comment(ACCESS, event()),
        LINEAR.is_open(ACCESS, event()),
        LINEAR.set_open(ACCESS, event(), is_open=True),
        LINEAR.redact(ACCESS, event()),
    ]


# Limits


@pytest.mark.parametrize(
    ("headers", "held_until_s"),
    [
        ({}, None),
        ({"x_ratelimit_requests_remaining": "12", "x_ratelimit_requests_reset": "1769860800000"}, None),
        ({"x_ratelimit_requests_remaining": "0", "x_ratelimit_requests_reset": "1769860800000"}, 1_769_860_800.0),
        (
            {
                "x_ratelimit_requests_remaining": "0",
                "x_ratelimit_requests_reset": "1769860800000",
                "x_ratelimit_complexity_remaining": "0",
                "x_ratelimit_complexity_reset": "1769860900000",
            },
            1_769_860_900.0,
        ),
        ({"x_ratelimit_endpoint_requests_remaining": "0", "x_ratelimit_endpoint_requests_reset": "soon"}, None),
    ],
)
def test_a_used_up_limit_holds_until_its_reset(headers: dict[str, str], held_until_s: float | None) -> None:
    assert answer(200, None, **headers).reset_at_s() == held_until_s


# Addresses


@pytest.mark.parametrize(
    ("base_url", "settings", "url"),
    [
        ("https://linear.app/acme", {}, API),
        ("https://linear.example.com", {}, "https://linear.example.com/graphql"),
        ("https://linear.example.com/acme", {}, "https://linear.example.com/graphql"),
        ("https://linear.app/acme", {"api_base": "https://proxy.example.com/linear"}, "https://proxy.example.com/linear"),
    ],
)
def test_the_url_of_the_api_is_derived_from_the_workspace(base_url: str, settings: dict[str, Any], url: str) -> None:
    access = TrackerAccess(base_url, {"team": "ENG", **settings}, "key")
    _, [request] = play(LINEAR.find(access, TICKET), [found()])
    assert request.url == url


@pytest.mark.parametrize(
    ("base_url", "team", "problem"),
    [
        ("https://linear.app/acme", "ENG", None),
        ("https://linear.example.com", "ENG", None),
        ("https://linear.app", "ENG", "base_url is the page of the workspace: https://linear.app/acme"),
        ("https://linear.app/acme/team/ENG", "ENG", "base_url is the page of the workspace: https://linear.app/acme"),
        ("https://linear.app/acme?a=1", "ENG", "base_url is the page of the workspace: https://linear.app/acme"),
    ],
)
def test_a_url_that_is_no_workspace_is_explained(base_url: str, team: str, problem: str | None) -> None:
    assert LINEAR.problem_of(base_url, {"team": team}) == problem


def test_long_untrusted_text_stays_within_the_limits() -> None:
    ticket = replace(TICKET, title="t\n" * 5_000, description="d`@x\n" * 30_000)
    _, requests = play(LINEAR.create(ACCESS, ticket), [team_and_labels(), created()])
    made = variables_of(requests[1])["input"]
    assert len(made["title"]) <= 255
    assert len(made["description"]) <= 65_536
