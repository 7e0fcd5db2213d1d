"""Whatever a tracker responds, its module returns a result, because responses are untrusted."""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.trackers.exchange import TrackerAccess, TrackerFailure, TrackerIssue, TrackerResponse, TrackerTicket
from schemas.trackers.registry import TRACKERS
from tests.support.trackers.events import event
from tests.support.trackers.settings import REQUIRED, every_setting
from tests.support.trackers.steps import answer, play

MARKER: Final = "exp_01KG9YS7G061SQWPCHNYBQC8F2"
TICKET: Final = TrackerTicket(MARKER, "A form has no label", "The field has no label.", "high", labels=("website-risk",))
#: The required settings and people, whom modules look up before a create.
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    key: {name: value for name, value in every_setting(key).items() if name in REQUIRED.get(key, ()) or name == "assignees"}
    for key in TRACKERS
}

#: Names that the modules read, so that the values below them are read too.
NAMES = st.sampled_from(
    (
        *("number", "html_url", "body", "iid", "web_url", "description", "id", "url", "key"),
        *("name", "login", "username", "message", "errors", "field", "resource", "error", "data"),
        *("issue", "issues", "nodes", "success", "extensions", "type", "permissions", "project_access", "access_level"),
        *("state", "status", "statusCategory", "comments", "transitions", "to", "journals", "notes", "title", "subject"),
        *("allowed_statuses", "issue_statuses", "is_closed", "workflowStates", "position", "comment", "commentCreate"),
        *("scopes", "archived", "has_issues", "pull_request", "fields", "labels", "team", "teams"),
    )
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=10)
    | st.sampled_from([MARKER, "https://tracker.example.com/acme/shop/issues/7", "javascript:alert(1)", "SHOP-7"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=6)
)
HEADERS = st.dictionaries(
    st.sampled_from(
        (
            *("retry-after", "link", "location", "x-oauth-scopes"),
            *("x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-remaining", "ratelimit-reset"),
            *("x-ratelimit-requests-remaining", "x-ratelimit-requests-reset", "x-seraph-loginreason"),
        )
    ),
    st.sampled_from(["0", "7", "-1", "1e9", "9" * 400, "soon", "٣", "", "Wed, 21 Oct 2026 07:28:00 GMT", 'a; rel="next"']),
)
STATUSES = st.sampled_from([200, 201, 204, 301, 400, 401, 403, 404, 405, 410, 422, 423, 429, 500, 503]) | st.integers(
    100, 599
)


#: Bodies that are difficult to parse: too deeply nested, with a number too long for Python, or longer than the limit.
BOMBS = st.sampled_from([b"[" * 100_000, b'{"id":' * 100_000, b"1" * 100_000, b'"' + b"a" * 100_000, b'{"key": NaN}'])


@st.composite
def responses(draw: st.DrawFn) -> TrackerResponse:
    body = draw(st.binary(max_size=40) | BOMBS) if draw(st.integers(0, 4)) == 0 else draw(VALUES)
    return answer(draw(STATUSES), body)._replace(headers=draw(HEADERS))


#: A tracker may respond correctly until the last request of a task.
GOOD: Final = {
    "login": "ada",
    "username": "ada",
    "id": 1,
    "number": 7,
    "iid": 7,
    "scopes": ["api"],
    "full_name": "acme/shop",
    "state": "open",
    "issue": {"id": 7, "journals": [], "status": {"id": 1, "is_closed": False}, "allowed_statuses": [{"id": 5}]},
}


@pytest.mark.parametrize("key", TRACKERS)
@given(
    st.lists(
        responses() | st.sampled_from([answer(200, []), answer(200, GOOD), answer(200, [GOOD])]), min_size=1, max_size=6
    )
)
@settings(max_examples=75)
def test_any_responses_result_in_an_issue_a_failure_or_none(key: str, given_answers: list[TrackerResponse]) -> None:
    tracker = TRACKERS[key]
    access = TrackerAccess(tracker.base_url_example, SETTINGS[key], "token")
    for steps in (tracker.create(access, TICKET), tracker.find(access, TICKET)):
        result = play(steps, _endless(given_answers))[0]
        assert result is None or isinstance(result, TrackerIssue | TrackerFailure)
        if isinstance(result, TrackerIssue):
            assert result.id
            assert result.url.startswith(("https://", "http://"))
            assert len(result.url) <= 500
            assert result.url.isprintable()
    assert isinstance(play(tracker.validate(access), _endless(given_answers))[0], TrackerFailure | None)
    made = event(issue_id="SHOP-7", is_outcome_unknown=True)
    for operation in (tracker.comment, tracker.redact):
        assert isinstance(play(operation(access, made), _endless(given_answers))[0], TrackerFailure | None)
    asked: list[Any] = [operation(access, made) for operation in (tracker.has_comment, tracker.is_ours, tracker.is_open)]
    for steps in (*asked, *(tracker.set_open(access, made, is_open=is_open) for is_open in (True, False))):
        assert isinstance(play(steps, _endless(given_answers))[0], TrackerFailure | bool)
    for response in given_answers:
        assert isinstance(response.reset_at_s(), float | None)


@pytest.mark.parametrize("key", TRACKERS)
def test_the_example_of_a_tracker_is_accepted(key: str) -> None:
    tracker = TRACKERS[key]
    assert tracker.settings_form().read(dict(SETTINGS[key])) == SETTINGS[key]
    assert tracker.problem_of(tracker.base_url_example, SETTINGS[key]) is None


def _endless(answers: list[TrackerResponse]) -> Iterator[TrackerResponse]:
    """Return the responses and repetitions of the last; tasks that read pages stop after a bounded number of them."""
    return chain(answers, repeat(answers[-1], 200))
