"""The ticket of a group states the problem, how often it occurs and where; new findings never remove its original text."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.accounts.forms import ProjectChangeForm
from schemas.base.errors import ValidationFailed
from schemas.base.places import Place
from schemas.base.strict_json import canonical
from schemas.exports.tickets.group_ticket import (
    MAX_PLACES,
    MAX_PLACES_BYTES,
    MAX_SITES,
    Group,
    finding_ticket,
    group_ticket,
    grown_ticket,
    is_group,
    new_group,
    read_group,
    with_findings,
    with_stored,
    without_places,
)
from schemas.exports.tickets.ticket import MAX_TITLE
from schemas.exports.tickets.ticket_text import ticket_for_finding
from schemas.intake.scanner import SEVERITIES, Issue, ScannedPage

PAGE = ScannedPage("https://shop.example/", None, 200, "home", {})
CSP = Issue("csp", "No Content-Security-Policy header", "medium", "The page sends none.", "", None, {"cwe": "693"})


def grouped(count: int, issue: Issue = CSP, **changes: Any) -> Group:
    """Return a group of one rule on `count` pages."""
    group = new_group(PAGE, issue, 42, "artifacts/home.png")
    for number in range(1, count):
        url = f"https://shop.example/{number}"
        group = with_findings(group, [(Place(url, changes.get("location", "")), changes.get("severity", "medium"))], ())
    return group


def reread(group: Group) -> Group:
    return read_group(group_ticket(group).record(), group.title, group.scan_run_id)


def test_a_group_of_one_reads_like_its_finding_and_names_its_place() -> None:
    ticket, single = group_ticket(grouped(1)), ticket_for_finding(PAGE, CSP, 42, "artifacts/home.png")
    assert finding_ticket(grouped(1)) == single
    assert (ticket.title, ticket.description, ticket.labels) == (single.title, single.description, single.labels)
    places = {"places": [{"url": PAGE.url, "location": ""}], "findings": 1, "pages": 1, "sites": ["shop.example"]}
    assert ticket.evidence == {**single.evidence, **places}


def test_a_group_names_the_rule_the_count_and_the_site() -> None:
    ticket = group_ticket(grouped(42))
    assert ticket.title == "No Content-Security-Policy header: 42 pages of shop.example"
    assert ticket.labels == ("website-risk", "severity:medium")
    first, listed, facts = ticket.description.split("\n\n")
    assert first == "The page sends none."
    lines = listed.splitlines()
    assert lines[:2] == ["Places:", "- https://shop.example/"]
    assert (len(lines), lines[-1]) == (22, "… and 22 more")
    assert facts == "Severity: medium\nRule: csp\nFound by: scan run 42"
    assert (ticket.evidence["findings"], ticket.evidence["pages"], len(ticket.evidence["places"])) == (42, 42, 42)
    assert (ticket.evidence["cwe"], ticket.evidence["screenshot"]) == ("693", "artifacts/home.png")


def test_a_long_title_is_cut_to_leave_room_for_the_count() -> None:
    title = group_ticket(grouped(42, replace(CSP, title="x" * 2 * MAX_TITLE))).title
    assert (len(title), title.endswith(": 42 pages of shop.example")) == (MAX_TITLE, True)


def test_places_and_pages_are_counted_separately() -> None:
    places = [(Place(f"https://shop.example/{number % 11}", f"img:nth-child({number})"), "low") for number in range(36)]
    ticket = group_ticket(with_findings(grouped(1), places, ()))
    assert ticket.title == "No Content-Security-Policy header: 37 places on 12 pages of shop.example"
    assert "- https://shop.example/3 (img:nth-child(3))" in ticket.description


def test_a_page_that_the_group_has_already_is_not_counted_again() -> None:
    again = with_findings(grouped(3), [(Place("https://shop.example/1", "a"), "low")], {"https://shop.example/1"})
    assert (again.findings, again.pages) == (4, 3)
    assert group_ticket(again).title.endswith(": 4 places on 3 pages of shop.example")


def test_the_title_of_a_group_counts_further_sites() -> None:
    places = [(Place(f"https://{name}.example/", ""), "low") for name in ("a", "b")]
    assert group_ticket(with_findings(grouped(1), places[:1], ())).title.endswith("2 pages of shop.example and 1 more site")
    assert group_ticket(with_findings(grouped(1), places, ())).title.endswith("3 pages of shop.example and 2 more sites")
    many = [(Place(f"https://s{number}.example/", ""), "low") for number in range(100)]
    assert len(with_findings(grouped(1), many, ()).sites) == MAX_SITES


def test_a_group_is_as_severe_as_its_most_severe_place() -> None:
    ticket = group_ticket(with_findings(grouped(2), [(Place("https://shop.example/x", ""), "high")], ()))
    assert (ticket.severity, ticket.labels) == ("high", ("website-risk", "severity:high"))
    assert group_ticket(grouped(2, severity="info")).severity == "medium"


def test_the_evidence_has_fifty_places_or_as_many_as_fit() -> None:
    assert len(group_ticket(grouped(80)).evidence["places"]) == MAX_PLACES
    long = group_ticket(grouped(80, location="x" * 2000)).evidence["places"]
    assert len(long) < MAX_PLACES
    assert MAX_PLACES_BYTES - 2100 < len(canonical(long)) <= MAX_PLACES_BYTES


def test_places_are_listed_up_to_exactly_the_limit_in_bytes() -> None:
    def kept(last: int) -> list[Any]:
        long = [(Place(f"https://shop.example/{number}", "x" * 1500), "low") for number in range(40)]
        group = with_findings(grouped(1), [*long, (Place("https://shop.example/last", "x" * last), "low")], ())
        places: list[Any] = group_ticket(group).evidence["places"]
        return places

    room = MAX_PLACES_BYTES - len(canonical(kept(1)))
    assert len(canonical(kept(1 + room))) == MAX_PLACES_BYTES
    assert (len(kept(1 + room)), len(kept(2 + room))) == (42, 41)


def test_labels_set_by_a_rule_are_kept_when_a_group_grows() -> None:
    ticket = group_ticket(grouped(2)).record()
    ticket["labels"].append("team:shop")
    grown = with_findings(read_group(ticket, CSP.title, 42), [(Place("https://shop.example/x", ""), "high")], ())
    assert group_ticket(grown).labels == ("website-risk", "severity:high", "team:shop")


EDITED = {"title": "Set a CSP", "description": "Please.", "severity": "low", "labels": ["security"]}


@pytest.mark.parametrize(("added", "severity"), [("info", "low"), ("medium", "low"), ("critical", "critical")])
def test_an_edited_group_keeps_its_words_and_grows_in_places(added: str, severity: str) -> None:
    edited = {**group_ticket(grouped(2)).record(), **EDITED}
    group = with_findings(read_group(edited, CSP.title, 42), [(Place("https://shop.example/x", ""), added)], ())
    ticket = grown_ticket(edited, "medium", group).record()
    assert {name: ticket[name] for name in EDITED} == {**EDITED, "severity": severity}
    assert (len(ticket["evidence"]["places"]), ticket["evidence"]["findings"]) == (3, 3)


@pytest.mark.parametrize(
    ("edited", "original", "added", "severity"),
    [
        ("low", "medium", "medium", "low"),
        ("low", "medium", "high", "high"),
        ("high", "medium", "high", "high"),
        ("critical", "low", "high", "critical"),
        ("info", "info", "low", "low"),
        ("high", "low", "medium", "high"),
    ],
)
def test_an_edited_severity_stays_until_a_place_is_more_severe_than_the_ticket_ever_was(
    edited: str, original: str, added: str, severity: str
) -> None:
    ticket = {**group_ticket(grouped(2)).record(), "severity": edited}
    assert grown_ticket(ticket, original, replace(grouped(2), severity=added)).severity == severity


def test_the_ticket_of_a_group_is_recognized_by_all_members_of_its_evidence() -> None:
    ticket = group_ticket(grouped(2)).record()
    assert is_group(ticket)
    assert not is_group(ticket_for_finding(PAGE, CSP, 42, None).record())
    for name in ("places", "findings", "pages", "sites"):
        assert not is_group({"evidence": {key: held for key, held in ticket["evidence"].items() if key != name}})


@pytest.mark.parametrize(
    "evidence",
    [
        {"findings": "3"},
        {"findings": 0},
        {"places": {"a": 1}},
        {"places": ["https://shop.example/"]},
        {"places": [{"url": "https://shop.example/"}]},
        {"places": [{"url": "https://shop.example/", "location": None}]},
        {"places": [{"url": "https://shop.example/", "location": "", "note": ""}]},
    ],
)
def test_a_manual_ticket_with_the_evidence_names_of_a_group_is_no_group(evidence: dict[str, Any]) -> None:
    ticket = group_ticket(grouped(2)).record()
    assert not is_group({"evidence": {**ticket["evidence"], **evidence}})


@pytest.mark.parametrize(
    ("description", "left"),
    [
        (group_ticket(grouped(42)).description, f"{CSP.description}\n\nSeverity: medium\nRule: csp\nFound by: scan run 42"),
        ("Text\n\nPlaces:\n- a", "Text"),
        ("Text\n\nPlaces:\n- a\n- b\n… and 1 more", "Text"),
        ("Text\n\nPlaces:\n- a\nand more", "Text\nand more"),
        ("Text\n\nPlaces:\n- a\n\nThen\n\nPlaces:\n- b\n\nEnd", "Text\n\nPlaces:\n- a\n\nThen\n\nEnd"),
        ("Text\n\nPlaces:\nnone", "Text\n\nPlaces:\nnone"),
        ("Text\nPlaces:\n- a", "Text\nPlaces:\n- a"),
        ("Text", "Text"),
        ("", ""),
    ],
)
def test_the_list_of_places_is_removed_from_a_description(description: str, left: str) -> None:
    assert without_places(description) == left


def test_a_group_is_rewritten_as_its_findings_are_stored() -> None:
    places = [Place(f"https://s{number}.example:8443/", "main") for number in range(60)]
    group = with_stored(grouped(2), "high", places, 70, 65)
    assert (group.severity, group.findings, group.pages) == ("high", 70, 65)
    assert (list(group.places), len(group.sites)) == (places[:MAX_PLACES], MAX_SITES)
    assert group.sites[:2] == ("s0.example", "s1.example")
    assert (group.title, group.text, group.rule) == (CSP.title, CSP.description, "csp")


def test_a_place_is_one_line_of_the_list() -> None:
    places = [(Place("https://shop.example/a", " main\n> img "), "low"), (Place("https://shop.example/b", "\n"), "low")]
    ticket = group_ticket(with_findings(grouped(1), places, ()))
    listed = ticket.description.split("\n\n")[1].splitlines()
    assert listed == [
        "Places:",
        "- https://shop.example/",
        "- https://shop.example/a (main > img)",
        "- https://shop.example/b",
    ]


def test_twenty_places_are_listed_and_one_more_is_counted() -> None:
    assert "more" not in group_ticket(grouped(20)).description
    assert "… and 1 more" in group_ticket(grouped(21)).description


def test_the_groupings_of_a_project_are_those_of_the_api() -> None:
    for value in ("rule", "finding"):
        assert ProjectChangeForm().read({"ticket_grouping": value}) == {"ticket_grouping": value}
    for wrong in ({"ticket_grouping": "page"}, {}, {"ticket_grouping": None}, {"ticket_grouping": "rule", "other": 1}):
        with pytest.raises(ValidationFailed):
            ProjectChangeForm().read(wrong)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)
added_places = st.lists(
    st.tuples(
        st.builds(Place, st.sampled_from(["https://a.example/x", "http://b.example"]), texts), st.sampled_from(SEVERITIES)
    )
)


@given(texts, texts, texts, st.lists(added_places, max_size=4))
def test_a_group_is_read_back_as_it_was_written(
    title: str, description: str, location: str, additions: list[list[tuple[Place, str]]]
) -> None:
    issue = Issue("rule", title, "low", description, f"{location}\n\nPlaces:\n- x", None, {"findings": 7, "places": 1})
    group = new_group(PAGE, issue, 42, None)
    assert group.text == description
    for added in additions:
        group = with_findings(group, added, {place.url for place in group.places})
        assert reread(group) == (group if group.findings == 1 else group.__class__(**{**as_members(group), "labels": ()}))
        ticket = group_ticket(group)
        assert len(ticket.title) <= MAX_TITLE
        assert len(ticket.title.splitlines()) == 1


def as_members(group: Group) -> dict[str, Any]:
    return {name: getattr(group, name) for name in group.__dataclass_fields__}


def test_the_limits_of_a_group_are_those_of_its_evidence() -> None:
    assert (MAX_PLACES, MAX_PLACES_BYTES, MAX_SITES) == (50, 65_536, 20)
