"""Filters are read equally from a URL and from JSON; a cursor belongs to its filters and its sort order."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from schemas.base.errors import ValidationFailed
from schemas.triage.export_filter import (
    FILTERS,
    ExportFilterForm,
    ExportQuery,
    ExportSort,
    ListPosition,
    decode_cursor,
    encode_cursor,
    query_from,
)
from schemas.triage.finding_filter import finding_query_from
from tests.support.http.raw_http import base64url

TARGET = "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"
EXPORT = "exp_01AAAAAAAAAAAAAAAAAAAAAAAA"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def refusals(parameters: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        query_from(parameters, 1)
    return [(each.path, each.code) for each in refused.value.problems]


@pytest.mark.parametrize(
    ("name", "value"), [("rule", "alt"), ("status", "failed"), ("project_id", 7), ("target_id", TARGET)]
)
def test_a_filter_describes_how_many_values_it_may_have(name: str, value: Any) -> None:
    form = ExportFilterForm()
    values: Any = form.fields[name]
    _, several = values.json_schema["anyOf"]
    assert form.read({name: [value] * several["maxItems"]}) == form.read({name: [value]})
    assert refusals({name: [value] * (several["maxItems"] + 1)}) == [(f"/{name}", "too_many")]


def test_a_comma_within_a_value_is_escaped() -> None:
    assert query_from({"rule": r"Image\, without alt,b,c\d"}, 1).rules == ("Image, without alt", "b", r"c\d")
    assert query_from({"rule": ["Image, without alt"]}, 1).rules == ("Image, without alt",)


def test_comma_separated_texts_and_lists_make_the_same_filter() -> None:
    text = {"status": "failed,blocked", "severity": "high", "project_id": "7,3", "target_id": TARGET, "rule": "a,b"}
    lists = {
        "status": ["blocked", "failed", "failed"],
        "severity": ["high"],
        "project_id": [3, "7"],
        "target_id": [TARGET],
        "rule": ["b", "a"],
    }
    wanted = ExportQuery(
        account_id=1,
        statuses=("blocked", "failed"),
        severities=("high",),
        project_ids=(3, 7),
        rules=("a", "b"),
        target_ids=(TARGET,),
    )
    assert query_from(text, 1) == query_from(lists, 1) == wanted


def test_other_parameters_are_ignored_in_a_url_and_refused_in_a_closed_object() -> None:
    assert query_from({"colour": "blue", "sort": "x"}, None) == ExportQuery()
    with pytest.raises(ValidationFailed) as refused:
        ExportFilterForm().read({"sort": "created_at"})
    assert [each.code for each in refused.value.problems] == ["unknown_member"]


def test_hosts_have_one_case_and_a_search_is_its_words() -> None:
    read = query_from({"host": "Shop.Example", "q": 'No "Alt"-text OR x*, no'}, None)
    assert (read.hosts, read.words) == (("shop.example",), ("alt", "no", "or", "text", "x"))


def test_moments_are_read_with_their_zone() -> None:
    read = query_from({"created_after": "2026-03-01T13:00:00+01:00", "created_before": "2026-03-01T12:00:00Z"}, None)
    assert (read.created_after, read.created_before) == (NOW, NOW)


@pytest.mark.parametrize(
    ("parameters", "refusal"),
    [
        ({"status": "lost"}, ("/status", "not_allowed")),
        ({"status": ["failed", 1]}, ("/status", "invalid_type")),
        ({"status": {}}, ("/status", "invalid_type")),
        ({"status": []}, ("/status", "too_short")),
        ({"severity": "high,"}, ("/severity", "not_allowed")),
        ({"project_id": [0]}, ("/project_id", "not_allowed")),
        ({"project_id": [True]}, ("/project_id", "invalid_type")),
        ({"project_id": "9999999999"}, ("/project_id", "not_allowed")),
        ({"rule": "a" * 501}, ("/rule", "not_allowed")),
        ({"rule": ",".join(map(str, range(21)))}, ("/rule", "too_many")),
        ({"rule": "\0"}, ("/rule", "not_allowed")),
        ({"host": "a" * 501}, ("/host", "not_allowed")),
        ({"q": ""}, ("/q", "too_short")),
        ({"q": "_ - !"}, ("/q", "no_word")),
        ({"q": 7}, ("/q", "invalid_type")),
        ({"q": "a" * 501}, ("/q", "too_long")),
        ({"q": " ".join(map(str, range(21)))}, ("/q", "too_many")),
        ({"created_after": "yesterday"}, ("/created_after", "invalid_timestamp")),
    ],
)
def test_invalid_values_are_refused_with_their_parameter(parameters: dict[str, Any], refusal: tuple[str, str]) -> None:
    assert refusals(parameters) == [refusal]


def test_a_refusal_names_the_allowed_values_and_the_limit() -> None:
    with pytest.raises(ValidationFailed) as refused:
        query_from({"severity": "x", "rule": ["a"] * 21}, 1)
    messages = " ".join(each.message for each in refused.value.problems)
    assert "info, low, medium, high, critical" in messages
    assert "20" in messages


@pytest.mark.parametrize(("read", "limit"), [(query_from, 20), (finding_query_from, 10)])
def test_a_refused_search_names_how_many_words_it_may_have(read: Callable[[dict[str, Any], int], Any], limit: int) -> None:
    assert len(read({"q": " ".join(map(str, range(limit)))}, 1).words) == limit
    with pytest.raises(ValidationFailed) as refused:
        read({"q": " ".join(map(str, range(limit + 1)))}, 1)
    [problem] = refused.value.problems
    assert (problem.path, problem.code) == ("/q", "too_many")
    assert problem.message.endswith(f": {limit}.")


QUERY = ExportQuery(1, statuses=("failed",), rules=("csp",))


def test_a_cursor_is_read_with_the_filters_and_the_order_it_was_created_for() -> None:
    for sort in ExportSort:
        position = ListPosition(EXPORT, 4)
        cursor = encode_cursor(QUERY, sort, position)
        assert decode_cursor(QUERY, sort, cursor) == position
        others = [query_from({name: value}, 1) for name, value in OTHER_VALUES.items()]
        assert all(decode_cursor(other, sort, cursor) is None for other in [*others, ExportQuery(2, statuses=("failed",))])
        assert all(decode_cursor(QUERY, other, cursor) is None for other in ExportSort if other is not sort)
    assert set(OTHER_VALUES) == set(FILTERS)


def test_the_cursor_of_waiting_exports_is_valid_at_a_later_time() -> None:
    first, later = (QUERY.waiting_for_decision(NOW.replace(minute=minute)) for minute in (0, 5))
    cursor = encode_cursor(first, ExportSort.SEVERITY, ListPosition(EXPORT, 4))
    assert decode_cursor(later, ExportSort.SEVERITY, cursor) == ListPosition(EXPORT, 4)
    assert decode_cursor(QUERY, ExportSort.SEVERITY, cursor) is None


@pytest.mark.parametrize("text", ["", "2:", f"1:{EXPORT}", f"2:000000000000:0:{EXPORT}", "é", "2:a:b:c:d"])
def test_a_foreign_text_is_not_accepted_as_a_cursor(text: str) -> None:
    assert decode_cursor(QUERY, ExportSort.NEWEST, base64url(text)) is None
    assert decode_cursor(QUERY, ExportSort.NEWEST, text) is None


OTHER_VALUES = {
    "status": "blocked",
    "severity": "high",
    "project_id": "1",
    "source": "manual",
    "rule": "hsts",
    "target_id": TARGET,
    "host": "shop.example",
    "q": "image",
    "created_after": "2026-03-01T12:00:00Z",
    "created_before": "2026-03-01T12:00:00Z",
}
