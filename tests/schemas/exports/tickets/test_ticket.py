"""A ticket is readable and stays within its limits; equal tickets have equal bytes."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.exports.tickets.ticket import MAX_TITLE, Source, Ticket, delivery_body, digest
from schemas.exports.tickets.ticket_text import ticket_for_finding
from schemas.intake.scanner import Issue, ScannedPage

PAGE = ScannedPage("https://shop.example/cart?x=1", None, 200, "cart", {})


def make_issue(**changes: Any) -> Issue:
    known: dict[str, Any] = {
        "code": "img-alt",
        "title": "Image without text",
        "severity": "high",
        "description": "",
        "location": "",
        "url": None,
        "evidence": {},
    }
    return Issue(**{**known, **changes})


def make_ticket(page: ScannedPage = PAGE, **changes: Any) -> Ticket:
    return ticket_for_finding(page, make_issue(**changes), 42)


def test_additional_text_of_the_scanner_does_not_replace_the_rule() -> None:
    ticket = make_ticket(evidence={"rule": "another", "location": "elsewhere"})
    assert ticket.evidence["rule"] == "img-alt"
    assert ticket.evidence["location"] == make_issue().location


def test_a_ticket_says_what_is_wrong_where_and_by_which_rule() -> None:
    ticket = make_ticket(description="Say what it shows.", location="main > img", evidence={"impact": "serious"})
    assert ticket.record() == {
        "title": "Image without text on shop.example/cart (img)",
        "description": "Say what it shows.\n\nPage: https://shop.example/cart?x=1\nWhere: main > img\nSeverity: high\n"
        "Rule: img-alt\nFound by: scan run 42",
        "severity": "high",
        "page_url": "https://shop.example/cart?x=1",
        "labels": ["website-risk", "severity:high", "page:cart"],
        "evidence": {"rule": "img-alt", "location": "main > img", "impact": "serious"},
    }


def test_unknown_values_are_omitted() -> None:
    ticket = make_ticket(ScannedPage("https://shop.example", None, None, None, {}))
    assert ticket.title == "Image without text on shop.example/"
    assert ticket.labels == ("website-risk", "severity:high")
    assert "Where:" not in ticket.description
    assert ticket.description.startswith("Image without text\n\n")


def test_the_url_of_an_issue_replaces_the_url_of_its_page() -> None:
    ticket = make_ticket(url="https://shop.example/frame")
    assert (ticket.page_url, ticket.title) == ("https://shop.example/frame", "Image without text on shop.example/frame")


@pytest.mark.parametrize(
    ("title", "path", "expected"),
    [
        ("two\n lines", "/", "two lines on shop.example/"),
        ("x" * 400, "/", "x" * 232 + "… on shop.example/"),  # 250 characters in total
        ("short", "/" + "p" * 400, "short on shop.example/" + "p" * 227 + "…"),  # a long path is cut at the end
        ("x" * 400, "/" + "p" * 400, "x" * 124 + "… on shop.example/" + "p" * 107 + "…"),  # half of the length for each
    ],
)
def test_a_title_never_exceeds_its_limit(title: str, path: str, expected: str) -> None:
    ticket = make_ticket(ScannedPage(f"https://shop.example{path}", None, None, None, {}), title=title)
    assert ticket.title == expected
    assert len(ticket.title) <= MAX_TITLE == 250


@pytest.mark.parametrize(
    ("location", "element"),
    [
        ("main > img.hero", " (img.hero)"),
        ("/html/body/div[2]/img", " (img)"),
        ("ul li a", " (ul li a)"),
        ("parameter q", " (parameter q)"),
        ("page", ""),  # what import-scan writes if a report has no location
        ("body > " + "x" * 80, f" ({'x' * 59}…)"),
    ],
)
def test_a_title_names_the_last_part_of_the_location_so_that_two_places_differ(location: str, element: str) -> None:
    assert make_ticket(location=location).title == f"Image without text on shop.example/cart{element}"
    long = make_ticket(ScannedPage("https://shop.example/" + "p" * 400, None, None, None, {}), location=location).title
    assert long.endswith(f"…{element}")


def test_a_ticket_has_the_screenshot_and_the_scanners_page_about_the_rule() -> None:
    found = make_issue(help_url="https://rules.example/img-alt", evidence={"places": "reserved", "impact": "serious"})
    ticket = ticket_for_finding(PAGE, found, 42, "artifacts/42/cart.png")
    assert ticket.evidence == {
        "impact": "serious",
        "rule": "img-alt",
        "location": "",
        "screenshot": "artifacts/42/cart.png",
        "help_url": "https://rules.example/img-alt",
    }
    assert "screenshot" not in make_ticket().evidence


def test_a_digest_is_of_the_canonical_record_whatever_the_order() -> None:
    record = make_ticket().record()
    turned = dict(reversed(record.items()))
    spelled = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert digest(record) == digest(turned) == f"sha256:{hashlib.sha256(spelled).hexdigest()}"
    assert digest({**record, "title": "other"}) != digest(record)


def test_the_delivered_bytes_are_these_exactly() -> None:
    source = Source("finding", "fnd_1", 42)
    body = delivery_body(
        "exp_1", "tgt_1", source, {"title": "é", "labels": [], "evidence": {"n": 1.5}}, "2026-03-01T12:00:00.000Z"
    )
    assert (
        body
        == (
            '{"created_at":"2026-03-01T12:00:00.000Z",'
            '"export":{"id":"exp_1","source":{"id":"fnd_1","scan_run_id":42,"type":"finding"},"target_id":"tgt_1"},'
            '"id":"exp_1","ticket":{"evidence":{"n":1.5},"labels":[],"title":"é"},"type":"ticket.export","version":1}'
        ).encode()
    )


def test_a_source_without_a_scan_run_has_no_scan_run_member() -> None:
    assert Source("manual", "note-1").record() == {"type": "manual", "id": "note-1"}


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=500), st.text("abc/é ", max_size=400))
def test_every_ticket_title_is_one_line_within_the_limit(title: str, path: str) -> None:
    ticket = make_ticket(ScannedPage(f"https://shop.example/{path}", None, None, None, {}), title=title)
    assert 0 < len(ticket.title) <= MAX_TITLE
    assert "\n" not in ticket.title
