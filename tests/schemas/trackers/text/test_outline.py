"""Every format has the parts of a ticket in one order, and shortens the least important part first to stay in its limit."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base.places import Place
from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text import adf, markdown, textile, wiki
from schemas.trackers.text.neutral import ZWSP, length
from schemas.trackers.text.outline import MIN_CHARS
from tests.support.trackers.texts import HOSTILE, MARKER, PLAIN, tickets


def document_text(ticket: TrackerTicket, max_chars: int) -> str:
    return json.dumps(adf.body_of(ticket, max_chars), ensure_ascii=False, separators=(",", ":"))


Flavor = Callable[[TrackerTicket, int], str]
FLAVORS: Final[dict[str, Flavor]] = {
    "markdown": markdown.body_of,
    "linear": markdown.linear_body_of,
    "wiki": wiki.body_of,
    "textile": textile.body_of,
    "adf": document_text,
}
every_flavor = pytest.mark.parametrize("write", FLAVORS.values(), ids=FLAVORS)
SHORTENED: Final = "This text is shortened"


def many_places(count: int) -> tuple[Place, ...]:
    return tuple(Place(f"https://shop.example/{number:040}", "") for number in range(count))


def large(**changes: Any) -> TrackerTicket:
    """Return a ticket whose three parts fit into the smallest limit."""
    ticket = replace(PLAIN, description="d" * 2000, places=many_places(15), places_total=99, evidence={"e": "v" * 2000})
    return replace(ticket, **changes)


def parts_of(text: str) -> tuple[int, int, int]:
    """Return how much a text contains of the description, the places and the evidence of a large ticket."""
    return text.count("ddd"), text.count("https://shop.example/0000"), text.count("vvv")


@every_flavor
def test_the_parts_are_in_order(write: Flavor) -> None:
    text = write(PLAIN, MIN_CHARS)
    order = ["Severity:", "high", "Page:", "/cart", "What was found", "What is wrong.", "Places (5)", "main > img"]
    order += ["… and 3 more", "Evidence", "image-alt", "Open this ticket in RiskRelay", MARKER]
    found = re.search(".*".join(map(re.escape, order)), text, re.DOTALL)
    assert found
    assert SHORTENED not in text


@every_flavor
def test_the_evidence_is_shortened_first_then_the_places_then_the_description(write: Flavor) -> None:
    whole = write(large(), MIN_CHARS)
    assert SHORTENED not in whole
    description, places, evidence = parts_of(whole)
    assert (places, evidence) == (15, 666)

    less_evidence = write(large(evidence={"e": "v" * MIN_CHARS}), MIN_CHARS)
    assert parts_of(less_evidence)[:2] == (description, places)
    assert evidence < parts_of(less_evidence)[2] < MIN_CHARS // 3
    assert SHORTENED in less_evidence

    fewer_places = write(large(places=many_places(500), places_total=500), MIN_CHARS)
    assert parts_of(fewer_places)[0::2] == (description, 0)
    assert places < parts_of(fewer_places)[1] < 500
    assert f"… and {500 - parts_of(fewer_places)[1]} more" in fewer_places

    less_text = write(large(description="d" * 2 * MIN_CHARS), MIN_CHARS)
    assert parts_of(less_text)[1:] == (0, 0)
    assert description < parts_of(less_text)[0] < MIN_CHARS // 3
    assert "… and 99 more" in less_text


@every_flavor
def test_the_available_length_is_used(write: Flavor) -> None:
    # A place has at most 200 characters; Redmine's limit is in bytes.
    assert MIN_CHARS - 200 < length(write(large(evidence={"e": "v" * MIN_CHARS}), MIN_CHARS)) <= MIN_CHARS


@every_flavor
@settings(max_examples=50, deadline=None)
@given(
    ticket=tickets(),
    length_of=st.tuples(*[st.integers(0, 3 * MIN_CHARS)] * 3),
    text=HOSTILE,
    max_chars=st.integers(MIN_CHARS, 20_000),
)
def test_any_ticket_stays_within_the_limit_and_keeps_severity_page_link_and_marker(
    write: Flavor, ticket: TrackerTicket, length_of: tuple[int, int, int], text: str, max_chars: int
) -> None:
    description, page, evidence = (((text or "🚀") * count)[:count] for count in length_of)
    ticket = replace(ticket, description=description, page_url=f"https://p{page}"[:2048], evidence={"e": evidence})
    made = write(ticket, max_chars)
    assert length(made) <= max_chars
    for kept in ("Severity:", "high", "https://p", str(PLAIN.console_url)):
        assert kept in made
    assert made.count(MARKER) == 1
    # The link contains the export's ID too; no untrusted text does.
    assert made.count(PLAIN.export_id) == 2
    assert made == write(ticket, max_chars)


@every_flavor
@pytest.mark.parametrize("letter", ["@", "#", "`", '"', "\\", "<", "🚀", "é", "\x00", "\n", "/\n"])
def test_the_longest_url_and_description_of_any_letter_keep_the_limit(write: Flavor, letter: str) -> None:
    page = letter * MIN_CHARS
    made = write(replace(PLAIN, page_url=page, description=letter * MIN_CHARS, evidence={"e": page}), MIN_CHARS)
    assert length(made) <= MIN_CHARS
    assert made.count(MARKER) == 1


@every_flavor
def test_the_marker_of_another_export_is_not_quoted(write: Flavor) -> None:
    other = "exp_01JD9999999999999999999999"
    made = write(
        replace(PLAIN, description=other, page_url=f"https://shop.example/{other}", evidence={other: other}), MIN_CHARS
    )
    assert other not in made
    assert made.replace(ZWSP, "").count(other) == 4


@every_flavor
def test_a_single_place_has_no_list_of_places(write: Flavor) -> None:
    made = write(replace(PLAIN, places=PLAIN.places[:1], places_total=1), MIN_CHARS)
    assert "Places" not in made
    assert "main > img" not in made


@every_flavor
def test_missing_page_evidence_and_console_are_omitted_from_a_ticket(write: Flavor) -> None:
    made = write(TrackerTicket(PLAIN.export_id, "Title", "Text", "low"), MIN_CHARS)
    assert not [part for part in ("Page", "Places", "Evidence", "Open", "http", SHORTENED) if part in made]
    assert made.count(MARKER) == 1


@every_flavor
def test_a_text_of_exactly_the_limit_is_not_shortened(write: Flavor) -> None:
    whole = write(large(), 2 * MIN_CHARS)
    # Redmine's limit is in bytes.
    assert write(large(), max(length(whole), len(whole.encode()))) == whole
    assert SHORTENED in write(large(), length(whole) - 1)
