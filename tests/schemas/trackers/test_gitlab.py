"""GitLab: the requests, the meaning of each response, and how an issue is found again."""

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from schemas.base.errors import ValidationFailed
from schemas.trackers.exchange import (
    FailureKind,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
    TrackerRequest,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.gitlab import GitLabTracker
from tests.support.trackers.descriptions import description_of
from tests.support.trackers.steps import answer, play

GITLAB = GitLabTracker()
HOST = "https://gitlab.com"
PROJECT = f"{HOST}/api/v4/projects/group%2Fsub%2Fshop"
MARKER = "exp_01KG9YS7G061SQWPCHNYBQC8F2"
TICKET = TrackerTicket(
    MARKER, "A form has no label", "The field has no label.", "high", labels=("website-risk", "severity:high")
)
PAGE = "https://gitlab.com/group/sub/shop/-/issues/7"
CONFIGURATION, PAYLOAD, RETRY = FailureKind.CONFIGURATION, FailureKind.PAYLOAD, FailureKind.RETRY


def access_to(base_url: str = "https://gitlab.com/group/sub/shop", **settings: Any) -> TrackerAccess:
    return TrackerAccess(base_url, settings, "glpat_of_the_tests")


def issue(number: Any = 7, description: Any = f"marker {MARKER}", **members: Any) -> dict[str, Any]:
    page = f"https://gitlab.com/group/sub/shop/-/issues/{number}"
    return {"id": 1000, "iid": number, "web_url": page, "description": description, **members}


def created(access: TrackerAccess, *answers: TrackerResponse) -> Any:
    return play(GITLAB.create(access, TICKET), answers)[0]


def require_described(requests: list[TrackerRequest], host: str = HOST) -> None:
    """Require that a request matches the official description, which was reduced to issues and tokens."""
    for request in requests:
        path = urlsplit(request.url).path
        is_described = path.endswith(("/issues", "/personal_access_tokens/self"))
        expected = [] if is_described else ["not described"]
        assert description_of("gitlab-issues.openapi.json").complaints(request, host) == expected


def query_of(request: TrackerRequest) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(request.url).query))


# --- the target


@pytest.mark.parametrize(
    ("base_url", "settings", "url"),
    [
        ("https://gitlab.com/group/shop", {}, "https://gitlab.com/api/v4/projects/group%2Fshop/issues"),
        ("https://gitlab.com/a/b/c/shop.x", {}, "https://gitlab.com/api/v4/projects/a%2Fb%2Fc%2Fshop.x/issues"),
        ("https://git.example.com:8443/group/shop", {}, "https://git.example.com:8443/api/v4/projects/group%2Fshop/issues"),
        (
            "https://example.com/gitlab/group/shop",
            {"api_base": "https://example.com/gitlab/api/v4/"},
            "https://example.com/gitlab/api/v4/projects/group%2Fshop/issues",
        ),
        (
            "https://example.com/gitlab-org/shop",
            {"api_base": "https://example.com/gitlab/api/v4"},
            "https://example.com/gitlab/api/v4/projects/gitlab-org%2Fshop/issues",
        ),
        (
            "https://gitlab.example.com/group/shop",
            {"api_base": "https://gateway.example.com/v4"},
            "https://gateway.example.com/v4/projects/group%2Fshop/issues",
        ),
        (
            "https://gitlab.example.com/tools/web/shop",
            {"api_base": "https://gateway.example.com/tools/api/v4"},
            "https://gateway.example.com/tools/api/v4/projects/tools%2Fweb%2Fshop/issues",
        ),
        ("https://gitlab.com/group/.gitlab", {}, "https://gitlab.com/api/v4/projects/group%2F.gitlab/issues"),
    ],
)
def test_the_url_of_the_api_is_derived_from_the_host_and_its_prefix(
    base_url: str, settings: dict[str, Any], url: str
) -> None:
    assert GITLAB.problem_of(base_url, settings) is None
    _, requests = play(GITLAB.create(access_to(base_url, **settings), TICKET), [answer(201, issue())])
    assert [request.url for request in requests] == [url]


@pytest.mark.parametrize(
    ("base_url", "settings"),
    [
        ("https://gitlab.com", {}),
        ("https://gitlab.com/group", {}),
        ("https://gitlab.com/group/shop/-/issues", {}),
        ("https://gitlab.com/group/shop/-/issues/7", {}),
        ("https://gitlab.com/group/shop?sort=asc", {}),
        ("https://gitlab.com/group/sh%20op", {}),
        ("https://gitlab.com/group//shop", {}),
        ("https://gitlab.com/group/..", {}),
        ("https://example.com/gitlab/shop", {"api_base": "https://example.com/gitlab/api/v4"}),
    ],
)
def test_urls_that_are_no_page_of_a_project_are_refused(base_url: str, settings: dict[str, Any]) -> None:
    problem = GITLAB.problem_of(base_url, settings)
    assert problem == "base_url is the page of a project, such as https://gitlab.com/group/shop, and of nothing in it."


def test_the_url_of_a_clone_is_refused() -> None:
    problem = GITLAB.problem_of("https://gitlab.com/group/shop.git", {})
    assert problem is not None


def test_valid_settings_are_read_and_unknown_ones_are_refused() -> None:
    settings = {"labels": ["a11y"], "assignees": ["jane.doe"], "on_fixed": "nothing"}
    assert GITLAB.settings_form().read(settings) == settings
    with pytest.raises(ValidationFailed):
        GITLAB.settings_form().read({"assignee": "jane.doe"})


# --- create


def test_an_issue_has_the_ticket_its_labels_and_the_settings() -> None:
    access = access_to(labels=["a11y", "Website-Risk"], assignees=["Jane"])
    users = answer(200, [{"id": 4, "username": "janet"}, {"id": 5, "username": "jane"}])
    result, requests = play(GITLAB.create(access, TICKET), [users, answer(201, issue())])
    assert result == TrackerIssue("7", PAGE)
    assert requests[0].url == "https://gitlab.com/api/v4/users?username=Jane"
    body = json.loads(requests[1].body)
    assert body["title"] == "A form has no label"
    assert MARKER in body["description"]
    assert body["labels"] == ["website-risk", "severity:high", "a11y"]
    assert body["assignee_ids"] == [5]
    assert [request.creates for request in requests] == [False, True]
    require_described(requests)
    for request in requests:
        assert request.headers["PRIVATE-TOKEN"] == "glpat_of_the_tests"
        assert "glpat_of_the_tests" not in request.url
        assert b"glpat_of_the_tests" not in request.body


def test_texts_are_shortened_to_the_limits_of_gitlab_and_labels_lose_their_commas() -> None:
    long = TrackerTicket(MARKER, "t" * 300, "d" * 200_000, "high", labels=("l" * 300, "a, b,c", ",", "A b C"))
    _, requests = play(GITLAB.create(access_to(), long), [answer(201, issue())])
    body = json.loads(requests[0].body)
    assert len(body["title"]) == 255
    assert len(body["description"]) <= 65_536
    assert MARKER in body["description"]
    assert body["labels"] == ["l" * 254 + "…", "a b c"]
    assert "assignee_ids" not in body


@pytest.mark.parametrize(
    "users",
    [
        answer(200, []),
        answer(200, {"id": 5, "username": "jane"}),
        answer(200, [None, {"id": "5", "username": "jane"}, {"id": True, "username": "jane"}, {"id": 5, "username": 7}]),
        answer(200, [{"id": 5, "username": "janet"}]),
        answer(403),
        answer(404),
    ],
)
def test_an_issue_is_created_without_an_assignee_who_is_not_found(users: TrackerResponse) -> None:
    result, requests = play(GITLAB.create(access_to(assignees=["jane"]), TICKET), [users, answer(201, issue())])
    assert result == TrackerIssue("7", PAGE)
    assert "assignee_ids" not in json.loads(requests[1].body)


@pytest.mark.parametrize(
    ("users", "code"), [(401, "tracker_token_rejected"), (429, "tracker_rate_limited"), (502, "tracker_unavailable")]
)
def test_a_refusal_of_every_request_creates_nothing(users: int, code: str) -> None:
    result, _ = play(GITLAB.create(access_to(assignees=["jane"]), TICKET), [answer(users)])
    assert isinstance(result, TrackerFailure)
    assert result.code == code


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"<html>",
        b"[" * 100_000,
        [],
        {},
        {"id": 7, "web_url": PAGE},
        issue(number="7"),
        issue(number=True),
        issue(number=0),
        issue(number=2**63),
        issue(web_url="https://gitlab.com/group/other/-/issues/7"),
        issue(web_url="https://gitlab.com/group/sub/shop/-/issues/8"),
        issue(web_url="https://gitlab.com/group/sub/shop-2/-/issues/7"),
    ],
)
def test_a_success_that_names_no_issue_of_the_project_is_an_unknown_outcome(body: Any) -> None:
    assert created(access_to(), answer(201, body)) is None


@pytest.mark.parametrize(
    "url", ["https://gitlab.com/Group/Sub/Shop/-/work_items/7", "https://gitlab.com/group/sub/shop/issues/7"]
)
def test_gitlabs_own_url_of_an_issue_is_kept(url: str) -> None:
    assert created(access_to(), answer(201, issue(web_url=url))) == TrackerIssue("7", url)


@pytest.mark.parametrize("url", [None, 7, "javascript:alert(1)", "https://gitlab.com/" + "a" * 500])
def test_a_url_that_may_not_be_shown_is_replaced_by_our_own(url: Any) -> None:
    assert created(access_to(), answer(201, issue(web_url=url))) == TrackerIssue("7", PAGE)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (answer(301), TrackerFailure(CONFIGURATION, "tracker_moved")),
        (answer(302), TrackerFailure(CONFIGURATION, "tracker_moved")),
        (
            answer(405, {"message": "405 Method Not Allowed - Non GET methods are not allowed for moved projects"}),
            TrackerFailure(CONFIGURATION, "tracker_moved"),
        ),
        (answer(401, {"message": "401 Unauthorized"}), TrackerFailure(CONFIGURATION, "tracker_token_rejected")),
        (answer(403, {"error": "insufficient_scope"}), TrackerFailure(CONFIGURATION, "tracker_forbidden")),
        (answer(404, {"message": "404 Project Not Found"}), TrackerFailure(CONFIGURATION, "tracker_not_found")),
        (
            answer(400, {"message": {"title": ["is too long (maximum is 255 characters)"]}}),
            TrackerFailure(PAYLOAD, "tracker_rejected", field="title"),
        ),
        (answer(400, {"error": "description is invalid"}), TrackerFailure(PAYLOAD, "tracker_rejected", field="description")),
        (
            answer(400, {"message": {"error": "Your issue has been recognized as spam and has been discarded."}}),
            TrackerFailure(PAYLOAD, "tracker_rejected"),
        ),
        (
            answer(400, {"message": {"assignee_ids": ["odd"]}}),
            TrackerFailure(PAYLOAD, "tracker_rejected", field="assignees"),
        ),
        (answer(400, {"message": "odd"}), TrackerFailure(PAYLOAD, "tracker_rejected")),
        (answer(422), TrackerFailure(PAYLOAD, "tracker_rejected")),
        (answer(429, b"Retry later"), TrackerFailure(RETRY, "tracker_rate_limited", is_rate_limit=True)),
        (answer(429, retry_after="7"), TrackerFailure(RETRY, "tracker_rate_limited", 7.0, is_rate_limit=True)),
        (
            answer(429, ratelimit_remaining="0", ratelimit_reset="1795000000"),
            TrackerFailure(RETRY, "tracker_rate_limited", retry_at_s=1_795_000_000.0, is_rate_limit=True),
        ),
        (answer(500), TrackerFailure(RETRY, "tracker_unavailable")),
        (answer(503, retry_after="120"), TrackerFailure(RETRY, "tracker_unavailable", 120.0)),
    ],
)
def test_each_refusal_has_its_meaning(response: TrackerResponse, expected: TrackerFailure) -> None:
    assert created(access_to(), response) == expected


# --- find


def test_the_issue_is_found_by_its_description() -> None:
    listed = [issue(5, "another"), issue(6, None), issue(9), issue(7)]
    result, requests = play(GITLAB.find(access_to(), TICKET), [answer(200, listed)])
    assert result == TrackerIssue("7", PAGE)
    assert requests[0].url.startswith(f"{PROJECT}/issues?")
    assert query_of(requests[0]) == {
        "search": MARKER,
        "in": "description",
        "state": "all",
        "order_by": "created_at",
        "sort": "asc",
        "per_page": "50",
    }
    require_described(requests)


def test_an_issue_missing_in_the_search_is_found_among_the_newest_of_the_user() -> None:
    result, requests = play(GITLAB.find(access_to(), TICKET), [answer(200, []), answer(200, [issue(8, "another"), issue()])])
    assert result == TrackerIssue("7", PAGE)
    assert query_of(requests[1]) == {
        "scope": "created_by_me",
        "state": "all",
        "order_by": "created_at",
        "sort": "desc",
        "per_page": "50",
    }
    require_described(requests)
    assert not any(request.creates for request in requests)


@pytest.mark.parametrize(
    "other",
    [
        issue(web_url="https://gitlab.com/group/other/-/issues/7"),
        issue(description=[MARKER]),
        issue(description=f"{MARKER[:-1]}Z"),
        issue(description="", title=MARKER, notes=[{"body": MARKER}]),
        MARKER,
        None,
    ],
)
def test_issues_without_the_marker_are_not_found(other: Any) -> None:
    result, _ = play(GITLAB.find(access_to(), TICKET), [answer(200, [other]), answer(200, [other])])
    assert result is None


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([answer(401)], "tracker_token_rejected"),
        ([answer(404)], "tracker_not_found"),
        ([answer(429)], "tracker_rate_limited"),
        ([answer(200, {"message": "odd"})], "tracker_unavailable"),
        ([answer(200, []), answer(200, b"[{}, {")], "tracker_unavailable"),
        ([answer(200, []), answer(502)], "tracker_unavailable"),
        ([answer(200, [issue(description="x" * 5_000_000)])], "tracker_unavailable"),
    ],
)
def test_a_lookup_that_fails_does_not_say_that_there_is_no_issue(answers: list[TrackerResponse], code: str) -> None:
    result, _ = play(GITLAB.find(access_to(), TICKET), answers)
    assert isinstance(result, TrackerFailure)
    assert result.code == code


# --- validate

TOKEN = answer(200, {"scopes": ["api"], "active": True})
FIELDS: dict[str, Any] = {
    "archived": False,
    "issues_enabled": True,
    "issues_access_level": "enabled",
    "permissions": {"project_access": {"access_level": 20}, "group_access": None},
}


def test_a_valid_target_passes_its_validation_without_a_change() -> None:
    users = answer(200, [{"id": 5, "username": "jane"}])
    result, requests = play(GITLAB.validate(access_to(assignees=["jane"])), [TOKEN, answer(200, FIELDS), users])
    assert result is None
    assert {request.method for request in requests} == {"GET"}
    assert [request.url for request in requests] == [
        f"{HOST}/api/v4/personal_access_tokens/self",
        PROJECT,
        f"{HOST}/api/v4/users?username=jane",
    ]
    require_described(requests)


@pytest.mark.parametrize(
    ("answers", "code", "field"),
    [
        ([answer(401)], "tracker_token_rejected", None),
        ([answer(429)], "tracker_rate_limited", None),
        ([answer(200, b"<html>")], "tracker_not_found", "base_url"),
        ([answer(200, {"scopes": ["read_api"]})], "tracker_forbidden", None),
        ([answer(200, {"scopes": []})], "tracker_forbidden", None),
        ([TOKEN, answer(404)], "tracker_not_found", None),
        ([answer(403), answer(403)], "tracker_forbidden", None),
        ([TOKEN, answer(301)], "tracker_moved", None),
        ([TOKEN, answer(200, [])], "tracker_not_found", "base_url"),
        ([TOKEN, answer(200, FIELDS | {"archived": True})], "tracker_archived", None),
        ([TOKEN, answer(200, FIELDS | {"issues_enabled": False})], "tracker_issues_disabled", None),
        ([TOKEN, answer(200, FIELDS | {"issues_access_level": "disabled"})], "tracker_issues_disabled", None),
        ([TOKEN, answer(200, FIELDS | {"permissions": {"group_access": {"access_level": 10}}})], "tracker_forbidden", None),
        ([TOKEN, answer(200, FIELDS), answer(200, [])], "tracker_not_found", "assignees"),
        ([TOKEN, answer(200, FIELDS), answer(503)], "tracker_unavailable", None),
    ],
)
def test_missing_requirements_are_reported(answers: list[TrackerResponse], code: str, field: str | None) -> None:
    result, _ = play(GITLAB.validate(access_to(assignees=["jane"])), answers)
    assert isinstance(result, TrackerFailure)
    assert (result.code, result.field) == (code, field)


@pytest.mark.parametrize(
    "answers",
    [
        [answer(404), answer(200, FIELDS)],
        [answer(403), answer(200, FIELDS)],
        [answer(200, {"scopes": [], "granular": True}), answer(200, FIELDS)],
        [answer(200, {"scopes": "odd"}), answer(200, FIELDS)],
        [TOKEN, answer(200, FIELDS | {"permissions": {"project_access": None, "group_access": None}})],
        [TOKEN, answer(200, FIELDS | {"permissions": {"project_access": {"access_level": 15}}})],
        [TOKEN, answer(200, FIELDS | {"permissions": "odd"})],
        [TOKEN, answer(200, {})],
    ],
)
def test_sufficient_or_unreported_permissions_pass_the_validation(answers: list[TrackerResponse]) -> None:
    assert play(GITLAB.validate(access_to()), answers)[0] is None


# --- limits


def test_the_last_allowed_request_holds_the_target() -> None:
    used_up = answer(201, issue(), ratelimit_remaining="0", ratelimit_reset="1795000000")
    assert used_up.reset_at_s() == 1_795_000_000.0
    assert answer(201, issue(), ratelimit_remaining="1", ratelimit_reset="1795000000").reset_at_s() is None
