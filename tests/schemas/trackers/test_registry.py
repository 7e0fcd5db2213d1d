"""The available trackers: their names, their limits, and the bounds of their settings."""

import re
from typing import Any, Final

import pytest

from schemas.base.errors import ValidationFailed
from schemas.trackers.exchange import FailureKind, TrackerFailure
from schemas.trackers.registry import TRACKERS, provider_keys

#: Columns: key; name; seconds until an issue can be found; the maximum number of issues per minute.
OFFERED: Final = [
    ("github", "GitHub", 60, 60),
    ("gitlab", "GitLab", 60, None),
    ("jira", "Jira", 60, None),
    ("gitea", "Gitea, Forgejo", 5, None),
    ("linear", "Linear", 0, None),
    ("redmine", "Redmine", 5, None),
]
#: The settings that a form requires.
REQUIRED: Final = {"jira": {"project": "SHOP"}, "linear": {"team": "ENG"}}
#: Columns: a tracker; a setting; its longest value.
LONGEST: Final[list[tuple[str, str, Any]]] = [
    *((key, "labels", ["a" * 100] * 20) for key, *_ in OFFERED),
    ("github", "assignees", ["a" * 100] * 10),
    ("gitea", "assignees", ["a" * 100] * 10),
    ("gitlab", "assignees", ["a" * 255] * 10),
    ("jira", "project", "A" * 50),
    ("jira", "issue_type", "a" * 100),
    ("jira", "assignee", "a" * 200),
    ("linear", "team", "A" * 50),
    ("redmine", "tracker", "a" * 100),
    ("redmine", "assignee", "a" * 200),
]


def test_the_trackers_are_offered_in_their_order() -> None:
    found = [(key, each.name, each.lookup_delay_s, each.max_per_minute) for key, each in TRACKERS.items()]
    assert found == OFFERED
    assert provider_keys() == ("generic_webhook", *(key for key, *_ in OFFERED))


@pytest.mark.parametrize("key", TRACKERS)
def test_a_tracker_says_in_sentences_which_credential_it_needs(key: str) -> None:
    tracker = TRACKERS[key]
    assert re.fullmatch(r"[A-Z][^\n]*(?:[a-z`]|API)\.", tracker.credential_help)
    assert re.fullmatch(r"https://[a-z.]+/[\w/#?=.-]+", tracker.credential_url or "")
    settings = REQUIRED.get(key, {})
    assert tracker.problem_of(tracker.base_url_example, settings) is None
    assert "base_url" in (tracker.problem_of(f"{tracker.base_url_example}?a=1", settings) or "")


@pytest.mark.parametrize(("key", "name", "longest"), LONGEST)
def test_a_setting_has_a_longest_value(key: str, name: str, longest: Any) -> None:
    form, settings = TRACKERS[key].settings_form(), REQUIRED.get(key, {})
    assert form.read(settings | {name: longest})[name] == longest
    longer = [longest + longest[:1], [longest[0] + "a"]] if isinstance(longest, list) else [longest + "A"]
    for wrong in longer:
        with pytest.raises(ValidationFailed):
            form.read(settings | {name: wrong})


PAGES: Final = {
    "jira": "browse projects issues secure software rest servicedesk plugins",
    "gitea": "issues pulls labels milestones projects releases wiki activity settings",
}


@pytest.mark.parametrize("page", PAGES["jira"].split())
def test_the_url_of_a_page_in_jira_is_refused(page: str) -> None:
    problem = TRACKERS["jira"].problem_of(f"https://jira.example.com/{page}", {"project": "SHOP", "api_version": 2})
    assert problem == "base_url is the address of Jira, not of a page in it: https://jira.example.com"


@pytest.mark.parametrize("page", PAGES["gitea"].split())
def test_the_url_of_a_page_in_a_gitea_repository_is_refused(page: str) -> None:
    problem = TRACKERS["gitea"].problem_of(f"https://gitea.example.com/acme/shop/{page}", {})
    assert problem is not None
    assert TRACKERS["gitea"].problem_of(f"https://gitea.example.com/acme/{page}", {}) is None


def test_the_reason_of_a_failure_includes_its_field() -> None:
    failure = TrackerFailure(FailureKind.CONFIGURATION, "tracker_not_found")
    assert failure.reason == "tracker_not_found"
    assert TrackerFailure(FailureKind.CONFIGURATION, "tracker_not_found", field="team").reason == "tracker_not_found:team"
