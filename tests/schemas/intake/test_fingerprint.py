"""A fingerprint recognizes the same issue on the same page, and distinguishes different issues."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.api.intake import PostbackResponse
from schemas.api.response_fields import dump
from schemas.intake.fingerprint import PostbackResult, by_fingerprint
from schemas.intake.scanner import Issue, ScannedPage

PAGE = ScannedPage("https://shop.example/cart?x=1", "https://shop.example/cart", 200, "cart", {})
ISSUE = Issue("img-alt", "Image without text", "high", "", "main > img", None, {})


def mark(page: dict[str, Any] | None = None, **issue: Any) -> str:
    known = {name: getattr(PAGE, name) for name in PAGE.__dataclass_fields__}
    defaults = {name: getattr(ISSUE, name) for name in ISSUE.__dataclass_fields__}
    [found] = by_fingerprint(ScannedPage(**{**known, **(page or {})}), [Issue(**{**defaults, **issue})])
    return found


def test_a_fingerprint_never_changes_between_versions() -> None:
    # sha256 of the page, the rule and the location with NUL between them; changing it would create every ticket again.
    assert mark() == "2139c128a3f04d3e0c0620f6f2a2387fd00d1f9f16f74f9dc077c2c3ad571809"


@pytest.mark.parametrize(
    ("page", "issue"),
    [
        ({"normalized_url": "HTTPS://Shop.Example/cart"}, {}),  # the case of scheme and host
        ({"normalized_url": "https://shop.example/cart#top"}, {}),  # a fragment
        ({"url": "https://shop.example/cart?other=1"}, {}),  # the URL, if there is a normalized one
        ({"status_code": 500, "page_type": "other", "response_headers": {"a": 1}}, {}),
        ({}, {"title": "Worded otherwise", "description": "more", "severity": "low", "evidence": {"a": 1}}),
        ({}, {"code": " IMG-ALT "}),
        ({}, {"location": " main  >\n img"}),
        ({"normalized_url": "https://shop.example/cart/?utm_source=news"}, {}),  # a tracking parameter
        ({}, {"location": "MAIN.is-active>img"}),  # a class that depends on the visit
    ],
)
def test_irrelevant_changes_keep_the_fingerprint(page: dict[str, Any], issue: dict[str, Any]) -> None:
    assert mark(page, **issue) == mark()


@pytest.mark.parametrize(
    ("page", "issue"),
    [
        ({"normalized_url": "https://shop.example/other"}, {}),
        ({"normalized_url": "https://shop.example/Cart"}, {}),  # paths are case-sensitive
        ({"normalized_url": "https://shop.example/cart?page=2"}, {}),
        ({"normalized_url": "http://shop.example/cart"}, {}),
        ({"normalized_url": None}, {}),  # then the URL itself is used
        ({}, {"url": "https://shop.example/frame"}),
        ({}, {"code": "label"}),
        ({}, {"location": "main > img.hero"}),
        ({}, {"code": "img-alt main", "location": "> img"}),  # the parts are not just concatenated
    ],
)
def test_relevant_changes_change_the_fingerprint(page: dict[str, Any], issue: dict[str, Any]) -> None:
    assert mark(page, **issue) != mark()


def test_a_url_without_a_path_equals_its_root() -> None:
    assert mark({"normalized_url": "https://shop.example"}) == mark({"normalized_url": "https://shop.example/"})


def places(*locations: str) -> list[Issue]:
    return [replace(ISSUE, location=location) for location in locations]


def test_one_issue_has_the_same_fingerprint_alone_and_in_a_postback() -> None:
    assert by_fingerprint(PAGE, [ISSUE]) == {mark(): ISSUE}


#: Columns: locations of one rule on one page; the number of issues.
POSTBACKS = [
    ((), 0),
    (("main > img", "main  > img", " main > img "), 1),  # one location
    (("", ""), 1),  # without a location
    (("li > a", "li.is-active > a"), 2),  # the same for another visit, but two locations in this postback
    ((".css-1q2w3e4", ".css-9z8y7x6", ".css-1q2w3e4"), 2),  # the same after a new build
    (tuple(f"li:nth-child({number})" for number in range(1, 101)), 100),
    (tuple(f"#ember{number}" for number in range(100)), 100),
]


@pytest.mark.parametrize(("locations", "count"), POSTBACKS)
def test_two_locations_in_one_postback_are_never_one_finding(locations: tuple[str, ...], count: int) -> None:
    assert len(by_fingerprint(PAGE, places(*locations))) == count


def test_similar_locations_are_recognized_after_a_build_by_their_order() -> None:
    before = by_fingerprint(PAGE, places(".css-1q2w3e4 > a", ".css-9z8y7x6 > a", "main > a"))
    after = by_fingerprint(PAGE, places(".css-0kq8b7z > a", ".css-x1x2x3x > a", "main > a"))
    assert list(before) == list(after)
    assert [issue.location for issue in after.values()] == [".css-0kq8b7z > a", ".css-x1x2x3x > a", "main > a"]


def test_a_repeated_issue_is_stored_as_last_reported() -> None:
    said_again = replace(ISSUE, title="Worded otherwise")
    assert list(by_fingerprint(PAGE, [ISSUE, said_again]).values()) == [said_again]


def test_a_repeated_issue_has_its_highest_severity() -> None:
    mild = replace(ISSUE, severity="low")
    assert list(by_fingerprint(PAGE, [ISSUE, mild]).values()) == [ISSUE]
    assert list(by_fingerprint(PAGE, [mild, ISSUE, mild]).values()) == [ISSUE]


DISTINCT = st.lists(
    st.tuples(
        st.sampled_from(["/", "/cart", "/cart?page=2", "/Cart"]),
        st.sampled_from(["img-alt", "label", "contrast"]),
        st.sampled_from(
            ["img", "main > img", "li:nth-child(1)", "li:nth-child(2)", ".card__title", ".css-1q2w3e4", "#ember1"]
        ),
    ),
    unique=True,
)


@given(DISTINCT)
def test_distinct_pages_rules_and_places_stay_distinct(distinct: list[tuple[str, str, str]]) -> None:
    issues = [
        replace(ISSUE, url=f"https://shop.example{path}", code=code, location=location) for path, code, location in distinct
    ]
    assert len(by_fingerprint(PAGE, issues)) == len(distinct)
    assert len({mark for issue in issues for mark in by_fingerprint(PAGE, [issue])}) == len(distinct)


def test_the_response_counts_findings_and_lists_exports() -> None:
    assert dump(PostbackResponse, PostbackResult(42, 2, 1, ("exp_1", "exp_2"), 4, 3)) == {
        "scan_run_id": 42,
        "status": "accepted",
        "findings": {"new": 2, "seen": 1, "fixed": 4, "reopened": 3},
        "ticket_exports": ["exp_1", "exp_2"],
    }


def test_normalization_yields_after_each_location() -> None:
    calls: list[None] = []
    alike = places(*(f".css-1q2w3{number:02}" for number in range(50)))
    by_fingerprint(PAGE, [*places(*(f"p:nth-child({number})" for number in range(50))), *alike], lambda: calls.append(None))
    assert len(calls) == 50 + len(alike)
