"""A fingerprint knows the same issue on the same page again, and tells different ones apart."""

from typing import Any

import pytest

from schemas.findings import PostbackResult, fingerprint, postback_answer
from schemas.scanner import Issue, Page

PAGE = Page("https://shop.example/cart?x=1", "https://shop.example/cart", 200, "cart", {})
ISSUE = Issue("img-alt", "Image without text", "high", "", "main > img", None, {})


def mark(page: dict[str, Any] | None = None, **issue: Any) -> str:
    known = {name: getattr(PAGE, name) for name in PAGE.__dataclass_fields__}
    flaw = {name: getattr(ISSUE, name) for name in ISSUE.__dataclass_fields__}
    return fingerprint(Page(**{**known, **(page or {})}), Issue(**{**flaw, **issue}))


def test_a_fingerprint_never_changes_between_versions() -> None:
    # sha256 of the page, the rule and the place with NUL between them: changing it would prepare every ticket again.
    assert mark() == "2139c128a3f04d3e0c0620f6f2a2387fd00d1f9f16f74f9dc077c2c3ad571809"


@pytest.mark.parametrize(
    ("page", "issue"),
    [
        ({"normalized_url": "HTTPS://Shop.Example/cart"}, {}),  # the case of scheme and host
        ({"normalized_url": "https://shop.example/cart#top"}, {}),  # a fragment
        ({"url": "https://shop.example/cart?other=1"}, {}),  # the address, where a normalized one is known
        ({"status_code": 500, "page_type": "other", "response_headers": {"a": 1}}, {}),
        ({}, {"title": "Worded otherwise", "description": "more", "severity": "low", "evidence": {"a": 1}}),
        ({}, {"code": " IMG-ALT "}),
        ({}, {"location": " main  >\n img"}),
    ],
)
def test_what_does_not_tell_findings_apart(page: dict[str, Any], issue: dict[str, Any]) -> None:
    assert mark(page, **issue) == mark()


@pytest.mark.parametrize(
    ("page", "issue"),
    [
        ({"normalized_url": "https://shop.example/other"}, {}),
        ({"normalized_url": "https://shop.example/Cart"}, {}),  # paths have a case
        ({"normalized_url": "https://shop.example/cart?page=2"}, {}),
        ({"normalized_url": "http://shop.example/cart"}, {}),
        ({"normalized_url": None}, {}),  # then the address itself
        ({}, {"url": "https://shop.example/frame"}),
        ({}, {"code": "label"}),
        ({}, {"location": "main > img.hero"}),
        ({}, {"code": "img-alt main", "location": "> img"}),  # the parts do not run into each other
    ],
)
def test_what_tells_findings_apart(page: dict[str, Any], issue: dict[str, Any]) -> None:
    assert mark(page, **issue) != mark()


def test_an_address_without_a_path_is_its_root() -> None:
    assert mark({"normalized_url": "https://shop.example"}) == mark({"normalized_url": "https://shop.example/"})


def test_the_answer_counts_findings_and_names_exports() -> None:
    assert postback_answer(PostbackResult(42, 2, 1, ("exp_1", "exp_2"))) == {
        "scan_run_id": 42,
        "status": "accepted",
        "findings": {"new": 2, "seen": 1},
        "ticket_exports": ["exp_1", "exp_2"],
    }
