"""Whatever a tracker responds, an exchange ends with a result."""

import json
from collections.abc import Mapping
from itertools import cycle, islice
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.trackers.common import issue_url
from schemas.trackers.exchange import (
    Steps,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
    TrackerPlace,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.registry import TRACKERS
from tests.support.tracker_steps import play

#: A target of each tracker: its URL and settings.
TARGETS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "github": ("https://github.com/acme/shop", {"labels": ["web"]}),
    "gitlab": ("https://gitlab.com/group/sub/project", {"labels": ["web"]}),
    "jira": ("https://acme.atlassian.net", {"project": "SHOP"}),
    "gitea": ("https://gitea.example.com/acme/shop", {"labels": ["web"]}),
    "linear": ("https://linear.app/acme", {"team": "ENG", "labels": ["web"]}),
    "redmine": ("https://redmine.example.com/projects/shop", {}),
}
TICKET: Final = TrackerTicket(
    "exp_01K9ZC3V5N8QWERTY0123456AB",
    "A title",
    "A description",
    "high",
    labels=("riskrelay",),
    places=(TrackerPlace("https://shop.example.com/", "footer"),),
    places_total=1,
)
#: More than any exchange needs: a tracker must not keep one going.
MOST_REQUESTS: Final = 40

#: Names that responses of trackers have, so that some arbitrary responses are read deeply.
NAMES: Final = (
    *("data", "errors", "extensions", "type", "message", "issues", "issue", "issueCreate", "teams", "issueLabels", "nodes"),
    *("id", "iid", "number", "key", "identifier", "url", "html_url", "web_url", "title", "body", "description", "labels"),
    *(
        "name",
        "fields",
        "permissions",
        "CREATE_ISSUES",
        "havePermission",
        "issueTypes",
        "values",
        "login",
        "user",
        "project",
    ),
    *(
        "trackers",
        "memberships",
        "roles",
        "scopes",
        "access_level",
        "has_issues",
        "archived",
        "subtask",
        "team",
        "errorMessages",
    ),
)
TEXTS: Final = st.one_of(
    st.sampled_from(["ENG-7", "SHOP-7", "Task", "ratelimited", "forbidden", TICKET.export_id, "https://example.com/7", ""]),
    st.text(max_size=30),
)
VALUES: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(NAMES), TEXTS), inner, max_size=5)
    ),
    max_leaves=20,
)
BODIES: Final = st.one_of(
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=50),
    st.sampled_from([b"[" * 100_000, b'{"id":' * 100_000, b"1" * 100_000, b'"' + b"a" * 100_000, b'{"key": NaN}']),
)
STATUSES: Final = st.one_of(
    st.sampled_from([200, 200, 200, 201, 204, 301, 400, 401, 403, 404, 409, 410, 422, 423, 429, 500, 503]),
    st.integers(100, 999),
)
HEADERS: Final = st.dictionaries(
    st.sampled_from(
        [
            *(
                "retry-after",
                "x-ratelimit-remaining",
                "x-ratelimit-reset",
                "location",
                "x-seraph-loginreason",
                "ratelimit-reset",
            ),
            *("x-ratelimit-requests-remaining", "x-ratelimit-requests-reset", "x-oauth-scopes", "ratelimit-remaining"),
        ]
    ),
    st.one_of(st.sampled_from(["0", "1769860800", "2026-01-31T12:00Z", "9" * 400, "-1", "\u0663"]), st.text(max_size=20)),
)
#: They repeat themselves.
RESPONSES: Final = st.lists(st.builds(TrackerResponse, STATUSES, HEADERS, BODIES), min_size=1, max_size=4)


@pytest.mark.parametrize("key", TRACKERS)
@given(responses=RESPONSES)
def test_any_responses_give_a_result(key: str, responses: list[TrackerResponse]) -> None:
    tracker = TRACKERS[key]
    base_url, settings = TARGETS[key]
    access = TrackerAccess(base_url, settings, "user:token")
    exchanges: tuple[tuple[Steps[Any], bool], ...] = (
        (tracker.create(access, TICKET), True),
        (tracker.find(access, TICKET), False),
        (tracker.validate(access), False),
    )
    for steps, may_create in exchanges:
        result, requests = play(steps, islice(cycle(responses), MOST_REQUESTS))
        assert result is None or isinstance(result, TrackerFailure | TrackerIssue)
        assert may_create or not any(request.creates for request in requests)
        if isinstance(result, TrackerIssue):
            assert issue_url(result.url) == result.url
            assert result.id.isprintable()
            assert len(result.id) <= 200
    for response in responses:
        held_until_s = tracker.held_until_s(response)
        assert held_until_s is None or 0 <= held_until_s < 10**15


@pytest.mark.parametrize("key", TRACKERS)
def test_the_example_of_each_tracker_is_accepted(key: str) -> None:
    tracker = TRACKERS[key]
    base_url, settings = TARGETS[key]
    assert tracker.settings_form().read(dict(settings)) == settings
    for url in (base_url, tracker.base_url_example):
        assert tracker.problem_of(url, settings) is None
