"""The places of a ticket's findings, and the line about them in its row."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.exports.record import Export, Sighting
from service.console.triage.places import places_of, row_line
from storage.exports.rows import export_from
from tests.support.exports import export_row
from tests.support.factories import NOW


def export(ticket: dict[str, Any], **changes: Any) -> Export:
    """Return a prepared export with a ticket."""
    row = export_row(ticket, source_id="fnd_1", scan_run_id=None, severity_rank=3)
    return replace(export_from(row), **changes)


def grouped(*urls: str) -> dict[str, Any]:
    return {"page_url": urls[0], "evidence": {"places": [{"url": url, "location": "main"} for url in urls]}}


def sighting(times_seen: int, times_reopened: int) -> Sighting:
    return Sighting("fnd_1", NOW, NOW, times_seen, 1, 1, times_reopened)


def test_a_group_has_the_places_of_its_evidence() -> None:
    [first, second] = places_of(export(grouped("https://shop.example/a?b=1", "https://shop.example")))
    assert (first.page, first.location) == ("/a?b=1", "main")
    assert second.page == "/"


def test_a_ticket_of_one_page_has_that_page_as_its_place() -> None:
    [place] = places_of(export({"page_url": "https://shop.example/a", "evidence": {"location": "h1"}}))
    assert (place.url, place.page, place.location) == ("https://shop.example/a", "/a", "h1")


@pytest.mark.parametrize(
    "ticket",
    [
        {},
        {"page_url": None},
        {"evidence": None},
        {"evidence": {"places": []}},
        {"evidence": {"places": "x"}},
        {"evidence": []},
    ],
)
def test_a_ticket_without_places_has_none(ticket: dict[str, Any]) -> None:
    assert places_of(export(ticket)) == []


@pytest.mark.parametrize("url", ["https://[", "not a url", "\u202ehttps://shop.example"])
def test_a_text_that_is_no_url_is_shown_as_it_is(url: str) -> None:
    [place] = places_of(export({"page_url": url}))
    assert place.page == url


@pytest.mark.parametrize(
    ("ticket", "changes", "line"),
    [
        (grouped("https://shop.example/a"), {"findings": (1, 0), "rule": "zap:1"}, "shop.example · /a · zap:1"),
        (
            grouped("https://shop.example/a", "https://shop.example/b"),
            {"findings": (2, 1), "rule": "zap:1"},
            "shop.example · /a, /b · zap:1 · 1 of 2 fixed",
        ),
        (grouped(*[f"https://shop.example/{n}" for n in range(4)]), {"findings": (4, 0)}, "shop.example · 4 pages"),
        (grouped(*["https://shop.example/a"] * 3), {"findings": (61, 0)}, "shop.example · 61 places"),
        (
            grouped("https://shop.example/a"),
            {"findings": (1400, 1200)},
            "shop.example · 1\u202f400 places · 1\u202f200 of 1\u202f400 fixed",
        ),
        (grouped("https://a.example/", "https://b.example/"), {"findings": (2, 0)}, "2 sites · /"),
        ({"page_url": "https://shop.example/a"}, {"original_ticket": {}}, "shop.example · /a · edited"),
        (grouped("https://shop.example/a"), {"findings": (1, 0), "finding": sighting(1, 0)}, "shop.example · /a"),
        (
            grouped("https://shop.example/a"),
            {"findings": (1, 0), "finding": sighting(3, 1)},
            "shop.example · /a · seen in 3 scan runs · reopened",
        ),
        (
            grouped("https://shop.example/a", "https://shop.example/b"),
            {"findings": (2, 0), "finding": sighting(3, 2)},
            "shop.example · /a, /b · reopened",
        ),
        ({}, {}, ""),
    ],
)
def test_a_row_names_site_pages_rule_and_what_changed(ticket: dict[str, Any], changes: dict[str, Any], line: str) -> None:
    assert row_line(export(ticket, **changes)) == line
