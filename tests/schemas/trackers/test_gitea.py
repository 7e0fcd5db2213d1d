"""Gitea and Forgejo: the recorded responses of Gitea 1.26, its official description, and responses of other servers."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

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
from schemas.trackers.failures import (
    ARCHIVED,
    FORBIDDEN,
    ISSUES_DISABLED,
    MOVED,
    NOT_FOUND,
    RATE_LIMITED,
    REJECTED,
    TOKEN_REJECTED,
    UNAVAILABLE,
)
from schemas.trackers.gitea import MAX_PAGES, GiteaTracker
from tests.support.corpora import tracker_file
from tests.support.trackers.descriptions import description_of
from tests.support.trackers.hostile_responses import HOSTILE_RESPONSES
from tests.support.trackers.servers import TOKEN, FakeGitea, LostResponse, Refusal
from tests.support.trackers.steps import answer, perform, play

GITEA: Final = GiteaTracker()
TICKET: Final = TrackerTicket("exp_01gitea", "Form posts without a token", "The login form has no token.", "high")
API: Final = "https://gitea.example.com/api/v1"
REPOSITORY: Final = f"{API}/repos/owner/pub"
CONFIGURATION, PAYLOAD, RETRY = FailureKind.CONFIGURATION, FailureKind.PAYLOAD, FailureKind.RETRY


def access(base_url: str = "https://gitea.example.com/owner/pub", **settings: Any) -> TrackerAccess:
    return TrackerAccess(base_url, settings, TOKEN)


@cache
def exchanges() -> dict[str, Any]:
    file = tracker_file("gitea-1.26.0-exchanges.json")
    return {each["name"]: each["response"] for each in json.loads(file.read_bytes())["exchanges"]}


def recorded(name: str) -> TrackerResponse:
    response = exchanges()[name]
    headers = {header.lower(): value for header, value in response["headers"].items()}
    return answer(response["status"], response["body"] or None)._replace(headers=headers)


def listed(*issues: dict[str, Any], has_next: bool = False) -> TrackerResponse:
    return answer(200, list(issues), **({"link": '<https://gitea.example.com/?page=2>; rel="next"'} if has_next else {}))


def issue(number: int, body: str = f"text\n\n{TICKET.export_id}") -> dict[str, Any]:
    return {"number": number, "body": body, "html_url": "https://elsewhere.example/phishing", "pull_request": None}


def complaints(requests: list[TrackerRequest]) -> list[str]:
    described = description_of("gitea-issues.swagger2.json")
    return [each for request in requests for each in described.complaints(request, API)]


def test_an_issue_is_created_and_named_by_its_number() -> None:
    made, requests = play(GITEA.create(access(), TICKET), [recorded("create, writer, label id")])
    assert made == TrackerIssue("57", "https://gitea.example.com/owner/pub/issues/57")
    (request,) = requests
    assert (request.method, request.url, request.creates) == ("POST", f"{REPOSITORY}/issues", True)
    assert request.headers["Authorization"] == f"token {TOKEN}"
    body = json.loads(request.body)
    assert body["title"] == TICKET.title
    assert TICKET.export_id in body["body"]
    assert TOKEN not in request.url + request.body.decode()


def test_requests_match_the_official_description() -> None:
    labels = answer(200, [{"id": 1, "name": "risk"}])
    target = access(labels=["risk"], assignees=["ann"])
    _, created = play(GITEA.create(target, TICKET), [labels, recorded("create, writer, label id")])
    many = [listed(has_next=True)] * MAX_PAGES
    _, found = play(GITEA.find(target, TICKET), [*many, listed()])
    _, checked = play(GITEA.validate(access()), [recorded("create, empty title"), answer(403)])
    assert complaints([*created, *found, *checked]) == []


def test_the_labels_that_exist_are_set_by_their_ids() -> None:
    # Gitea sends no Link header here.
    first = answer(200, [{"id": 7, "name": "bug"}, {"id": 8, "name": "Risk"}], x_total_count="5")
    named = [{"id": 9, "name": "risk"}, {"id": 10, "name": "risk"}, {"id": "11", "name": "odd"}]
    second = answer(200, named, x_total_count="5")
    ticket = replace(TICKET, labels=("risk", "absent", "bug"))
    _, requests = play(
        GITEA.create(access(labels=["bug", "odd"]), ticket), [first, second, recorded("create, writer, label id")]
    )
    assert [request.url for request in requests[:2]] == [f"{REPOSITORY}/labels?limit=50&page={page}" for page in (1, 2)]
    assert json.loads(requests[2].body)["labels"] == [9, 7]


def test_labels_are_listed_until_the_requested_ones_or_the_last_page() -> None:
    created = recorded("create, writer, label id")
    for total, names, pages in (("9", ["bug"], 1), ("9", ["bug", "odd"], 2), ("2", ["odd"], 2), ("-", ["odd"], 1)):
        page = answer(200, [{"id": 7, "name": "bug"}], x_total_count=total)
        given = [page, answer(200, [], x_total_count=total)][:pages]
        _, requests = play(GITEA.create(access(labels=names), TICKET), [*given, created])
        assert len(requests) == pages + 1


def test_without_labels_none_are_listed() -> None:
    _, requests = play(GITEA.create(access(assignees=["ann"]), TICKET), [recorded("create, writer, label id")])
    body = json.loads(requests[0].body)
    assert body["assignees"] == ["ann"]
    assert "labels" not in body


@pytest.mark.parametrize("status", [401, 404, 429, 500, 200])
def test_nothing_is_created_while_labels_cannot_be_listed(status: int) -> None:
    failure, requests = play(GITEA.create(access(labels=["risk"]), TICKET), [answer(status, {"message": "no"})])
    assert isinstance(failure, TrackerFailure)
    assert not requests[0].creates


def test_a_title_has_at_most_255_bytes() -> None:
    long = replace(TICKET, title="größer erlaubt nicht " * 40)
    _, requests = play(GITEA.create(access(), long), [recorded("create, writer, label id")])
    title = json.loads(requests[0].body)["title"]
    assert 240 < len(title.encode()) <= 255
    assert title.endswith("…")


#: The failure for each recorded error of a create.
REFUSALS: Final = {
    "create, label names refused": TrackerFailure(PAYLOAD, REJECTED, field="labels"),
    "create, empty title": TrackerFailure(PAYLOAD, REJECTED, field="title"),
    "create, read-only token": TrackerFailure(CONFIGURATION, FORBIDDEN),
    "create, invalid token": TrackerFailure(CONFIGURATION, TOKEN_REJECTED),
    "create, no token": TrackerFailure(CONFIGURATION, TOKEN_REJECTED),
    "create, repository archived": TrackerFailure(CONFIGURATION, ARCHIVED),
    "create, repository renamed": TrackerFailure(CONFIGURATION, MOVED),
    "close, neither author nor writer": TrackerFailure(CONFIGURATION, FORBIDDEN),
    "close, bad state": TrackerFailure(PAYLOAD, REJECTED),
}


@pytest.mark.parametrize(("name", "failure"), REFUSALS.items())
def test_each_recorded_error_response_has_its_meaning(name: str, failure: TrackerFailure) -> None:
    assert play(GITEA.create(access(), TICKET), [recorded(name)])[0] == failure


@pytest.mark.parametrize(
    "name", ["create, private repository without access", "create, no such repository", "create, issues disabled"]
)
@pytest.mark.parametrize(
    ("repository", "code"),
    [
        (answer(404), NOT_FOUND),
        (answer(403), NOT_FOUND),
        (answer(200, {"has_issues": True, "archived": False}), NOT_FOUND),
        (answer(200, {"has_issues": False, "archived": False}), ISSUES_DISABLED),
        (answer(200, {"has_issues": True, "archived": True}), ARCHIVED),
    ],
)
def test_after_a_404_the_repository_is_read_to_find_the_reason(name: str, repository: TrackerResponse, code: str) -> None:
    failure, requests = play(GITEA.create(access(), TICKET), [recorded(name), repository])
    assert failure == TrackerFailure(CONFIGURATION, code)
    assert requests[1].url == REPOSITORY


@pytest.mark.parametrize(
    ("response", "failure"),
    [
        (answer(308), TrackerFailure(CONFIGURATION, MOVED)),
        (answer(410), TrackerFailure(CONFIGURATION, ISSUES_DISABLED)),
        (answer(429, retry_after="7"), TrackerFailure(RETRY, RATE_LIMITED, retry_after_s=7.0, is_rate_limit=True)),
        (answer(500), TrackerFailure(RETRY, UNAVAILABLE)),
        (answer(503, retry_after="30"), TrackerFailure(RETRY, UNAVAILABLE, retry_after_s=30.0)),
        (
            answer(422, {"message": "Assignee does not exist: [name: ann]"}),
            TrackerFailure(PAYLOAD, REJECTED, field="assignees"),
        ),
    ],
)
def test_each_error_response_has_its_meaning(response: TrackerResponse, failure: TrackerFailure) -> None:
    assert play(GITEA.create(access(), TICKET), [response])[0] == failure


@pytest.mark.parametrize(
    "body", [None, b"<html>", [], {}, {"number": "57"}, {"number": 0}, {"number": True}, {"number": -3}]
)
def test_a_success_that_names_no_issue_is_an_unknown_outcome(body: Any) -> None:
    assert play(GITEA.create(access(), TICKET), [answer(201, body)])[0] is None


def test_an_issue_is_found_by_its_text_in_the_recorded_list() -> None:
    page = recorded("list by author")
    page = page._replace(body=page.body.replace(b"marker", TICKET.export_id.encode()))
    found, requests = play(GITEA.find(access(), TICKET), [page])
    assert found == TrackerIssue("56", "https://gitea.example.com/owner/pub/issues/56")
    assert requests[0].url == f"{REPOSITORY}/issues?state=all&type=issues&limit=50&page=1"


def test_a_list_without_the_issue_ends_the_lookup() -> None:
    assert play(GITEA.find(access(), TICKET), [listed(issue(3, "another"))])[0] is None


def test_the_search_is_requested_after_the_pages_of_the_newest_issues() -> None:
    pages = [listed(issue(3, "another"), has_next=True)] * MAX_PAGES
    found, requests = play(GITEA.find(access(), TICKET), [*pages, listed(issue(2))])
    assert found == TrackerIssue("2", "https://gitea.example.com/owner/pub/issues/2")
    assert requests[-1].url == f"{REPOSITORY}/issues?state=all&type=issues&limit=50&q={TICKET.export_id}"
    assert play(GITEA.find(access(), TICKET), [*pages, listed(issue(4, "another"))])[0] is None


def test_of_several_issues_with_the_marker_the_oldest_is_found() -> None:
    quoted = [issue(9), issue(8), {**issue(2), "pull_request": {"merged": False}}, {**issue(1), "number": None}]
    assert play(GITEA.find(access(), TICKET), [listed(*quoted)])[0] == TrackerIssue(
        "8", "https://gitea.example.com/owner/pub/issues/8"
    )


@pytest.mark.parametrize("body", [None, b"<html>", {}, b'[{"number": 1'])
def test_an_unreadable_list_is_retried_and_not_taken_for_an_empty_one(body: Any) -> None:
    assert play(GITEA.find(access(), TICKET), [answer(200, body)])[0] == TrackerFailure(RETRY, UNAVAILABLE)


@pytest.mark.parametrize(("status", "code"), [(401, TOKEN_REJECTED), (404, NOT_FOUND), (500, UNAVAILABLE)])
def test_a_refused_lookup_has_the_code_of_its_reason(status: int, code: str) -> None:
    failure, _ = play(GITEA.find(access(), TICKET), [answer(status)])
    assert isinstance(failure, TrackerFailure)
    assert failure.code == code


#: Columns: the responses to the create without a title and to the lookup of the repository; the reported problem.
CHECKS: Final[list[tuple[list[TrackerResponse], str | None]]] = [
    ([answer(422, {"message": "[Title]: Required"}), answer(200, {"has_issues": True, "archived": False})], None),
    ([answer(422, [{"fieldNames": ["Title"], "classification": "RequiredError"}]), answer(403)], None),
    ([answer(422, {"message": "[Title]: Required"}), answer(200, {"has_issues": False})], ISSUES_DISABLED),
    ([answer(401)], TOKEN_REJECTED),
    ([answer(403, {"message": "token does not have at least one of required scope(s)"})], FORBIDDEN),
    ([answer(423)], ARCHIVED),
    ([answer(301)], MOVED),
    ([answer(404), answer(404)], NOT_FOUND),
    ([answer(404), answer(200, {"has_issues": False})], ISSUES_DISABLED),
    ([answer(502)], UNAVAILABLE),
    # A server that is not Gitea.
    ([answer(200, b"<html>")], NOT_FOUND),
    ([answer(422, b"<html>")], REJECTED),
]


@pytest.mark.parametrize(("answers", "code"), CHECKS)
def test_validation_reports_what_is_missing(answers: list[TrackerResponse], code: str | None) -> None:
    failure, requests = play(GITEA.validate(access()), answers)
    assert (failure and failure.code) == code
    assert not any(request.creates for request in requests)
    assert json.loads(requests[0].body) == {"title": ""}


@pytest.mark.parametrize(
    ("users", "field"),
    [
        (answer(200, [{"login": "Ann"}, {"login": "bob"}]), None),
        (answer(200, [{"login": "bob"}]), "assignees"),
        (answer(403), None),
        (answer(200, {"login": "ann"}), None),
    ],
)
def test_validation_checks_the_assignees(users: TrackerResponse, field: str | None) -> None:
    answers = [recorded("create, empty title"), answer(403), users]
    failure, requests = play(GITEA.validate(access(assignees=["ann"])), answers)
    assert (failure and failure.field) == field
    assert requests[2].url == f"{REPOSITORY}/assignees"


@pytest.mark.parametrize(
    ("base_url", "settings", "api"),
    [
        ("https://codeberg.org/acme/shop", {}, "https://codeberg.org/api/v1/repos/acme/shop/issues"),
        ("https://example.com/git/acme/shop.js", {}, "https://example.com/git/api/v1/repos/acme/shop.js/issues"),
        (
            "https://gitea.example.com/acme/shop",
            {"api_base": "https://api.example.com/v1/"},
            "https://api.example.com/v1/repos/acme/shop/issues",
        ),
    ],
)
def test_the_url_of_the_api_is_derived_from_the_page(base_url: str, settings: dict[str, Any], api: str) -> None:
    _, requests = play(GITEA.create(access(base_url, **settings), TICKET), [answer(500)])
    assert requests[0].url == api
    assert GITEA.problem_of(base_url, settings) is None


@pytest.mark.parametrize(
    "base_url",
    [
        "https://gitea.example.com",
        "https://gitea.example.com/acme",
        "https://gitea.example.com/acme/shop?tab=issues",
        "https://gitea.example.com/acme/shop%2Fissues",
        "https://gitea.example.com/acme/shop.git",
        "https://gitea.example.com/acme/shop/issues",
    ],
)
def test_a_url_that_is_no_repository_is_refused(base_url: str) -> None:
    assert "page of a repository, such as" in (GITEA.problem_of(base_url, {}) or "")


def test_unknown_and_invalid_settings_are_refused() -> None:
    form = GITEA.settings_form()
    assert form.read({"labels": ["risk"], "assignees": ["ann"], "on_fixed": "close"})["assignees"] == ["ann"]
    for settings in ({"assignee": "ann"}, {"assignees": "ann"}, {"assignees": [""]}, {"assignees": ["a"] * 11}):
        with pytest.raises(ValidationFailed):
            form.read(settings)


@pytest.mark.parametrize("response", HOSTILE_RESPONSES)
def test_no_response_causes_an_exception(response: TrackerResponse) -> None:
    def forever() -> Iterator[TrackerResponse]:
        while True:
            yield response

    target = access(labels=["risk"], assignees=["ann"])
    for steps in (GITEA.create(target, TICKET), GITEA.create(access(), TICKET), GITEA.find(target, TICKET)):
        made, requests = play(steps, forever())
        assert made is None or isinstance(made, TrackerFailure | TrackerIssue)
        assert len(requests) <= MAX_PAGES + 2
    checked, _ = play(GITEA.validate(target), forever())
    assert checked is None or isinstance(checked, TrackerFailure)


def test_a_real_server_has_one_issue_after_a_lost_response() -> None:
    with FakeGitea(page_limit=1) as server:
        target = TrackerAccess(server.base_url, {"labels": ["website-risk"]}, TOKEN)
        server.next_creates(LostResponse.BEFORE_CREATING, LostResponse.AFTER_CREATING, Refusal(429, {"Retry-After": "3"}))
        assert perform(GITEA.validate(target)) is None
        assert perform(GITEA.create(target, TICKET)) == "lost"
        assert perform(GITEA.find(target, TICKET)) is None
        assert perform(GITEA.create(target, TICKET)) == "lost"
        refused = perform(GITEA.create(target, TrackerTicket("exp_02", "t", "d", "low")))
        assert isinstance(refused, TrackerFailure)
        assert refused.retry_after_s == 3
        perform(GITEA.create(target, TrackerTicket("exp_03", "t", "d", "low")))
        assert perform(GITEA.find(target, TICKET)) == TrackerIssue("1", f"{server.base_url}/issues/1")
        assert server.creates_of(TICKET.export_id) == 2
        assert [label["name"] for each in server.issues_of(TICKET.export_id) for label in each["labels"]] == ["website-risk"]
        assert server.lookups == 3


def test_the_response_to_the_largest_ticket_is_read() -> None:
    large = replace(TICKET, description="<" * 100_000, evidence={"html": "&" * 100_000})
    _, (request,) = play(GITEA.create(access(), large), [answer(201, issue(57))])
    repeated = json.loads(request.body)["body"]
    # Go escapes these characters.
    escaped = json.dumps(issue(57, repeated)).replace("<", r"\u003c").replace("&", r"\u0026").encode()
    assert len(escaped) > 300_000
    assert play(GITEA.create(access(), large), [answer(201, escaped)])[0] == TrackerIssue(
        "57", "https://gitea.example.com/owner/pub/issues/57"
    )
