"""A list continues exactly where a page ended, and an invalid cursor is rejected without being echoed."""

import json
from typing import Any

import falcon
import pytest
from falcon.testing import create_req

from schemas.base.errors import ValidationFailed
from service.http.paging import DEFAULT_LIMIT, MAX_LIMIT, PageRequest, next_page, read_numbered_page, read_page, send_page
from storage.db import identifiers
from tests.support.http.raw_http import CANARY, base64url

FILTERS = {"status": ("active", "paused")}
URL = "https://riskrelay.example.com/api/things"
IDS = [f"{identifiers.TARGET}_{number:026}" for number in reversed(range(5))]


def page_of(query: str) -> PageRequest:
    return read_page(create_req(query_string=query), identifiers.TARGET, FILTERS)


def answered(page: PageRequest, ids: list[str]) -> tuple[dict[str, Any], str | None]:
    resp = falcon.Response()
    send_page(resp, URL, page, [{"id": each} for each in ids])
    assert resp.data is not None
    return json.loads(resp.data), resp.get_header("Link")


def test_without_parameters_the_first_page_is_returned() -> None:
    assert page_of("") == PageRequest(DEFAULT_LIMIT, None, {})
    assert page_of("other=1") == PageRequest(DEFAULT_LIMIT, None, {})


@pytest.mark.parametrize(("text", "limit"), [("1", 1), ("200", MAX_LIMIT), ("050", 50)])
def test_a_limit_within_the_bounds_is_used(text: str, limit: int) -> None:
    assert page_of(f"limit={text}").limit == limit


@pytest.mark.parametrize(
    ("query", "refusals"),
    [
        ("limit=0", {("/limit", "out_of_range")}),
        ("limit=201", {("/limit", "out_of_range")}),
        ("limit=-1", {("/limit", "out_of_range")}),
        (f"limit={'9' * 5000}", {("/limit", "out_of_range")}),  # more digits than int() takes
        ("limit=", {("/limit", "invalid_type")}),
        ("limit=1.5", {("/limit", "invalid_type")}),
        ("limit=%D9%A1", {("/limit", "invalid_type")}),  # an Arabic digit
        ("limit=1%0A", {("/limit", "invalid_type")}),
        ("limit=1&limit=2", {("/limit", "invalid_type")}),
        ("cursor=", {("/cursor", "invalid_cursor")}),
        (f"cursor={CANARY}", {("/cursor", "invalid_cursor")}),
        ("cursor=%C3%A9%00", {("/cursor", "invalid_cursor")}),
        (f"cursor={IDS[0]}", {("/cursor", "invalid_cursor")}),  # an ID is not a cursor
        (f"cursor={base64url(IDS[0])}", {("/cursor", "invalid_cursor")}),  # without the version
        (f"cursor={base64url('2:' + IDS[0])}", {("/cursor", "invalid_cursor")}),
        (f"cursor={base64url('1:' + IDS[0].replace('tgt', 'exp'))}", {("/cursor", "invalid_cursor")}),  # of another list
        (f"cursor={base64url('1:tgt_7')}", {("/cursor", "invalid_cursor")}),
        (f"cursor={base64url('1:' + IDS[0])}!!!!", {("/cursor", "invalid_cursor")}),  # base64 that Python decodes leniently
        (f"cursor={base64url('1:' + IDS[0])}&cursor={base64url('1:' + IDS[0])}", {("/cursor", "invalid_cursor")}),
        ("status=on", {("/status", "not_allowed")}),
        ("status=", {("/status", "not_allowed")}),
        ("status=active&status=paused", {("/status", "not_allowed")}),
        (
            f"limit=x&cursor={CANARY}&status={CANARY}",
            {("/limit", "invalid_type"), ("/cursor", "invalid_cursor"), ("/status", "not_allowed")},
        ),
    ],
)
def test_invalid_paging_parameters_are_rejected_by_name(query: str, refusals: set[tuple[str, str]]) -> None:
    with pytest.raises(ValidationFailed) as refused:
        page_of(query)
    assert {(each.path, each.code) for each in refused.value.problems} == refusals
    assert CANARY not in repr(refused.value.problems)


def test_a_page_that_is_not_the_last_has_a_next_cursor() -> None:
    body, link = answered(PageRequest(2, None, {"status": "paused"}), IDS[:3])
    assert [each["id"] for each in body["items"]] == IDS[:2]
    assert link == f'<{URL}?status=paused&limit=2&cursor={body["next_cursor"]}>; rel="next"'

    query = link.partition("?")[2].partition(">")[0]
    assert page_of(query) == PageRequest(2, IDS[1], {"status": "paused"})


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_last_page_has_no_next_cursor(count: int) -> None:
    body, link = answered(PageRequest(2), IDS[:count])
    assert body == {"items": [{"id": each} for each in IDS[:count]], "next_cursor": None}
    assert link is None


def test_one_row_more_than_shown_is_fetched() -> None:
    assert PageRequest(2).fetch_limit == 3


def test_a_list_of_numbered_rows_continues_after_the_last_number() -> None:
    query = next_page(PageRequest(2), ["30", "20", "10"])
    assert query is not None
    assert read_numbered_page(create_req(query_string=query)) == PageRequest(2, "20", {})
    assert next_page(PageRequest(3), ["30", "20", "10"]) is None


@pytest.mark.parametrize("text", ["1:0", "1:-1", "1:07", f"1:{IDS[0]}", f"1:{'9' * 19}", "1:7 ", "7", "1:\u0661"])
def test_only_numbers_are_cursors_of_a_list_of_numbered_rows(text: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        read_numbered_page(create_req(query_string=f"cursor={base64url(text)}"))
    assert [(each.path, each.code) for each in refused.value.problems] == [("/cursor", "invalid_cursor")]
