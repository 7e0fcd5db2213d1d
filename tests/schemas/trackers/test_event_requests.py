"""Requests for events to GitHub, GitLab, Gitea and Jira match their official descriptions, and responses are understood."""

import json
from typing import Any, Final

import pytest

from schemas.trackers.exchange import FailureKind, Steps, TrackerAccess, TrackerFailure, TrackerRequest, TrackerResponse
from schemas.trackers.failures import FORBIDDEN, ISSUE_LOCKED, NOT_FOUND, TOKEN_REJECTED, UNAVAILABLE
from schemas.trackers.gitea import GiteaTracker
from schemas.trackers.github import GitHubTracker
from schemas.trackers.gitlab import GitLabTracker
from schemas.trackers.issue_events import COMMENTS_PER_PAGE, MAX_COMMENT_PAGES
from schemas.trackers.jira import JiraTracker, marker_label
from tests.support.trackers.descriptions import description_of
from tests.support.trackers.events import EVENT_ID, EXPORT_ID, event
from tests.support.trackers.steps import answer, play

GITHUB, GITLAB, GITEA, JIRA = GitHubTracker(), GitLabTracker(), GiteaTracker(), JiraTracker()
REST: Final = pytest.mark.parametrize("tracker", [GITHUB, GITLAB, GITEA], ids=lambda tracker: tracker.key)
PAGES: Final = {
    "github": "https://github.com/acme/shop",
    "gitlab": "https://gitlab.com/acme/shop",
    "gitea": "https://git.example.com/acme/shop",
}
#: The description of each tracker, and the base URL of its paths.
DESCRIPTIONS: Final = {
    "github": ("github-issues.openapi.json", "https://api.github.com"),
    "gitlab": ("gitlab-issues.openapi.json", "https://gitlab.com"),
    "gitea": ("gitea-issues.swagger2.json", "https://git.example.com/api/v1"),
}
CLOUD: Final = TrackerAccess("https://acme.atlassian.net", {"project": "SHOP"}, "bot@example.com:secret-token")
DATA_CENTER: Final = TrackerAccess("https://jira.example.com", {"project": "SHOP", "api_version": 2}, "token")
BOTH: Final = pytest.mark.parametrize("access", [CLOUD, DATA_CENTER], ids=["cloud", "data-center"])
SHOP_7: Final = event(issue_id="SHOP-7")
TITLE: Final = f"Erased ticket {EXPORT_ID}"
RETRY: Final = TrackerFailure(FailureKind.RETRY, UNAVAILABLE)
REFUSED: Final = TrackerFailure(FailureKind.CONFIGURATION, FORBIDDEN)


def played(tracker: Any, operation: str, *answers: TrackerResponse, **options: Any) -> tuple[Any, list[TrackerRequest]]:
    """Return the result of an operation and its requests, which match the official description."""
    steps: Steps[Any] = getattr(tracker, operation)(TrackerAccess(PAGES[tracker.key], {}, "token"), event(), **options)
    result, requests = play(steps, answers)
    name, base = DESCRIPTIONS[tracker.key]
    for request in requests:
        assert description_of(name).complaints(request, base) == []
    return result, requests


def sent(request: TrackerRequest) -> Any:
    return json.loads(request.body)


@REST
def test_a_comment_is_the_one_request_that_creates(tracker: Any) -> None:
    result, [request] = played(tracker, "comment", answer(201, {"id": 12, "body": "…"}))
    assert (result, request.method, request.creates) == (None, "POST", True)
    assert request.url.endswith("/issues/7/notes" if tracker is GITLAB else "/issues/7/comments")
    assert sent(request)["body"].endswith(EVENT_ID)


@REST
@pytest.mark.parametrize("body", [None, {}, [], {"id": "12"}, b"<html>"])
def test_a_success_without_the_id_of_a_comment_is_retried(tracker: Any, body: Any) -> None:
    assert played(tracker, "comment", answer(200, body))[0] == RETRY


@REST
def test_a_locked_issue_is_a_failure_of_its_own(tracker: Any) -> None:
    for message in ("Unable to create comment because issue is locked.", "repo.issues.comment_on_locked"):
        result, _ = played(tracker, "comment", answer(403, {"message": message}))
        assert result == TrackerFailure(FailureKind.PAYLOAD, ISSUE_LOCKED)
    assert played(tracker, "comment", answer(403, {"message": "You are blocked."}))[0] == REFUSED


@REST
def test_a_comment_is_found_by_the_event_s_id(tracker: Any) -> None:
    comments = [{"id": 1, "body": "of a person"}, {"id": 2, "body": f"RiskRelay event {EVENT_ID}"}]
    assert played(tracker, "has_comment", answer(200, comments))[0] is True
    assert played(tracker, "has_comment", answer(200, comments[:1]))[0] is False
    assert played(tracker, "has_comment", answer(200, {"message": "no list"}))[0] == RETRY


@pytest.mark.parametrize("tracker", [GITHUB, GITLAB], ids=lambda tracker: tracker.key)
def test_comments_are_read_page_by_page_to_a_limit(tracker: Any) -> None:
    page = answer(200, [{"id": 1, "body": "of a person"}] * COMMENTS_PER_PAGE)
    result, requests = played(tracker, "has_comment", *[page] * MAX_COMMENT_PAGES)
    assert result is False
    assert [f"page={number}" in request.url for number, request in enumerate(requests, 1)] == [True] * MAX_COMMENT_PAGES


@pytest.mark.parametrize("tracker", [GITHUB, GITEA], ids=lambda tracker: tracker.key)
def test_only_comments_since_the_event_are_read(tracker: Any) -> None:
    _, [request] = played(tracker, "has_comment", answer(200, []))
    assert "since=2026-01-31T11%3A00%3A00Z" in request.url


@REST
def test_the_state_of_an_issue_is_read_and_set(tracker: Any) -> None:
    opened = "opened" if tracker is GITLAB else "open"
    for state, is_open in ((opened, True), ("closed", False)):
        assert played(tracker, "is_open", answer(200, {"state": state}))[0] is is_open
        result, [request] = played(tracker, "set_open", answer(200, {"state": state}), is_open=is_open)
        assert (result, request.method) == (True, "PUT" if tracker is GITLAB else "PATCH")
        # A tracker that changes nothing but reports success.
        assert played(tracker, "set_open", answer(200, {"state": state}), is_open=not is_open)[0] is False
    for body in (None, {}, {"state": "merged"}, {"state": 1}):
        assert played(tracker, "is_open", answer(200, body))[0] == RETRY
        assert played(tracker, "set_open", answer(200, body), is_open=True)[0] == RETRY


@pytest.mark.parametrize(
    ("tracker", "closing", "reopening"),
    [
        (GITHUB, {"state": "closed", "state_reason": "completed"}, {"state": "open", "state_reason": "reopened"}),
        (GITLAB, {"state_event": "close"}, {"state_event": "reopen"}),
        (GITEA, {"state": "closed"}, {"state": "open"}),
    ],
    ids=["github", "gitlab", "gitea"],
)
def test_a_state_has_the_tracker_s_own_names(tracker: Any, closing: dict[str, str], reopening: dict[str, str]) -> None:
    assert sent(played(tracker, "set_open", answer(403), is_open=False)[1][0]) == closing
    assert sent(played(tracker, "set_open", answer(403), is_open=True)[1][0]) == reopening


@REST
def test_an_issue_is_ours_if_its_text_has_the_export_s_id(tracker: Any) -> None:
    member = "description" if tracker is GITLAB else "body"
    for text, is_ours in (
        (f"RiskRelay export {EXPORT_ID}", True),
        ("RiskRelay export exp_", False),
        ("", False),
        (None, False),
    ):
        assert played(tracker, "is_ours", answer(200, {"id": 7, member: text}))[0] is is_ours
    assert played(tracker, "is_ours", answer(200, b"<html>"))[0] == RETRY


@REST
def test_an_issue_is_erased_once_the_response_shows_it(tracker: Any) -> None:
    result, [request] = played(tracker, "redact", answer(201, {"title": TITLE}))
    assert (result, request.creates) == (None, False)
    text = sent(request)["description" if tracker is GITLAB else "body"]
    assert (sent(request)["title"], text.endswith(EXPORT_ID)) == (TITLE, True)
    assert played(tracker, "redact", answer(200, {"title": "Jane Doe"}))[0] == REFUSED
    assert played(tracker, "redact", answer(200, b"<html>"))[0] == RETRY


@REST
@pytest.mark.parametrize("operation", ["comment", "has_comment", "is_ours", "is_open", "set_open", "redact"])
def test_every_operation_returns_the_failure_of_a_refusal_status(tracker: Any, operation: str) -> None:
    options = {"is_open": False} if operation == "set_open" else {}
    for status, failure in (
        (401, TrackerFailure(FailureKind.CONFIGURATION, TOKEN_REJECTED)),
        (404, TrackerFailure(FailureKind.CONFIGURATION, NOT_FOUND)),
        (503, RETRY),
    ):
        assert played(tracker, operation, answer(status), **options)[0] == failure


# --- Jira


def require_described(access: TrackerAccess, requests: list[TrackerRequest]) -> None:
    name, base = (
        ("jira-dc-v2.openapi.json", f"{DATA_CENTER.base_url}/rest")
        if access is DATA_CENTER
        else ("jira-cloud-v3.openapi.json", CLOUD.base_url)
    )
    for request in requests:
        # Data Center's description of fields is wrong: it requires an object for each value.
        is_wrong = access is DATA_CENTER and "fields" in request.body.decode()
        assert is_wrong or description_of(name).complaints(request, base) == []


def transition(number: str, category: str | None) -> dict[str, Any]:
    return {"id": number, "name": "any", "to": {"id": "1", "statusCategory": {"id": 1, "key": category}}}


@BOTH
def test_a_comment_in_jira_is_a_document_or_wiki_text(access: TrackerAccess) -> None:
    result, [request] = play(JIRA.comment(access, SHOP_7), [answer(201, {"id": "10000"})])
    assert (result, request.creates) == (None, True)
    assert request.url.endswith("/issue/SHOP-7/comment")
    assert isinstance(sent(request)["body"], str if access is DATA_CENTER else dict)
    assert EVENT_ID in str(sent(request)["body"])
    assert play(JIRA.comment(access, SHOP_7), [answer(200, b"<html>")])[0] == RETRY
    require_described(access, [request])


@BOTH
def test_a_comment_in_jira_is_found_in_either_form(access: TrackerAccess) -> None:
    document = {
        "type": "doc",
        "version": 1,
        "content": [{"type": "paragraph", "content": [{"type": "text", "text": EVENT_ID}]}],
    }
    for body in (document, f"RiskRelay event {EVENT_ID}"):
        result, requests = play(JIRA.has_comment(access, SHOP_7), [answer(200, {"comments": [{"body": body}]})])
        assert result is True
        require_described(access, requests)
    assert play(JIRA.has_comment(access, SHOP_7), [answer(200, {"comments": []})])[0] is False
    assert play(JIRA.has_comment(access, SHOP_7), [answer(200, b"<html>")])[0] == RETRY


@BOTH
def test_an_issue_with_the_export_s_label_is_ours(access: TrackerAccess) -> None:
    for labels, is_ours in ((["website-risk", marker_label(EXPORT_ID)], True), (["website-risk"], False)):
        result, [request] = play(JIRA.is_ours(access, SHOP_7), [answer(200, {"fields": {"labels": labels}})])
        assert (result, request.url.endswith("/issue/SHOP-7?fields=labels")) == (is_ours, True)
    assert play(JIRA.is_ours(access, SHOP_7), [answer(200, {"key": "SHOP-7"})])[0] == RETRY


@BOTH
@pytest.mark.parametrize(("category", "is_open"), [("new", True), ("indeterminate", True), ("done", False)])
def test_the_category_of_a_status_says_whether_an_issue_is_open(access: TrackerAccess, category: str, is_open: bool) -> None:
    body = {"key": "SHOP-7", "fields": {"status": {"name": "any", "statusCategory": {"key": category}}}}
    result, requests = play(JIRA.is_open(access, SHOP_7), [answer(200, body)])
    assert result is is_open
    require_described(access, requests)
    assert play(JIRA.is_open(access, SHOP_7), [answer(200, {"key": "SHOP-7"})])[0] == RETRY


@BOTH
@pytest.mark.parametrize(("is_open", "wanted"), [(False, "31"), (True, "11")])
def test_the_first_transition_to_the_required_category_is_used(access: TrackerAccess, is_open: bool, wanted: str) -> None:
    transitions = [transition("1", None), transition("11", "new"), transition("31", "done"), transition("41", "done")]
    answers = [answer(200, {"transitions": transitions}), answer(204)]
    result, requests = play(JIRA.set_open(access, SHOP_7, is_open=is_open), answers)
    assert result is True
    assert sent(requests[1]) == {"transition": {"id": wanted}}
    require_described(access, requests)


@BOTH
def test_a_workflow_without_such_a_transition_closes_nothing(access: TrackerAccess) -> None:
    answers = [answer(200, {"transitions": [transition("11", "new")]})]
    assert play(JIRA.set_open(access, SHOP_7, is_open=False), answers)[0] is False
    assert play(JIRA.set_open(access, SHOP_7, is_open=False), [answer(200, {})])[0] == RETRY
    # A transition that requires a resolution, and a sign-in page.
    answers = [answer(200, {"transitions": [transition("31", "done")]}), answer(400, {"errors": {"resolution": "required"}})]
    refused = play(JIRA.set_open(access, SHOP_7, is_open=False), answers)[0]
    assert isinstance(refused, TrackerFailure)
    assert refused.kind is FailureKind.PAYLOAD
    assert play(JIRA.set_open(access, SHOP_7, is_open=False), [answers[0], answer(200, b"<html>")])[0] == RETRY


@BOTH
def test_an_issue_in_jira_is_erased(access: TrackerAccess) -> None:
    result, [request] = play(JIRA.redact(access, SHOP_7), [answer(204)])
    assert (result, request.method, sent(request)["fields"]["summary"]) == (None, "PUT", TITLE)
    assert EXPORT_ID in str(sent(request)["fields"]["description"])
    require_described(access, [request])
    assert play(JIRA.redact(access, SHOP_7), [answer(200, b"<html>")])[0] == RETRY


@pytest.mark.parametrize("operation", ["comment", "has_comment", "is_ours", "is_open", "set_open", "redact"])
def test_jira_s_refusals_are_named(operation: str) -> None:
    options = {"is_open": False} if operation == "set_open" else {}
    login = {"x_seraph_loginreason": "AUTHENTICATED_FAILED"}
    for response, failure in (
        (answer(401), TrackerFailure(FailureKind.CONFIGURATION, TOKEN_REJECTED)),
        (answer(403, None, **login), TrackerFailure(FailureKind.CONFIGURATION, TOKEN_REJECTED)),
        (answer(404), TrackerFailure(FailureKind.CONFIGURATION, NOT_FOUND)),
        (answer(503), RETRY),
    ):
        assert play(getattr(JIRA, operation)(CLOUD, SHOP_7, **options), [response])[0] == failure
