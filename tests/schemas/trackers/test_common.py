"""What the modules of all trackers share."""

import pytest

from schemas.base.errors import ValidationFailed
from schemas.trackers.common import TrackerSettingsForm, api_base_of, issue_url, labels_of, text_at
from schemas.trackers.exchange import TrackerAccess, TrackerTicket


def problems(settings: object) -> list[tuple[str, str]]:
    """Return where the form refuses settings, and why."""
    with pytest.raises(ValidationFailed) as refused:
        TrackerSettingsForm().read(settings)
    return [(problem.path, problem.code) for problem in refused.value.problems]


def test_the_settings_are_read_as_they_are() -> None:
    settings = {"labels": ["website-risk"], "on_fixed": "close", "api_base": "https://api.example.com/v3"}
    assert TrackerSettingsForm().read(settings) == settings
    assert TrackerSettingsForm().read({}) == {}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"label": ["a"]}, ("", "unknown_member")),
        ({"labels": "a"}, ("/labels", "invalid_type")),
        ({"labels": [" "]}, ("/labels/0", "too_short")),
        ({"labels": ["a"] * 21}, ("/labels", "too_many")),
        ({"on_fixed": "delete"}, ("/on_fixed", "not_allowed")),
        ({"api_base": "ftp://example.com"}, ("/api_base", "invalid_url")),
        ({"api_base": "https://user:word@example.com/api"}, ("/api_base", "invalid_url")),
        ({"api_base": "https://example.com/api?key=1"}, ("/api_base", "invalid_url")),
        ({"api_base": "https://example.com/api#top"}, ("/api_base", "invalid_url")),
    ],
)
def test_a_wrong_setting_is_named(settings: object, problem: tuple[str, str]) -> None:
    assert problems(settings) == [problem]


def test_the_api_base_replaces_the_usual_address() -> None:
    assert api_base_of({}, "https://example.com/api") == "https://example.com/api"
    assert (
        api_base_of({"api_base": "https://proxy.example.com/api/"}, "https://example.com") == "https://proxy.example.com/api"
    )


def test_labels_of_ticket_and_settings_appear_once() -> None:
    access = TrackerAccess("https://example.com", {"labels": ["risk", "team"]}, "token")
    ticket = TrackerTicket("exp_1", "Title", "Text", "high", labels=("severity:high", "risk"))
    assert labels_of(access, ticket) == ["severity:high", "risk", "team"]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("https://example.com/issues/7", True),
        ("http://example.com", True),
        ("https://example.com/" + "a" * 480, True),
        ("https://example.com/" + "a" * 481, False),
        ("javascript:alert(1)", False),
        ("https://user@example.com/7", False),
        ("https://example.com/a b", False),
        ("https://example.com/\u202e7", False),
        ("https:///7", False),
        (7, False),
        (None, False),
    ],
)
def test_only_plain_urls_of_issues_are_kept(value: object, kept: bool) -> None:
    assert issue_url(value) == (value if kept else None)


def test_a_text_is_read_from_any_response() -> None:
    assert text_at({"data": [{"key": "SHOP-7"}]}, "data", 0, "key") == "SHOP-7"
    responses: tuple[object, ...] = (None, [], {"data": {}}, {"data": []}, {"data": [7]}, {"data": [{"key": 7}]})
    for response in responses:
        assert text_at(response, "data", 0, "key") is None
