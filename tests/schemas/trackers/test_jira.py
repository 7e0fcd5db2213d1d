"""Jira as a tracker: Cloud and Data Center."""

import json
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest

from schemas.base.errors import ValidationFailed
from schemas.base.places import Place
from schemas.trackers.exchange import (
    FailureKind,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
    TrackerRequest,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.jira import JiraTracker, marker_label
from schemas.trackers.registry import TRACKERS
from tests.support.trackers.descriptions import description_of
from tests.support.trackers.steps import answer, play

JIRA = JiraTracker()
SITE = "https://acme.atlassian.net"
HOST = "https://jira.example.com/jira"
EXPORT_ID = "exp_01K9ZC3V5N8QWERTY0123456AB"
LABEL = "rr-exp_01k9zc3v5n8qwerty0123456ab"
CLOUD = TrackerAccess(SITE, {"project": "SHOP"}, "bot@example.com:secret-token")
DATA_CENTER = TrackerAccess(HOST, {"project": "SHOP", "api_version": 2}, "personal-access-token")
BOTH = pytest.mark.parametrize("access", [CLOUD, DATA_CENTER], ids=["cloud", "data-center"])
TICKET = TrackerTicket(
    EXPORT_ID,
    "The page leaks an address",
    "An address is visible.",
    "high",
    page_url="https://shop.example.com/contact",
    labels=("riskrelay", "severity:high", "page:product page"),
    places=(Place("https://shop.example.com/contact", "footer"),),
    places_total=1,
    console_url=f"https://relay.example.com/console/exports/{EXPORT_ID}",
)
CREATED = answer(201, {"id": "10007", "key": "SHOP-7", "self": "https://elsewhere.example.com/7"})
ISSUE = TrackerIssue("SHOP-7", f"{SITE}/browse/SHOP-7")

MYSELF = answer(200, {"displayName": "Bot"})
ALLOWED = answer(
    200, {"permissions": {name: {"key": name, "havePermission": True} for name in ("BROWSE_PROJECTS", "CREATE_ISSUES")}}
)
TYPES = [
    {"id": "1", "name": "Task", "subtask": False},
    {"id": "2", "name": "Fehler", "untranslatedName": "Bug", "subtask": False},
    {"id": "3", "name": "Sub-task", "subtask": True},
]


def page(entries: list[Any], total: int | None = None) -> TrackerResponse:
    """Return a page of a list with the member names of both Cloud and Data Center."""
    listed = {"issueTypes": entries, "values": entries, "startAt": 0, "maxResults": 200}
    return answer(200, listed | {"total": len(entries) if total is None else total})


def field(field_id: str, required: bool = False, has_default: bool = False) -> dict[str, Any]:
    return {"fieldId": field_id, "name": field_id, "required": required, "hasDefaultValue": has_default}


ISSUE_TYPES = page(TYPES)
OURS = [field("summary", required=True), field("description"), field("labels"), field("priority"), field("assignee")]
FIELDS = page(OURS)


def with_settings(access: TrackerAccess, **settings: Any) -> TrackerAccess:
    return replace(access, settings={**access.settings, **settings})


def configuration(code: str, field: str | None = None) -> TrackerFailure:
    return TrackerFailure(FailureKind.CONFIGURATION, code, field=field)


def rejected(field: str | None = None) -> TrackerFailure:
    return TrackerFailure(FailureKind.PAYLOAD, "tracker_rejected", field=field)


def created_fields(access: TrackerAccess, ticket: TrackerTicket = TICKET) -> Any:
    """Return the fields of the issue that is created from a ticket."""
    _, [request] = play(JIRA.create(access, ticket), [CREATED])
    return json.loads(request.body)["fields"]


def complaints(access: TrackerAccess, request: TrackerRequest) -> list[str]:
    """Return the deviations of a request from the official description."""
    if access.settings.get("api_version") == 2:
        return description_of("jira-dc-v2.openapi.json").complaints(request, f"{HOST}/rest")
    return description_of("jira-cloud-v3.openapi.json").complaints(request, SITE)


def test_jira_is_registered() -> None:
    assert isinstance(TRACKERS["jira"], JiraTracker)


# Create


def test_cloud_creates_an_issue_with_a_document() -> None:
    result, [request] = play(JIRA.create(CLOUD, TICKET), [CREATED])
    assert result == ISSUE
    assert (request.method, request.url, request.creates) == ("POST", f"{SITE}/rest/api/3/issue", True)
    fields = json.loads(request.body)["fields"]
    assert fields["project"] == {"key": "SHOP"}
    assert fields["issuetype"] == {"name": "Task"}
    assert fields["summary"] == TICKET.title
    assert fields["description"]["type"] == "doc"
    assert EXPORT_ID in json.dumps(fields["description"])
    assert fields["labels"] == ["riskrelay", "severity:high", "page:product-page", LABEL]
    assert fields.keys() == {"project", "issuetype", "summary", "description", "labels"}


def test_data_center_creates_an_issue_with_wiki_text() -> None:
    result, [request] = play(JIRA.create(DATA_CENTER, TICKET), [CREATED])
    assert result == TrackerIssue("SHOP-7", f"{HOST}/browse/SHOP-7")
    assert (request.url, request.creates) == (f"{HOST}/rest/api/2/issue", True)
    description = json.loads(request.body)["fields"]["description"]
    assert EXPORT_ID in description
    assert "An address is visible." in description


@BOTH
def test_settings_are_sent_as_fields(access: TrackerAccess) -> None:
    fields = created_fields(
        with_settings(
            access, issue_type="Bug", assignee="5b10", labels=["web team"], priority_by_severity={"high": "Highest"}
        )
    )
    assert fields["issuetype"] == {"name": "Bug"}
    assert fields["assignee"] == ({"id": "5b10"} if access is CLOUD else {"name": "5b10"})
    assert fields["priority"] == {"name": "Highest"}
    assert fields["labels"][-2:] == ["web-team", LABEL]


def test_a_severity_without_a_priority_leaves_jiras_default() -> None:
    assert "priority" not in created_fields(with_settings(CLOUD, priority_by_severity={"low": "Lowest"}))


def test_labels_have_no_white_space_and_nothing_invisible() -> None:
    ticket = replace(TICKET, labels=("  a \t b\n", "a-b", "x\u202ey\x00", "\u200b", "l" * 300))
    assert created_fields(CLOUD, ticket)["labels"] == ["a-b", "xy", "l" * 255, LABEL]


@BOTH
def test_long_untrusted_text_stays_within_the_limits(access: TrackerAccess) -> None:
    fields = created_fields(access, replace(TICKET, title="t\n" * 5_000, description="d{noformat}\n" * 20_000))
    assert len(fields["summary"]) <= 255
    assert "\n" not in fields["summary"]
    described = fields["description"]
    text = described if isinstance(described, str) else json.dumps(described, ensure_ascii=False, separators=(",", ":"))
    assert 1_000 < len(text) <= 32_767


def test_a_token_with_a_colon_is_basic_and_another_one_bearer() -> None:
    _, [basic] = play(JIRA.create(CLOUD, TICKET), [CREATED])
    scheme, credentials = basic.headers["Authorization"].split()
    assert (scheme, b64decode(credentials)) == ("Basic", b"bot@example.com:secret-token")
    _, [bearer] = play(JIRA.create(DATA_CENTER, TICKET), [CREATED])
    assert bearer.headers["Authorization"] == "Bearer personal-access-token"


def test_the_token_is_in_one_header_only() -> None:
    _, [request] = play(JIRA.create(DATA_CENTER, TICKET), [CREATED])
    others = [value for name, value in request.headers.items() if name != "Authorization"]
    assert not any(DATA_CENTER.token in text for text in (request.url, request.body.decode(), *others))


def test_the_api_base_replaces_the_address_of_the_api_and_not_of_the_page() -> None:
    access = with_settings(CLOUD, api_base="https://api.atlassian.com/ex/jira/1234/rest/api/3")
    result, [request] = play(JIRA.create(access, TICKET), [CREATED])
    assert request.url == "https://api.atlassian.com/ex/jira/1234/rest/api/3/issue"
    assert result == ISSUE


@pytest.mark.parametrize(
    "body", [None, b"<html>", [], {}, {"key": 7}, {"key": "SHOP"}, {"key": "../x-1"}, {"key": f"S-{'9' * 40}"}]
)
def test_a_success_that_names_no_issue_is_an_unknown_outcome(body: Any) -> None:
    result, _ = play(JIRA.create(CLOUD, TICKET), [answer(201, body)])
    assert result is None


# Refusals


REFUSALS: list[tuple[TrackerResponse, TrackerFailure]] = [
    (answer(301), configuration("tracker_moved")),
    (answer(401), configuration("tracker_token_rejected")),
    (answer(403), configuration("tracker_forbidden")),
    (answer(404), configuration("tracker_not_found")),
    (answer(410), configuration("tracker_issues_disabled")),
    (answer(423), configuration("tracker_archived")),
    (answer(403, x_seraph_loginreason="AUTHENTICATION_DENIED"), configuration("tracker_token_rejected")),
    (
        answer(400, {"errors": {"project": "Anonymous"}}, x_seraph_loginreason="AUTHENTICATED_FAILED"),
        configuration("tracker_token_rejected"),
    ),
    (answer(403, x_seraph_loginreason="OK"), configuration("tracker_forbidden")),
    (answer(429, retry_after="7"), TrackerFailure(FailureKind.RETRY, "tracker_rate_limited", 7.0, is_rate_limit=True)),
    (
        answer(429, x_ratelimit_reset="2026-01-31T12:00Z"),
        TrackerFailure(FailureKind.RETRY, "tracker_rate_limited", None, 1_769_860_800.0, is_rate_limit=True),
    ),
    (
        answer(429, x_ratelimit_reset="2026-02-31T12:00Z"),
        TrackerFailure(FailureKind.RETRY, "tracker_rate_limited", is_rate_limit=True),
    ),
    (answer(503, retry_after="9"), TrackerFailure(FailureKind.RETRY, "tracker_unavailable", 9.0)),
    (answer(500), TrackerFailure(FailureKind.RETRY, "tracker_unavailable")),
    (answer(413), TrackerFailure(FailureKind.PAYLOAD, "tracker_rejected", field="description")),
    (answer(422), TrackerFailure(FailureKind.PAYLOAD, "tracker_rejected")),
    (answer(400, b"\xff"), TrackerFailure(FailureKind.PAYLOAD, "tracker_rejected")),
    (answer(400, {"errors": ["summary"]}), TrackerFailure(FailureKind.PAYLOAD, "tracker_rejected")),
    *(
        (answer(400, {"errors": errors}), TrackerFailure(FailureKind.PAYLOAD, "tracker_rejected", field=field))
        for errors, field in [
            ({"summary": "Summary must be less than 255 characters."}, "title"),
            ({"description": "too long"}, "description"),
            ({"labels": "Field 'labels' cannot be set."}, "labels"),
            ({"priority": "Priority name 'Highest' is not valid"}, "priority_by_severity"),
            ({"assignee": "User 'x' does not exist."}, "assignee"),
            ({"issuetype": "Specify a valid issue type"}, "issue_type"),
            ({"project": "Specify a valid project ID or key"}, "project"),
            ({"customfield_10010": "Team is required.", "summary": "x"}, "customfield_10010"),
            ({"<script>": "x"}, None),
            ({}, None),
        ]
    ),
]


@BOTH
@pytest.mark.parametrize(("response", "failure"), REFUSALS)
def test_a_refusal_of_a_creation_has_its_consequence(
    access: TrackerAccess, response: TrackerResponse, failure: TrackerFailure
) -> None:
    result, _ = play(JIRA.create(access, TICKET), [response])
    assert result == failure


# Find


@pytest.mark.parametrize(("access", "search"), [(CLOUD, "3/search/jql"), (DATA_CENTER, "2/search")])
def test_an_issue_is_found_by_its_label(access: TrackerAccess, search: str) -> None:
    other = {"key": "SHOP-6", "fields": {"labels": ["rr-exp_other"]}}
    wanted = {"key": "SHOP-7", "fields": {"labels": ["riskrelay", LABEL.upper()]}}
    result, [request] = play(JIRA.find(access, TICKET), [answer(200, {"issues": [other, wanted]})])
    assert result == TrackerIssue("SHOP-7", f"{access.base_url}/browse/SHOP-7")
    assert (request.method, request.url) == ("POST", f"{access.base_url}/rest/api/{search}")
    assert not request.creates
    asked = json.loads(request.body)
    assert asked["jql"] == f'project = "SHOP" AND labels = "{LABEL}" ORDER BY created ASC'
    assert asked["fields"] == ["labels"]


def test_each_export_has_a_label_of_its_own() -> None:
    assert marker_label(EXPORT_ID) == LABEL
    assert marker_label("exp_01K9ZC3V5N8QWERTY0123456AC") != LABEL


@pytest.mark.parametrize(
    "issues", [[], [{"key": "SHOP-6"}], [{"key": "SHOP-6", "fields": {"labels": ["other"]}}], [None, 7]]
)
def test_issues_without_the_label_of_the_export_are_not_found(issues: Any) -> None:
    result, _ = play(JIRA.find(CLOUD, TICKET), [answer(200, {"issues": issues})])
    assert result is None


@pytest.mark.parametrize("body", [b"<html>Log in</html>", {}, {"issues": {}}, []])
def test_an_unreadable_search_result_is_no_proof_of_absence(body: Any) -> None:
    result, _ = play(JIRA.find(CLOUD, TICKET), [answer(200, body)])
    assert result == TrackerFailure(FailureKind.RETRY, "tracker_unavailable")


def test_a_search_without_a_login_is_no_proof_of_absence() -> None:
    empty = answer(200, {"issues": []}, x_seraph_loginreason="AUTHENTICATED_FAILED")
    result, _ = play(JIRA.find(CLOUD, TICKET), [empty])
    assert result == configuration("tracker_token_rejected")


def test_a_search_in_an_invisible_project_blocks_and_does_not_fail() -> None:
    refused = answer(400, {"errorMessages": ["The value 'SHOP' does not exist for the field 'project'."]})
    result, _ = play(JIRA.find(CLOUD, TICKET), [refused])
    assert result == configuration("tracker_not_found", "project")


def test_a_lookup_waits_for_the_index() -> None:
    assert JIRA.lookup_delay_s == 60


# Validate


@BOTH
def test_a_working_target_passes_its_validation(access: TrackerAccess) -> None:
    result, requests = play(JIRA.validate(access), [MYSELF, ALLOWED, ISSUE_TYPES, FIELDS])
    assert result is None
    assert {request.method for request in requests} == {"GET"}


@BOTH
@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        ([answer(401)], configuration("tracker_token_rejected")),
        ([answer(403)], configuration("tracker_token_rejected")),
        ([answer(200, {}, x_seraph_loginreason="AUTHENTICATED_FAILED")], configuration("tracker_token_rejected")),
        ([answer(404)], configuration("tracker_not_found", "base_url")),
        ([answer(200, b"<html>")], configuration("tracker_not_found", "base_url")),
        ([answer(302)], configuration("tracker_moved")),
        ([answer(500)], TrackerFailure(FailureKind.RETRY, "tracker_unavailable")),
        ([MYSELF, answer(404)], configuration("tracker_not_found", "project")),
        ([MYSELF, answer(400)], configuration("tracker_not_found", "project")),
        ([MYSELF, answer(200, [])], TrackerFailure(FailureKind.RETRY, "tracker_unavailable")),
        ([MYSELF, answer(200, {"permissions": {}})], configuration("tracker_forbidden", "BROWSE_PROJECTS")),
        (
            [MYSELF, answer(200, {"permissions": {"BROWSE_PROJECTS": {"havePermission": True}, "CREATE_ISSUES": {}}})],
            configuration("tracker_forbidden", "CREATE_ISSUES"),
        ),
        ([MYSELF, ALLOWED, answer(403)], configuration("tracker_forbidden")),
        ([MYSELF, ALLOWED, answer(200, {})], TrackerFailure(FailureKind.RETRY, "tracker_unavailable")),
        ([MYSELF, ALLOWED, page([])], configuration("tracker_not_found", "issue_type")),
        ([MYSELF, ALLOWED, ISSUE_TYPES, answer(401)], configuration("tracker_token_rejected")),
        ([MYSELF, ALLOWED, ISSUE_TYPES, answer(200, [])], TrackerFailure(FailureKind.RETRY, "tracker_unavailable")),
        ([MYSELF, ALLOWED, ISSUE_TYPES, page(OURS[:2])], rejected("labels")),
        (
            [MYSELF, ALLOWED, ISSUE_TYPES, page([*OURS, field("customfield_10010", required=True)])],
            rejected("customfield_10010"),
        ),
    ],
)
def test_a_validation_names_what_is_missing(
    access: TrackerAccess, answers: list[TrackerResponse], failure: TrackerFailure
) -> None:
    result, _ = play(JIRA.validate(access), answers)
    assert result == failure


@pytest.mark.parametrize(
    ("issue_type", "is_there"), [("Task", True), ("Bug", True), ("Fehler", True), ("Sub-task", False), ("Story", False)]
)
def test_an_issue_type_of_the_project_that_needs_no_parent_is_accepted(issue_type: str, is_there: bool) -> None:
    answers = [MYSELF, ALLOWED, ISSUE_TYPES, *([FIELDS] if is_there else [])]
    result, _ = play(JIRA.validate(with_settings(CLOUD, issue_type=issue_type)), answers)
    assert result == (None if is_there else configuration("tracker_not_found", "issue_type"))


@pytest.mark.parametrize(
    "more",
    [
        [field("reporter", required=True)],
        [field("assignee", required=True)],
        [field("customfield_10010", required=True, has_default=True)],
        [field("customfield_10010"), None, {"fieldId": 7, "required": True}],
    ],
)
def test_a_field_that_jira_fills_in_is_not_missing(more: list[Any]) -> None:
    result, _ = play(JIRA.validate(CLOUD), [MYSELF, ALLOWED, ISSUE_TYPES, page([*OURS, *more])])
    assert result is None


@pytest.mark.parametrize(
    ("settings", "missing"),
    [({}, None), ({"assignee": "5b10"}, "assignee"), ({"priority_by_severity": {"high": "High"}}, "priority_by_severity")],
)
def test_a_field_must_be_on_the_screen_if_a_setting_sets_it(settings: dict[str, Any], missing: str | None) -> None:
    answers = [MYSELF, ALLOWED, ISSUE_TYPES, page(OURS[:3])]
    result, _ = play(JIRA.validate(with_settings(CLOUD, **settings)), answers)
    assert result == (None if missing is None else rejected(missing))


def test_lists_are_read_to_their_last_page() -> None:
    answers = [
        MYSELF,
        ALLOWED,
        page([TYPES[1]], total=2),
        page([TYPES[0]], total=2),
        page(OURS[:1], total=3),
        page(OURS[1:], total=3),
    ]
    result, requests = play(JIRA.validate(CLOUD), answers)
    assert result is None
    assert [request.url.partition("startAt=")[2] for request in requests[2:]] == [
        f"{n}&maxResults=200" for n in (0, 1, 0, 1)
    ]


# The official descriptions


@BOTH
def test_requests_match_the_official_description(access: TrackerAccess) -> None:
    access = with_settings(access, assignee="5b10", priority_by_severity={"high": "High"})
    _, [create] = play(JIRA.create(access, TICKET), [CREATED])
    _, [find] = play(JIRA.find(access, TICKET), [answer(200, {"issues": []})])
    _, validate = play(JIRA.validate(access), [MYSELF, ALLOWED, ISSUE_TYPES, FIELDS])
    for request in (find, *validate):
        assert complaints(access, request) == []
    # Data Center's description requires an object for every field, which no real Jira does.
    not_objects = [each for each in complaints(access, create) if not each.endswith("is not of type 'object'")]
    assert not_objects == []
    assert not complaints(access, create) or access.settings.get("api_version") == 2


# Limits


@pytest.mark.parametrize(
    ("headers", "held_until_s"),
    [
        ({}, None),
        ({"x_ratelimit_remaining": "1", "x_ratelimit_reset": "2026-01-31T12:00Z"}, None),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "2026-01-31T12:00Z"}, 1_769_860_800.0),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "2026-01-31T12:00:30.5Z"}, 1_769_860_830.5),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "soon"}, None),
        ({"x_ratelimit_remaining": "0"}, None),
    ],
)
def test_a_used_up_limit_holds_until_its_reset(headers: dict[str, str], held_until_s: float | None) -> None:
    assert answer(201, None, **headers).reset_at_s() == held_until_s


# Settings


def test_all_settings_are_read() -> None:
    settings = {
        "project": "SHOP",
        "issue_type": "Bug",
        "priority_by_severity": {"critical": "Highest", "info": "Lowest"},
        "assignee": "5b10",
        "api_version": 2,
        "labels": ["web"],
        "on_fixed": "comment",
        "api_base": "https://jira.example.com/rest/api/2",
    }
    assert JIRA.settings_form().read(settings) == settings


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "/project"),
        ({"project": "Web shop"}, "/project"),
        ({"project": 'SHOP" OR project = "HR'}, "/project"),
        ({"project": "SHOP", "tracker": "Bug"}, ""),
        ({"project": "SHOP", "api_version": 1}, "/api_version"),
        ({"project": "SHOP", "api_version": "3"}, "/api_version"),
        ({"project": "SHOP", "priority_by_severity": {"urgent": "High"}}, "/priority_by_severity"),
        ({"project": "SHOP", "priority_by_severity": {"high": 1}}, "/priority_by_severity/high"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        JIRA.settings_form().read(settings)
    assert [problem.path for problem in refused.value.problems] == [path]


@pytest.mark.parametrize(
    ("base_url", "settings", "problem"),
    [
        (SITE, {}, None),
        (HOST, {"api_version": 2}, None),
        ("https://jira.example.com", {"api_version": 2}, None),
        ("http://127.0.0.1:8080", {}, None),
        (f"{SITE}/browse/SHOP-1", {}, f"base_url is the address of Jira, not of a page in it: {SITE}"),
        (f"{SITE}/jira", {}, f"base_url is the address of Jira, not of a page in it: {SITE}"),
        (f"{HOST}/projects/SHOP", {}, "base_url is the address of Jira, not of a page in it: https://jira.example.com"),
        (f"{HOST}?filter=1", {}, "base_url is the address of Jira, not of a page in it: https://jira.example.com"),
        (SITE, {"api_version": 2}, "api_version 2 is for Jira Data Center; Jira Cloud has api_version 3."),
    ],
)
def test_a_url_that_is_not_jiras_address_is_explained(base_url: str, settings: dict[str, Any], problem: str | None) -> None:
    assert JIRA.problem_of(base_url, {"project": "SHOP", **settings}) == problem
