"""What the modules of all trackers share."""

import json
import time

import pytest
from marshmallow import ValidationError

from schemas.base.errors import ValidationFailed
from schemas.trackers.common import (
    Api,
    PriorityBySeverityForm,
    TrackerSettingsForm,
    api_base_of,
    fetch,
    key_field,
    labels_of,
    since_creation,
    tidy_labels,
)
from schemas.trackers.exchange import (
    MAX_LIST_BYTES,
    FailureKind,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.failures import TOKEN_REJECTED, UNAVAILABLE, failure_of, unreadable
from schemas.trackers.responses import is_number, issue_of, issue_url, oldest_with_marker, text_at, value_at
from tests.support.trackers.steps import answer, play


def problems(settings: object) -> list[tuple[str, str]]:
    """Return the path and code of each problem that the form reports."""
    with pytest.raises(ValidationFailed) as refused:
        TrackerSettingsForm().read(settings)
    return [(problem.path, problem.code) for problem in refused.value.problems]


def test_valid_settings_are_read_unchanged() -> None:
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
def test_an_invalid_setting_is_refused_with_its_field(settings: object, problem: tuple[str, str]) -> None:
    assert problems(settings) == [problem]


def test_a_response_of_many_values_is_unreadable_and_costs_other_threads_no_time() -> None:
    body = b"[" + b"[[[[[]]]]]," * (MAX_LIST_BYTES // 11) + b"0]"
    started = time.process_time()
    assert TrackerResponse(200, {}, body).json() is None
    assert time.process_time() - started < 0.5  # measured: 30 ms; parsing takes 2 s, during which no other delivery proceeds


def test_a_long_response_is_read_whatever_its_texts_contain() -> None:
    issues = [{"number": number, "body": "a, b, [c], {d}, " * 2_000} for number in range(100)]
    assert TrackerResponse(200, {}, json.dumps(issues).encode()).json() == issues


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


def test_a_text_is_read_at_its_path_or_is_none() -> None:
    assert text_at({"data": [{"key": "SHOP-7"}]}, "data", 0, "key") == "SHOP-7"
    responses: tuple[object, ...] = (None, [], {"data": {}}, {"data": []}, {"data": [7]}, {"data": [{"key": 7}]})
    for response in responses:
        assert text_at(response, "data", 0, "key") is None


@pytest.mark.parametrize("on_fixed", ["comment", "close", "nothing"])
def test_a_setting_within_its_bounds_is_read(on_fixed: str) -> None:
    settings = {"labels": ["a" * 100] * 20, "on_fixed": on_fixed, "api_base": "http://api.example.com"}
    assert TrackerSettingsForm().read(settings) == settings
    assert problems({"labels": ["a" * 101]}) == [("/labels/0", "too_long")]
    assert problems({"api_base": "https://example.com/a\\b"}) == [("/api_base", "invalid_url")]


def test_each_severity_has_a_name_of_a_priority() -> None:
    names = dict.fromkeys(("critical", "high", "medium", "low", "info"), "P" * 100)
    assert PriorityBySeverityForm().read(names) == names
    for wrong in ("", "P" * 101):
        with pytest.raises(ValidationFailed):
            PriorityBySeverityForm().read({"low": wrong})


@pytest.mark.parametrize(
    ("key", "is_key"),
    [("S", True), ("SHOP", True), ("S2_X", True), ("", False), ("2S", False), ("_S", False), ("shop", False), ("S-", False)],
)
def test_the_key_of_a_project_begins_with_a_capital(key: str, is_key: bool) -> None:
    field = key_field("The key.")
    if is_key:
        assert field.deserialize(key) == key
    else:
        with pytest.raises(ValidationError, match="not_a_key"):
            field.deserialize(key)


API = Api("https://api.example.com", {"Authorization": "token t"})


def test_a_request_is_made_of_the_api_s_url_and_headers() -> None:
    listed = API.get("/issues")
    assert (listed.method, listed.url, listed.body, listed.creates) == ("GET", f"{API.url}/issues", b"", False)
    assert (listed.headers, listed.max_response_bytes) == (API.headers, MAX_LIST_BYTES)
    assert API.get().url == API.url
    made = API.post("/issues", {"title": "é"}, creates=True)
    assert (made.method, made.url, made.creates) == ("POST", f"{API.url}/issues", True)
    assert (made.headers, made.body) == ({**API.headers, "Content-Type": "application/json"}, b'{"title": "\\u00e9"}')
    assert made.max_response_bytes < MAX_LIST_BYTES
    assert not API.post("", {}).creates
    changed = API.send("PATCH", "/issues/7", [])
    assert (changed.method, changed.url, changed.body, changed.creates) == ("PATCH", f"{API.url}/issues/7", b"[]", False)


@pytest.mark.parametrize(
    ("response", "value"),
    [
        (answer(200, {"issues": [["a"]]}), ["a"]),
        (answer(200, {"issues": ["a"]}), unreadable()),  # of another type
        (answer(200, {"issues": []}), unreadable()),
        (answer(200, b"<html>"), unreadable()),
        (answer(401, {"issues": [["a"]]}), TrackerFailure(FailureKind.CONFIGURATION, TOKEN_REJECTED)),
    ],
)
def test_a_value_is_fetched_by_its_path_and_type(response: TrackerResponse, value: object) -> None:
    request = API.get("/issues")
    assert play(fetch(request, failure_of, list, "issues", 0), [response]) == (value, [request])


def test_a_success_that_cannot_be_read_is_tried_again() -> None:
    assert unreadable() == TrackerFailure(FailureKind.RETRY, UNAVAILABLE)


@pytest.mark.parametrize(
    ("labels", "tidied"),
    [
        (["a", "A", "b", "a "], ["a", "b"]),
        (["a,b", " a \n c "], ["a b", "a c"]),
        (["", " ", ","], []),
        (["12345"], ["12345"]),
        (["123456"], ["1234…"]),
        (["123456", "123478"], ["1234…"]),
        (["straße", "STRASSE"], ["stra…"]),
    ],
)
def test_labels_are_normalized_for_trackers(labels: list[str], tidied: list[str]) -> None:
    assert tidy_labels(labels, 5) == tidied


ENTROPY = "0123456789ABCDEF"


@pytest.mark.parametrize(
    ("own_id", "moment"),
    [
        (f"exp_0000000000{ENTROPY}", "1969-12-31T23:00:00Z"),
        (f"exp_00000000Z7{ENTROPY}", "1969-12-31T23:00:00Z"),  # 999 ms
        (f"exp_00000000Z8{ENTROPY}", "1969-12-31T23:00:01Z"),  # 1,000
        (f"tev_01JAM5T4Q7{ENTROPY}", "2024-10-20T04:18:44Z"),
        (f"exp_0ZZZZZZZZZ{ENTROPY}", "3084-12-12T11:41:28Z"),
        (f"exp_8000000000{ENTROPY}", None),
        (f"exp_000000000U{ENTROPY}", None),
        (f"exp_0000000000{ENTROPY}0", None),
        (f"exp_0000000000{ENTROPY[1:]}", None),
        ("exp_1", None),
        ("", None),
    ],
)
def test_the_earliest_creation_is_an_hour_before_the_time_of_an_id(own_id: str, moment: str | None) -> None:
    assert since_creation(own_id) == ({} if moment is None else {"since": moment})


OWN_URL = "https://git.example.com/acme/shop/issues"


@pytest.mark.parametrize(
    ("number", "url", "found"),
    [
        (7, f"{OWN_URL}/7", f"{OWN_URL}/7"),
        (7, None, f"{OWN_URL}/7"),
        (7, "javascript:7", f"{OWN_URL}/7"),
        (7, "https://GIT.example.com/Acme/Shop/-/issues/7", "https://GIT.example.com/Acme/Shop/-/issues/7"),
        (7, "https://git.example.com/acme/shop/issues/8", None),
        (7, "https://git.example.com/acme/shop/issues/17", None),
        (7, "https://git.example.com/acme/other/issues/7", None),
        (7, "https://git.example.com/acme/shop2/issues/7", None),
        (7, "https://git.example.com/xacme/shop/issues/7", None),
        (7, "https://acme/shop/7", None),
        (0, f"{OWN_URL}/0", None),
        ("7", f"{OWN_URL}/7", None),
        (True, f"{OWN_URL}/True", None),
    ],
)
def test_an_issue_is_returned_only_with_a_valid_number_and_no_url_of_another_issue(
    number: object, url: object, found: str | None
) -> None:
    assert issue_of(number, url, "acme/shop", OWN_URL) == (None if found is None else TrackerIssue("7", found))


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(0, False), (1, True), (2**63 - 1, True), (2**63, False), (-1, False), (True, False), (1.0, False), ("1", False)],
)
def test_a_number_of_an_issue_is_a_positive_integer(value: object, is_one: bool) -> None:
    assert is_number(value) is is_one


def test_the_oldest_issue_with_the_marker_is_ours() -> None:
    issues = [{"n": 12, "body": "x exp_1"}, {"n": 9, "body": "exp_1"}, {"n": 3, "body": "exp_2"}, {"n": 10, "body": "exp_1"}]
    others = [{"n": 1, "body": None}, {"n": 2}, None, "exp_1", {"n": 4, "title": "exp_1"}, {"n": "5", "body": "exp_1"}]

    def read(value: object) -> TrackerIssue | None:
        number = value_at(value, "n")
        return TrackerIssue(str(number), "") if is_number(number) else None

    assert oldest_with_marker([*issues, *others], "body", "exp_1", read) == TrackerIssue("9", "")
    assert oldest_with_marker(others, "body", "exp_1", read) is None


@pytest.mark.parametrize(
    ("path", "found"),
    [
        *(((), [{"a": 1}, 2]), ((0, "a"), 1), ((1,), 2)),
        *(((2,), None), ((-1,), None), (("a",), None), ((0, 0), None), ((1, "a"), None)),
    ],
)
def test_a_value_is_read_at_its_path_or_is_none(path: tuple[str | int, ...], found: object) -> None:
    assert value_at([{"a": 1}, 2], *path) == found


@pytest.mark.parametrize("length", [500, 501])
def test_a_url_of_more_than_500_characters_is_omitted(length: int) -> None:
    url = "https://example.com/".ljust(length, "a")
    assert issue_url(url) == (url if length == 500 else None)
