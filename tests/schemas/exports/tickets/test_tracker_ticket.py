"""A tracker receives the approved ticket, in which the places of a group appear once."""

import pytest

from schemas.base.places import Place
from schemas.exports.tickets.group_ticket import Group, group_ticket, new_group, with_findings, without_places
from schemas.exports.tickets.ticket import Source, Ticket, delivery_body
from schemas.exports.tickets.ticket_text import ticket_by_hand
from schemas.exports.tickets.tracker_ticket import ticket_of
from schemas.intake.scanner import Issue, ScannedPage
from schemas.trackers.exchange import TrackerTicket

PAGE = ScannedPage("https://shop.example/", None, 200, "home", {})
CSP = Issue("csp", "No Content-Security-Policy header", "medium", "The page sends none.", "", None, {"cwe": "693"})


def grouped(count: int) -> Group:
    """Return a group of one rule on `count` pages."""
    group = new_group(PAGE, CSP, 42, None)
    added = [(Place(f"https://shop.example/{number}", f"#part-{number}"), "medium") for number in range(1, count)]
    return with_findings(group, added, ()) if added else group


def read(ticket: Ticket, public_base_url: str | None = None) -> TrackerTicket:
    source = Source("finding", "fnd_01JD", 42)
    return ticket_of(delivery_body("exp_01JD", "tgt_01JD", source, ticket.record(), "2026-11-23T00:00:00Z"), public_base_url)


def test_a_ticket_has_its_parts_and_the_page_of_its_export() -> None:
    ticket = ticket_by_hand("Title", "Text", "low", "https://shop.example/", ["a", "b"], {"places": "two"})
    assert read(ticket, "https://risk.example") == TrackerTicket(
        export_id="exp_01JD",
        title="Title",
        description="Text",
        severity="low",
        page_url="https://shop.example/",
        labels=("a", "b"),
        evidence={"places": "two"},
        console_url="https://risk.example/console/exports/exp_01JD",
    )
    assert read(ticket).console_url is None


def test_evidence_with_the_names_of_a_group_is_shown_as_it_is() -> None:
    evidence = {"places": [1], "findings": "some", "pages": 1, "sites": []}
    ticket = read(ticket_by_hand("Title", "Text", "low", None, [], evidence))
    assert (ticket.evidence, ticket.places, ticket.places_total) == (evidence, (), 0)


def test_a_group_has_its_places_once() -> None:
    ticket = read(group_ticket(grouped(60)))
    assert (len(ticket.places), ticket.places_total) == (50, 60)
    assert ticket.places[1] == Place("https://shop.example/1", "#part-1")
    assert ticket.description == "The page sends none.\n\nSeverity: medium\nRule: csp\nFound by: scan run 42"
    assert ticket.evidence == {"cwe": "693", "rule": "csp", "location": ""}


def test_a_group_of_one_has_the_facts_of_its_finding() -> None:
    ticket = read(group_ticket(grouped(1)))
    assert (ticket.places, ticket.places_total) == ((Place(PAGE.url, ""),), 1)
    assert "Page: https://shop.example/\n" in ticket.description


LISTED = "\n\nPlaces:\n- https://shop.example/ (main)\n- https://shop.example/2\n… and 7 more"


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        (f"Text{LISTED}", "Text"),
        (f"Text{LISTED}\n\nRule: csp", "Text\n\nRule: csp"),
        (f"Text{LISTED.rpartition(chr(10))[0]}\n\nRule: csp", "Text\n\nRule: csp"),
        # Text added by a person is kept.
        (f"Text{LISTED}\nAsk Kim first.", "Text\nAsk Kim first."),
        ("Text\n\nPlaces:\nall of them", "Text\n\nPlaces:\nall of them"),
        ("Text\n\nPlaces:\n", "Text\n\nPlaces:\n"),
        # Text reported by the scanner is kept.
        (f"Text\n\nPlaces:\n- reported\n\nMore{LISTED}", "Text\n\nPlaces:\n- reported\n\nMore"),
        ("Places:\n- a", "Places:\n- a"),
        ("Text", "Text"),
        ("", ""),
    ],
)
def test_only_the_list_of_places_is_removed(description: str, expected: str) -> None:
    assert without_places(description) == expected
