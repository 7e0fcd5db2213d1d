"""GitHub: the requests, the meaning of each response, and how an issue is found again."""

import json
from typing import Any

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
from schemas.trackers.github import MAX_PAGES, PAGE_ENTRIES, GitHubTracker
from schemas.version import VERSION
from tests.support.trackers.descriptions import description_of
from tests.support.trackers.steps import answer, play

GITHUB = GitHubTracker()
API = "https://api.github.com"
#: Its export was created at 2026-01-31T12:00:00Z.
MARKER = "exp_01KG9YS7G061SQWPCHNYBQC8F2"
TICKET = TrackerTicket(
    MARKER, "A form has no label", "The field has no label.", "high", labels=("website-risk", "severity:high")
)
PLAIN = TrackerTicket(MARKER, "A form has no label", "The field has no label.", "high")
PAGE = "https://github.com/acme/shop/issues/7"
USER = answer(200, {"login": "risk-bot"})
CONFIGURATION, PAYLOAD, RETRY = FailureKind.CONFIGURATION, FailureKind.PAYLOAD, FailureKind.RETRY


def access_to(base_url: str = "https://github.com/acme/shop", **settings: Any) -> TrackerAccess:
    return TrackerAccess(base_url, settings, "ghp_of_the_tests")


def issue(number: Any = 7, body: Any = f"marker {MARKER}", **members: Any) -> dict[str, Any]:
    return {"number": number, "html_url": f"https://github.com/acme/shop/issues/{number}", "body": body, **members}


def created(access: TrackerAccess, ticket: TrackerTicket, *answers: TrackerResponse) -> Any:
    return play(GITHUB.create(access, ticket), answers)[0]


def require_described(requests: list[TrackerRequest], api_base: str = API) -> None:
    """Require that a request matches the official description, which does not contain the check of an assignee."""
    for request in requests:
        expected = ["not described"] if "/assignees/" in request.url else []
        assert description_of("github-issues.openapi.json").complaints(request, api_base) == expected


def query_of(request: TrackerRequest) -> dict[str, str]:
    return dict(each.split("=") for each in request.url.partition("?")[2].split("&"))


# --- the target


@pytest.mark.parametrize(
    ("base_url", "settings", "api"),
    [
        ("https://github.com/acme/shop", {}, "https://api.github.com"),
        ("https://www.github.com/acme/shop", {}, "https://api.github.com"),
        ("https://github.example.com/acme/shop", {}, "https://github.example.com/api/v3"),
        ("https://github.example.com:8443/acme/shop", {}, "https://github.example.com:8443/api/v3"),
        ("https://acme.ghe.com/acme/shop", {}, "https://api.acme.ghe.com"),
        ("https://github.example.com/acme/shop", {"api_base": "https://api.example.com/gh/"}, "https://api.example.com/gh"),
    ],
)
def test_the_url_of_the_api_is_derived_from_the_host(base_url: str, settings: dict[str, Any], api: str) -> None:
    assert GITHUB.problem_of(base_url, settings) is None
    _, requests = play(GITHUB.create(access_to(base_url, **settings), PLAIN), [answer(201, issue())])
    assert requests[0].url == f"{api}/repos/acme/shop/issues"
    require_described(requests, api)


@pytest.mark.parametrize(
    "base_url",
    [
        "https://github.com",
        "https://github.com/acme",
        "https://github.com/acme/shop/issues",
        "https://github.com/acme/shop/issues/7",
        "https://github.com/acme/shop?tab=readme",
        "https://github.com/acme/sh%20op",
        "https://github.com/acme/..",
        "https://github.com/acme.corp/shop",
    ],
)
def test_urls_that_are_no_page_of_a_repository_are_refused(base_url: str) -> None:
    problem = GITHUB.problem_of(base_url, {})
    assert problem == "base_url is the page of a repository, such as https://github.com/acme/shop, and of nothing in it."


def test_the_url_of_a_clone_is_refused() -> None:
    problem = GITHUB.problem_of("https://github.com/acme/shop.git", {})
    assert problem is not None


def test_the_settings_are_read() -> None:
    settings = {
        "labels": ["a11y"],
        "assignees": ["octocat"],
        "on_fixed": "close",
        "api_base": "https://github.example.com/api/v3",
    }
    assert GITHUB.settings_form().read(settings) == settings
    assert GITHUB.settings_form().read({}) == {}


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"project": "SHOP"}, ""),
        ({"labels": "a11y"}, "/labels"),
        ({"labels": [""]}, "/labels/0"),
        ({"assignees": ["octocat"] * 11}, "/assignees"),
        ({"assignees": [7]}, "/assignees/0"),
        ({"on_fixed": "delete"}, "/on_fixed"),
        ({"api_base": "https://user@example.com"}, "/api_base"),
        ({"api_base": "https://example.com/?q"}, "/api_base"),
    ],
)
def test_invalid_settings_are_refused_with_their_path(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        GITHUB.settings_form().read(settings, lambda _: True)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_a_new_target_stays_below_the_limit_of_creations() -> None:
    assert GITHUB.max_per_minute == 60


# --- create


def test_an_issue_has_the_ticket_its_labels_and_the_settings() -> None:
    access = access_to(labels=["a11y", "Website-Risk"], assignees=["octocat"])
    result, requests = play(GITHUB.create(access, TICKET), [answer(201, issue())])
    assert result == TrackerIssue("7", PAGE)
    (request,) = requests
    assert (request.method, request.creates) == ("POST", True)
    body = json.loads(request.body)
    assert body["title"] == "A form has no label"
    assert MARKER in body["body"]
    assert "The field has no label." in body["body"]
    assert body["labels"] == ["website-risk", "severity:high", "a11y"]
    assert body["assignees"] == ["octocat"]
    require_described(requests)


def test_every_request_has_the_headers_that_github_requires() -> None:
    _, requests = play(GITHUB.find(access_to(), TICKET), [USER, answer(200, [])])
    _, creating = play(GITHUB.create(access_to(), TICKET), [answer(201, issue())])
    for request in [*requests, *creating]:
        assert request.headers["User-Agent"] == f"RiskRelay/{VERSION}"
        assert request.headers["Accept"] == "application/vnd.github+json"
        assert request.headers["X-GitHub-Api-Version"] == "2022-11-28"
        assert request.headers["Authorization"] == "Bearer ghp_of_the_tests"
        assert "ghp_of_the_tests" not in request.url
        assert b"ghp_of_the_tests" not in request.body


def test_texts_are_shortened_to_the_limits_of_github() -> None:
    long = TrackerTicket(MARKER, "t" * 300, "d" * 200_000, "high", labels=("l" * 80, "a, b,c", " \n ", "A b C"))
    _, requests = play(GITHUB.create(access_to(), long), [answer(201, issue())])
    body = json.loads(requests[0].body)
    assert len(body["title"]) == 256
    assert len(body["body"]) <= 65_536
    assert MARKER in body["body"]
    assert body["labels"] == ["l" * 49 + "…", "a b c"]
    assert "assignees" not in body


def test_a_response_with_the_longest_text_is_read() -> None:
    assert created(access_to(), PLAIN, answer(201, issue(body="😀" * 65_536))) == TrackerIssue("7", PAGE)


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"<html>",
        b"[" * 100_000,
        b"9" * 5_000,
        [],
        "7",
        {},
        issue(number="7"),
        issue(number=7.0),
        issue(number=True),
        issue(number=0),
        issue(number=-7),
        issue(number=2**63),
        issue(html_url="https://github.com/acme/other/issues/7"),
        issue(html_url="https://github.com/acme/shop/issues/8"),
    ],
)
def test_a_success_that_names_no_issue_of_the_repository_is_an_unknown_outcome(body: Any) -> None:
    assert created(access_to(), PLAIN, answer(201, body)) is None


@pytest.mark.parametrize(
    "url",
    [None, 7, "javascript:alert(1)/acme/shop/issues/7", "https://github.com/\n/issues/7", "https://g.com/" + "a" * 500],
)
def test_a_url_that_may_not_be_shown_is_replaced_by_our_own(url: Any) -> None:
    assert created(access_to(), PLAIN, answer(201, issue(html_url=url))) == TrackerIssue("7", PAGE)


def test_names_are_compared_as_github_compares_them() -> None:
    url = "https://github.com/Acme/Shop/issues/7"
    assert created(access_to(), PLAIN, answer(201, issue(html_url=url))) == TrackerIssue("7", url)


VALIDATION = {"message": "Validation Failed", "documentation_url": "https://docs.github.com/rest"}
SECONDARY = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (answer(301, {"message": "Moved Permanently"}), TrackerFailure(CONFIGURATION, "tracker_moved")),
        (answer(307), TrackerFailure(CONFIGURATION, "tracker_moved")),
        (answer(308), TrackerFailure(CONFIGURATION, "tracker_moved")),
        (answer(401, {"message": "Bad credentials"}), TrackerFailure(CONFIGURATION, "tracker_token_rejected")),
        (
            answer(403, {"message": "Resource not accessible by personal access token"}, x_ratelimit_remaining="4999"),
            TrackerFailure(CONFIGURATION, "tracker_forbidden"),
        ),
        (answer(403), TrackerFailure(CONFIGURATION, "tracker_forbidden")),
        (
            answer(403, {"message": "Repository was archived so is read-only."}),
            TrackerFailure(CONFIGURATION, "tracker_archived"),
        ),
        (answer(404, {"message": "Not Found"}), TrackerFailure(CONFIGURATION, "tracker_not_found")),
        (answer(410, {"message": "Issues are disabled"}), TrackerFailure(CONFIGURATION, "tracker_issues_disabled")),
        (
            answer(403, {"message": "API rate limit exceeded"}, x_ratelimit_remaining="0", x_ratelimit_reset="1795000000"),
            TrackerFailure(RETRY, "tracker_rate_limited", retry_at_s=1_795_000_000.0, is_rate_limit=True),
        ),
        (
            answer(403, SECONDARY, retry_after="90", x_ratelimit_remaining="4000"),
            TrackerFailure(RETRY, "tracker_rate_limited", retry_after_s=90.0, is_rate_limit=True),
        ),
        (answer(403, SECONDARY), TrackerFailure(RETRY, "tracker_rate_limited", is_rate_limit=True)),
        (
            answer(403, {"message": "Forbidden"}, x_ratelimit_remaining="0", x_ratelimit_reset="soon"),
            TrackerFailure(RETRY, "tracker_rate_limited", is_rate_limit=True),
        ),
        (answer(429), TrackerFailure(RETRY, "tracker_rate_limited", is_rate_limit=True)),
        (
            answer(429, None, retry_after="7", x_ratelimit_remaining="0", x_ratelimit_reset="1795000000"),
            TrackerFailure(RETRY, "tracker_rate_limited", 7.0, is_rate_limit=True),
        ),
        (
            answer(422, VALIDATION | {"errors": [{"code": "custom", "message": "was submitted too quickly"}]}),
            TrackerFailure(RETRY, "tracker_rate_limited", is_rate_limit=True),
        ),
        (answer(400, {"message": "Problems parsing JSON"}), TrackerFailure(PAYLOAD, "tracker_rejected")),
        (
            answer(422, VALIDATION | {"errors": [{"resource": "Issue", "code": "custom", "field": "title"}]}),
            TrackerFailure(PAYLOAD, "tracker_rejected", field="title"),
        ),
        (
            # The last request before the rate limit; the error is about the text.
            answer(
                422,
                VALIDATION | {"errors": ["odd", {"field": 7}, {"resource": "Issue", "field": "body"}]},
                x_ratelimit_remaining="0",
            ),
            TrackerFailure(PAYLOAD, "tracker_rejected", field="description"),
        ),
        (answer(422, VALIDATION | {"errors": {"field": "title"}}), TrackerFailure(PAYLOAD, "tracker_rejected")),
        (answer(500), TrackerFailure(RETRY, "tracker_unavailable")),
        (answer(503, None, retry_after="120"), TrackerFailure(RETRY, "tracker_unavailable", retry_after_s=120.0)),
    ],
)
def test_each_refusal_has_its_meaning(response: TrackerResponse, expected: TrackerFailure) -> None:
    assert created(access_to(), PLAIN, response) == expected


@pytest.mark.parametrize(
    "refusal",
    [
        answer(403, {"message": "You do not have permission.", "errors": [{"resource": "Repository", "field": "label"}]}),
        answer(422, VALIDATION | {"errors": [{"resource": "Label", "code": "invalid", "field": "name"}]}),
        answer(422, VALIDATION | {"errors": [{"resource": "Issue", "code": "invalid", "field": "assignees"}]}),
    ],
)
def test_a_refusal_of_labels_or_assignees_alone_does_not_stop_the_ticket(refusal: TrackerResponse) -> None:
    access = access_to(assignees=["nobody"])
    result, requests = play(GITHUB.create(access, TICKET), [refusal, answer(201, issue())])
    assert result == TrackerIssue("7", PAGE)
    assert {*json.loads(requests[1].body)} == {"title", "body"}
    assert [request.creates for request in requests] == [True, True]
    require_described(requests)


def test_a_refusal_of_the_second_request_is_returned() -> None:
    refusal = answer(422, VALIDATION | {"errors": [{"resource": "Issue", "field": "assignees"}]})
    assert created(access_to(assignees=["nobody"]), TICKET, refusal, answer(404)) == TrackerFailure(
        CONFIGURATION, "tracker_not_found"
    )


# --- find


def test_the_issue_is_found_by_its_text_among_those_of_the_tokens_user() -> None:
    listed = [issue(9, "another"), issue(8, None), issue(7), issue(6, "earlier")]
    result, requests = play(GITHUB.find(access_to(), TICKET), [USER, answer(200, listed)])
    assert result == TrackerIssue("7", PAGE)
    assert requests[0].url == f"{API}/user"
    assert query_of(requests[1]) == {
        "state": "all",
        "sort": "created",
        "direction": "desc",
        "per_page": "50",
        "creator": "risk-bot",
        "since": "2026-01-31T11%3A00%3A00Z",
        "page": "1",
    }
    require_described(requests)
    assert not any(request.creates for request in requests)


def test_of_several_issues_with_the_marker_the_oldest_is_found() -> None:
    result, _ = play(GITHUB.find(access_to(), TICKET), [USER, answer(200, [issue(9), issue(7), issue(8)])])
    assert result == TrackerIssue("7", PAGE)


@pytest.mark.parametrize(
    "other",
    [
        issue(pull_request={"url": f"{API}/repos/acme/shop/pulls/7"}),
        issue(html_url="https://github.com/acme/other/issues/7"),
        issue(body=[MARKER]),
        issue(body=f"{MARKER[:-1]}Z"),
        issue(body="", title=MARKER, comments=[{"body": MARKER}]),
        MARKER,
        None,
    ],
)
def test_issues_without_the_marker_are_not_found(other: Any) -> None:
    result, _ = play(GITHUB.find(access_to(), TICKET), [USER, answer(200, [other])])
    assert result is None


def test_pages_are_read_until_the_issue_is_found() -> None:
    full = answer(200, [issue(100 + each, "another") for each in range(PAGE_ENTRIES)])
    short_with_next = answer(200, [issue(99, "another")], link='<https://api.github.com/x>; rel="next"')
    result, requests = play(GITHUB.find(access_to(), TICKET), [USER, full, short_with_next, answer(200, [issue()])])
    assert result == TrackerIssue("7", PAGE)
    assert [query_of(request)["page"] for request in requests[1:]] == ["1", "2", "3"]


def test_the_pages_are_bounded() -> None:
    full = answer(200, [issue(100 + each, "another") for each in range(PAGE_ENTRIES)])
    result, requests = play(GITHUB.find(access_to(), TICKET), [USER, *[full] * MAX_PAGES])
    assert result is None
    assert len(requests) == 1 + MAX_PAGES


@pytest.mark.parametrize("user", [answer(403), answer(404), answer(200, []), answer(200, {"login": "a&b=c"})])
def test_without_the_user_of_the_token_all_issues_are_searched(user: TrackerResponse) -> None:
    result, requests = play(GITHUB.find(access_to(), TICKET), [user, answer(200, [issue()])])
    assert result == TrackerIssue("7", PAGE)
    assert "creator" not in query_of(requests[1])


@pytest.mark.parametrize("marker", ["exp_odd", "exp_7ZZZZZZZZZ61SQWPCHNYBQC8F2", "exp_01KG9YS7G061SQWPCHNYBQC8FÜ"])
def test_for_an_export_id_without_a_time_all_issues_are_searched(marker: str) -> None:
    ticket = TrackerTicket(marker, "A", "B", "low")
    result, requests = play(GITHUB.find(access_to(), ticket), [USER, answer(200, [issue(body=marker)])])
    assert result == TrackerIssue("7", PAGE)
    assert "since" not in query_of(requests[1])


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([answer(401)], "tracker_token_rejected"),
        ([answer(403, SECONDARY)], "tracker_rate_limited"),
        ([answer(502)], "tracker_unavailable"),
        ([USER, answer(404)], "tracker_not_found"),
        ([USER, answer(403, SECONDARY)], "tracker_rate_limited"),
        ([USER, answer(200, {"message": "odd"})], "tracker_unavailable"),
        ([USER, answer(200, b"[{}, {")], "tracker_unavailable"),
    ],
)
def test_a_lookup_that_fails_does_not_say_that_there_is_no_issue(answers: list[TrackerResponse], code: str) -> None:
    result, _ = play(GITHUB.find(access_to(), TICKET), answers)
    assert isinstance(result, TrackerFailure)
    assert result.code == code


def test_a_list_that_is_too_long_to_be_read_is_not_taken_for_an_empty_one() -> None:
    result, _ = play(GITHUB.find(access_to(), TICKET), [USER, answer(200, [issue(body="x" * 5_000_000)])])
    assert result == TrackerFailure(RETRY, "tracker_unavailable")


# --- validate

REPOSITORY: dict[str, Any] = {"full_name": "acme/shop", "private": True, "has_issues": True, "archived": False}


def test_a_valid_target_passes_its_validation_without_a_change() -> None:
    access = access_to(assignees=["octocat", "hubot"])
    result, requests = play(GITHUB.validate(access), [answer(200, REPOSITORY), answer(200, []), answer(204), answer(204)])
    assert result is None
    assert {request.method for request in requests} == {"GET"}
    assert [request.url.removeprefix(API) for request in requests] == [
        "/repos/acme/shop",
        "/repos/acme/shop/issues?per_page=1",
        "/repos/acme/shop/assignees/octocat",
        "/repos/acme/shop/assignees/hubot",
    ]
    require_described(requests)


@pytest.mark.parametrize(
    ("settings", "answers", "code", "field"),
    [
        ({}, [answer(401)], "tracker_token_rejected", None),
        ({}, [answer(404)], "tracker_not_found", None),
        ({}, [answer(301)], "tracker_moved", None),
        ({}, [answer(200, b"<html>")], "tracker_not_found", "base_url"),
        ({}, [answer(200, REPOSITORY | {"archived": True})], "tracker_archived", None),
        ({}, [answer(200, REPOSITORY | {"has_issues": False})], "tracker_issues_disabled", None),
        ({}, [answer(200, REPOSITORY, x_oauth_scopes="public_repo, read:org")], "tracker_forbidden", None),
        ({}, [answer(200, REPOSITORY), answer(403)], "tracker_forbidden", None),
        ({}, [answer(200, REPOSITORY), answer(500)], "tracker_unavailable", None),
        (
            {"labels": ["a11y"]},
            [answer(200, REPOSITORY | {"permissions": {"pull": True, "push": False}})],
            "tracker_forbidden",
            "labels",
        ),
        (
            {"assignees": ["octocat"]},
            [answer(200, REPOSITORY | {"permissions": {"pull": True}})],
            "tracker_forbidden",
            "assignees",
        ),
        (
            {"assignees": ["nobody"]},
            [answer(200, REPOSITORY), answer(200, []), answer(404)],
            "tracker_not_found",
            "assignees",
        ),
        ({"assignees": ["nobody"]}, [answer(200, REPOSITORY), answer(200, []), answer(401)], "tracker_token_rejected", None),
    ],
)
def test_missing_requirements_are_reported(
    settings: dict[str, Any], answers: list[TrackerResponse], code: str, field: str | None
) -> None:
    result, _ = play(GITHUB.validate(access_to(**settings)), answers)
    assert isinstance(result, TrackerFailure)
    assert (result.code, result.field) == (code, field)


@pytest.mark.parametrize(
    "response",
    [
        answer(200, REPOSITORY, x_oauth_scopes="repo, gist"),
        answer(200, REPOSITORY | {"private": False}, x_oauth_scopes="public_repo"),
        answer(200, REPOSITORY, x_oauth_scopes=""),
        *(answer(200, REPOSITORY | {"permissions": {role: True}}) for role in ("triage", "push", "maintain", "admin")),
        answer(200, REPOSITORY | {"permissions": "odd"}),
        answer(200, {}),
    ],
)
def test_sufficient_or_unreported_permissions_pass_the_validation(response: TrackerResponse) -> None:
    result, _ = play(GITHUB.validate(access_to(labels=["a11y"])), [response, answer(200, [])])
    assert result is None


# --- limits


@pytest.mark.parametrize(
    ("headers", "until"),
    [
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "1795000000"}, 1_795_000_000.0),
        ({"x_ratelimit_remaining": "1", "x_ratelimit_reset": "1795000000"}, None),
        ({"x_ratelimit_remaining": "0"}, None),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "-1"}, None),
        ({}, None),
    ],
)
def test_the_last_allowed_request_holds_the_target(headers: dict[str, str], until: float | None) -> None:
    assert answer(201, issue(), **headers).reset_at_s() == until
