"""Redmine: the meaning of its responses; `test_redmine_server.py` tests the same with a real Redmine."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from schemas.base.errors import ValidationFailed
from schemas.trackers.exchange import (
    FailureKind,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
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
from schemas.trackers.redmine import MAX_PAGES, RedmineTracker
from tests.support.trackers.events import EVENT_ID, EXPORT_ID, event
from tests.support.trackers.hostile_responses import HOSTILE_RESPONSES
from tests.support.trackers.steps import answer, play

REDMINE: Final = RedmineTracker()
TOKEN: Final = "key-of-the-tests"
TICKET: Final = TrackerTicket("exp_01redmine", "Form posts without a token", "The login form has no token.", "high")
BASE: Final = "https://redmine.example.com"
CONFIGURATION, PAYLOAD, RETRY = FailureKind.CONFIGURATION, FailureKind.PAYLOAD, FailureKind.RETRY
CREATED: Final = answer(201, {"issue": {"id": 57, "description": "x"}})
SUBJECT_MISSING: Final = answer(422, {"errors": ["Subject cannot be blank"]})
PROJECT: Final = answer(200, {"project": {"id": 1, "status": 1, "enabled_modules": [{"id": 1, "name": "issue_tracking"}]}})
TRACKERS: Final = answer(
    200, {"project": {"id": 1, "trackers": [{"id": 1, "name": "Bug"}, {"id": 3, "name": "Suppörtcall"}]}}
)
PRIORITIES: Final = answer(200, {"issue_priorities": [{"id": 2, "name": "Normal"}, {"id": 4, "name": "Urgent"}]})


def access(base_url: str = f"{BASE}/projects/shop", **settings: Any) -> TrackerAccess:
    return TrackerAccess(base_url, settings, TOKEN)


def members(*named: tuple[str, int, str], total: int | None = None) -> TrackerResponse:
    entries = [{"id": 900 + number, kind: {"id": number, "name": name}} for kind, number, name in named]
    return answer(200, {"memberships": entries, "total_count": len(entries) if total is None else total})


def issue_in(request_body: bytes) -> dict[str, Any]:
    body: dict[str, dict[str, Any]] = json.loads(request_body)
    assert list(body) == ["issue"]
    return body["issue"]


def test_an_issue_is_created_and_named_by_its_number() -> None:
    made, (request,) = play(REDMINE.create(access(), TICKET), [CREATED])
    assert made == TrackerIssue("57", f"{BASE}/issues/57")
    assert (request.method, request.url, request.creates) == ("POST", f"{BASE}/issues.json", True)
    assert request.headers == {"X-Redmine-API-Key": TOKEN, "Accept": "application/json", "Content-Type": "application/json"}
    sent = issue_in(request.body)
    assert sent.keys() == {"project_id", "subject", "description"}
    assert (sent["project_id"], sent["subject"]) == ("shop", TICKET.title)
    assert TICKET.export_id in sent["description"]
    assert TOKEN not in request.url + request.body.decode()


def test_labels_are_not_sent() -> None:
    _, (request,) = play(REDMINE.create(access(labels=["risk"]), replace(TICKET, labels=("forms",))), [CREATED])
    assert issue_in(request.body).keys() == {"project_id", "subject", "description"}


def test_a_subject_has_at_most_255_characters() -> None:
    _, (request,) = play(REDMINE.create(access(), replace(TICKET, title="größer " * 100)), [CREATED])
    assert len(issue_in(request.body)["subject"]) <= 255


def test_names_of_the_settings_become_ids_and_their_case_does_not_matter() -> None:
    target = access(tracker="SUPPÖRTCALL", priority_by_severity={"high": "urgent", "low": "7"}, assignee="Web team")
    people = members(("user", 5, "Ann"), ("group", 9, "Web Team"))
    _, requests = play(REDMINE.create(target, TICKET), [TRACKERS, PRIORITIES, people, CREATED])
    sent = issue_in(requests[-1].body)
    assert (sent["tracker_id"], sent["priority_id"], sent["assigned_to_id"]) == (3, 4, 9)
    assert [request.url.removeprefix(BASE) for request in requests] == [
        "/projects/shop.json?include=trackers&limit=100&offset=0",
        "/enumerations/issue_priorities.json?limit=100&offset=0",
        "/projects/shop/memberships.json?limit=100&offset=0",
        "/issues.json",
    ]


def test_ids_in_the_settings_are_sent_without_a_lookup() -> None:
    target = access(tracker="3", priority_by_severity={"high": "4"}, assignee="me")
    _, (request,) = play(REDMINE.create(target, TICKET), [CREATED])
    sent = issue_in(request.body)
    assert (sent["tracker_id"], sent["priority_id"], sent["assigned_to_id"]) == ("3", "4", "me")


def test_a_severity_without_a_priority_has_redmines_default() -> None:
    _, (request,) = play(REDMINE.create(access(priority_by_severity={"low": "Low"}), TICKET), [CREATED])
    assert "priority_id" not in issue_in(request.body)


def test_the_assignee_is_searched_for_on_several_pages_up_to_a_limit() -> None:
    first, last = members(("user", 1, "Ann"), total=150), members(("user", 2, "Bob"), total=150)
    _, requests = play(REDMINE.create(access(assignee="Bob"), TICKET), [first, last, CREATED])
    assert issue_in(requests[-1].body)["assigned_to_id"] == 2
    endless = members(("user", 1, "Ann"), total=10**9)
    failure, _ = play(REDMINE.create(access(assignee="Bob"), TICKET), [endless] * MAX_PAGES)
    assert failure == TrackerFailure(CONFIGURATION, NOT_FOUND, field="assignee")


@pytest.mark.parametrize(
    ("settings", "listed", "field"),
    [
        ({"tracker": "Defect"}, TRACKERS, "tracker"),
        ({"priority_by_severity": {"high": "Now"}}, PRIORITIES, "priority_by_severity"),
        ({"assignee": "Nobody"}, members(("user", 5, "Ann")), "assignee"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_of_the_settings(
    settings: dict[str, Any], listed: TrackerResponse, field: str
) -> None:
    expected = TrackerFailure(CONFIGURATION, NOT_FOUND, field=field)
    assert play(REDMINE.create(access(**settings), TICKET), [listed])[0] == expected
    assert play(REDMINE.validate(access(**settings)), [PROJECT, listed])[0] == expected


def test_every_priority_is_validated() -> None:
    target = access(priority_by_severity={"high": "Urgent", "low": "Lowest"})
    failure, _ = play(REDMINE.validate(target), [PROJECT, PRIORITIES])
    assert failure == TrackerFailure(CONFIGURATION, NOT_FOUND, field="priority_by_severity")


@pytest.mark.parametrize(
    ("response", "failure"),
    [
        (answer(401), TrackerFailure(CONFIGURATION, TOKEN_REJECTED)),
        (answer(403), TrackerFailure(CONFIGURATION, FORBIDDEN)),
        (answer(404), TrackerFailure(CONFIGURATION, NOT_FOUND)),
        (answer(302), TrackerFailure(CONFIGURATION, MOVED)),
        (answer(429, retry_after="7"), TrackerFailure(RETRY, RATE_LIMITED, retry_after_s=7.0, is_rate_limit=True)),
        (answer(500), TrackerFailure(RETRY, UNAVAILABLE)),
        (answer(503, retry_after="30"), TrackerFailure(RETRY, UNAVAILABLE, retry_after_s=30.0)),
    ],
)
def test_each_error_response_has_its_meaning(response: TrackerResponse, failure: TrackerFailure) -> None:
    assert play(REDMINE.create(access(), TICKET), [response])[0] == failure
    assert play(REDMINE.create(access(tracker="Bug"), TICKET), [response])[0] == failure
    assert play(REDMINE.find(access(), TICKET), [response])[0] == failure
    assert play(REDMINE.validate(access()), [response])[0] == failure
    assert play(REDMINE.validate(access()), [PROJECT, response])[0] == failure


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    ("project", "failure"),
    [
        (PROJECT, TrackerFailure(PAYLOAD, REJECTED)),
        (answer(200, b"<html>"), TrackerFailure(PAYLOAD, REJECTED)),
        (answer(404), TrackerFailure(CONFIGURATION, NOT_FOUND)),
        (answer(403), TrackerFailure(CONFIGURATION, FORBIDDEN)),
        (answer(200, {"project": {"status": 5}}), TrackerFailure(CONFIGURATION, ARCHIVED)),
        (
            answer(200, {"project": {"status": 1, "enabled_modules": [{"name": "wiki"}]}}),
            TrackerFailure(CONFIGURATION, ISSUES_DISABLED),
        ),
        (answer(500), TrackerFailure(RETRY, UNAVAILABLE)),
    ],
)
def test_a_refused_issue_is_a_configuration_failure_if_the_project_accepts_no_issues(
    status: int, project: TrackerResponse, failure: TrackerFailure
) -> None:
    refused = answer(status, {"errors": ["Projekt muss ausgefüllt werden"]})
    made, requests = play(REDMINE.create(access(), TICKET), [refused, project])
    assert made == failure
    assert requests[1].url == f"{BASE}/projects/shop.json?include=enabled_modules"


@pytest.mark.parametrize("body", [None, b"<html>", [], {}, {"issue": []}, {"issue": {"id": "57"}}, {"issue": {"id": 0}}])
def test_a_success_that_names_no_issue_is_an_unknown_outcome(body: Any) -> None:
    assert play(REDMINE.create(access(), TICKET), [answer(201, body)])[0] is None


def test_an_issue_is_found_by_its_text_whatever_the_filter_returned() -> None:
    issues = [
        {"id": 9, "description": f"As in {TICKET.export_id}"},
        {"id": 8, "description": f"text\r\n{TICKET.export_id}"},
        {"id": 7, "description": "another"},
        {"id": 6, "description": None},
    ]
    found, (request,) = play(REDMINE.find(access(), TICKET), [answer(200, {"issues": issues, "total_count": 4})])
    assert found == TrackerIssue("8", f"{BASE}/issues/8")
    filters = f"project_id=shop&status_id=%2A&description=~{TICKET.export_id}&sort=id%3Adesc&limit=50"
    assert request.url == f"{BASE}/issues.json?{filters}"
    assert play(REDMINE.find(access(), TICKET), [answer(200, {"issues": issues[2:]})])[0] is None


@pytest.mark.parametrize("body", [None, b"<html>", [], {"issues": {}}, b'{"issues": ['])
def test_an_unreadable_list_is_retried_and_not_taken_for_an_empty_one(body: Any) -> None:
    unreadable = TrackerFailure(RETRY, UNAVAILABLE)
    assert play(REDMINE.find(access(), TICKET), [answer(200, body)])[0] == unreadable
    assert play(REDMINE.create(access(tracker="Bug"), TICKET), [answer(200, body)])[0] == unreadable


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([PROJECT, SUBJECT_MISSING], None),
        ([answer(200, {"project": {"status": 1}}), SUBJECT_MISSING], None),
        ([PROJECT, answer(422, {"errors": ["Subject cannot be blank", "Browser cannot be blank"]})], REJECTED),
        ([PROJECT, answer(401)], TOKEN_REJECTED),
        ([PROJECT, answer(403)], FORBIDDEN),
        ([answer(404)], NOT_FOUND),
        ([answer(200, {"project": {"status": 5}})], ARCHIVED),
        ([answer(200, {"project": {"status": 1, "enabled_modules": []}})], ISSUES_DISABLED),
        # A server that is not Redmine.
        ([answer(200, b"<html>"), answer(200, b"<html>")], NOT_FOUND),
        ([answer(200, b"<html>"), answer(422, b"<html>")], REJECTED),
    ],
)
def test_validation_reports_what_is_missing(answers: list[TrackerResponse], code: str | None) -> None:
    failure, requests = play(REDMINE.validate(access()), answers)
    assert (failure and failure.code) == code
    assert not any(request.creates for request in requests)
    assert all(issue_in(request.body) == {"project_id": "shop", "subject": ""} for request in requests[1:])


def test_validation_sends_the_ids_of_the_settings() -> None:
    target = access(tracker="Bug", priority_by_severity={"high": "4"}, assignee="Ann")
    _, requests = play(REDMINE.validate(target), [PROJECT, TRACKERS, members(("user", 5, "Ann")), SUBJECT_MISSING])
    assert issue_in(requests[-1].body) == {
        "project_id": "shop",
        "tracker_id": 1,
        "priority_id": "4",
        "assigned_to_id": 5,
        "subject": "",
    }


@pytest.mark.parametrize(
    ("base_url", "settings", "api", "page"),
    [
        (f"{BASE}/projects/shop", {}, BASE, BASE),
        (
            "https://example.com/red/mine/projects/my-shop_2",
            {},
            "https://example.com/red/mine",
            "https://example.com/red/mine",
        ),
        (f"{BASE}/projects/shop", {"api_base": "https://api.example.com/r/"}, "https://api.example.com/r", BASE),
    ],
)
def test_the_url_of_the_api_is_derived_from_the_page(base_url: str, settings: dict[str, Any], api: str, page: str) -> None:
    made, (request,) = play(REDMINE.create(access(base_url, **settings), TICKET), [CREATED])
    assert request.url == f"{api}/issues.json"
    assert made == TrackerIssue("57", f"{page}/issues/57")
    assert {REDMINE.problem_of(each, settings) for each in (base_url, f"{base_url}/")} == {None}


@pytest.mark.parametrize(
    "base_url",
    [
        BASE,
        f"{BASE}/projects",
        f"{BASE}/projects/shop/issues",
        f"{BASE}/projects/Shop",
        f"{BASE}/issues/7",
        f"{BASE}/projects/shop?jump=overview",
        f"{BASE}/projects/shop%2f",
    ],
)
def test_a_url_that_is_no_project_is_refused(base_url: str) -> None:
    problem = "base_url is the page of a project, such as https://redmine.example.com/projects/shop."
    assert REDMINE.problem_of(base_url, {}) == problem


def test_unknown_and_invalid_settings_are_refused() -> None:
    form = REDMINE.settings_form()
    assert form.read({"tracker": "Bug", "priority_by_severity": {"low": "Low"}, "assignee": "me"})["tracker"] == "Bug"
    for settings in ({"team": "x"}, {"tracker": 3}, {"priority_by_severity": {"urgent": "Now"}}, {"assignee": ""}):
        with pytest.raises(ValidationFailed):
            form.read(settings)


@pytest.mark.parametrize("response", HOSTILE_RESPONSES)
def test_no_response_causes_an_exception(response: TrackerResponse) -> None:
    def forever() -> Iterator[TrackerResponse]:
        while True:
            yield response

    named = access(tracker="Bug", priority_by_severity={"high": "Urgent"}, assignee="Ann")
    for target in (named, access()):
        for steps in (REDMINE.create(target, TICKET), REDMINE.find(target, TICKET)):
            made, requests = play(steps, forever())
            assert made is None or isinstance(made, TrackerFailure | TrackerIssue)
            assert len(requests) <= 3 * MAX_PAGES + 2
        checked, _ = play(REDMINE.validate(target), forever())
        assert checked is None or isinstance(checked, TrackerFailure)


# --- events


def status(number: int, is_closed: bool) -> dict[str, Any]:
    return {"id": number, "name": "any", "is_closed": is_closed}


def shown(**members: Any) -> TrackerResponse:
    return answer(200, {"issue": {"id": 7, "status": status(1, False), **members}})


def test_a_note_is_successful_only_if_it_is_read_back() -> None:
    with_note, without = shown(journals=[{"notes": f"RiskRelay event {EVENT_ID}"}]), shown(journals=[{"notes": ""}, {}])
    result, requests = play(REDMINE.comment(access(), event()), [answer(204), with_note])
    assert (result, [request.method for request in requests]) == (None, ["PUT", "GET"])
    assert [request.creates for request in requests] == [True, False]
    assert issue_in(requests[0].body)["notes"].endswith(EVENT_ID)
    failure = TrackerFailure(CONFIGURATION, FORBIDDEN)
    assert play(REDMINE.comment(access(), event()), [answer(204), without])[0] == failure
    for unreadable in (answer(200, {}), shown()):
        result = play(REDMINE.comment(access(), event()), [answer(204), unreadable])[0]
        assert result == TrackerFailure(RETRY, UNAVAILABLE)


@pytest.mark.parametrize(("is_open", "status_id"), [(False, 5), (True, 1)])
def test_the_first_allowed_status_is_set(is_open: bool, status_id: int) -> None:
    allowed = [status(number, not is_open) for number in (status_id, 4, 6)]
    answers = [
        shown(allowed_statuses=[status(8, is_open), *allowed]),
        answer(204),
        shown(status=status(status_id, not is_open)),
    ]
    result, requests = play(REDMINE.set_open(access(), event(), is_open=is_open), answers)
    assert (result, issue_in(requests[1].body)) == (True, {"status_id": status_id})


def test_a_status_that_redmine_keeps_is_not_set() -> None:
    allowed = shown(allowed_statuses=[status(5, True)])
    assert play(REDMINE.set_open(access(), event(), is_open=False), [allowed, answer(204), shown()])[0] is False
    assert play(REDMINE.set_open(access(), event(), is_open=False), [shown(allowed_statuses=[])])[0] is False


def test_an_erased_issue_is_read_back() -> None:
    subject = f"Erased ticket {EXPORT_ID}"
    result, requests = play(REDMINE.redact(access(), event()), [answer(204), shown(subject=subject)])
    assert (result, issue_in(requests[0].body)["subject"]) == (None, subject)
    description = issue_in(requests[0].body)["description"]
    stored = shown(subject=subject, description=description.replace("\n", "\r\n"))
    assert play(REDMINE.redact(access(), event()), [answer(204), stored])[0] is None
    # A workflow may make either of them read-only for the user.
    for kept in ({"subject": "Jane Doe", "description": description}, {"subject": subject, "description": "Jane Doe"}):
        result, _ = play(REDMINE.redact(access(), event()), [answer(204), shown(**kept)])
        assert result == TrackerFailure(CONFIGURATION, FORBIDDEN)


@pytest.mark.parametrize(
    ("response", "failure"),
    [
        (answer(401), TrackerFailure(CONFIGURATION, TOKEN_REJECTED)),
        (answer(404), TrackerFailure(CONFIGURATION, NOT_FOUND)),
        (answer(503), TrackerFailure(RETRY, UNAVAILABLE)),
    ],
)
def test_every_operation_of_an_event_has_redmine_s_refusals(response: TrackerResponse, failure: TrackerFailure) -> None:
    for steps in (
        REDMINE.comment(access(), event()),
        REDMINE.has_comment(access(), event()),
        REDMINE.is_open(access(), event()),
        REDMINE.set_open(access(), event(), is_open=True),
        REDMINE.redact(access(), event()),
    ):
        assert play(steps, [response])[0] == failure
