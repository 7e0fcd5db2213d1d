"""The comment of an event is readable, fits, and has untrusted text only in code; an erased ticket has none of it."""

import json
import re
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base.places import ChangedPlace
from schemas.base.ticket_event_types import TicketEventType
from schemas.trackers.events import TrackerEvent
from schemas.trackers.text import adf, markdown, textile, wiki
from schemas.trackers.text.neutral import ZWSP
from schemas.trackers.text.outline import erased_title
from tests.support.trackers.events import CONSOLE, EVENT_ID, EXPORT_ID, event
from tests.support.trackers.texts import (
    HOSTILE,
    HtmlTags,
    effects,
    effects_in_text,
    html_of,
    in_code,
    recorded_bodies,
    skeleton,
)

LIMIT: Final = 32_767
LINK: Final = f"[Open this ticket in RiskRelay]({CONSOLE})"
EVENTS: Final = st.builds(
    event,
    st.sampled_from([each for each in TicketEventType if each is not TicketEventType.REDACT]),
    places=st.lists(st.builds(ChangedPlace, HOSTILE, HOSTILE, st.sampled_from(["open", "fixed"])), max_size=3).map(tuple),
)


def plain(made: TrackerEvent) -> TrackerEvent:
    """Return the event with harmless places instead of untrusted ones."""
    tidy = ChangedPlace("https://shop.example/", "main", state="fixed")
    return replace(made, places=tuple(replace(tidy, state=each.state) for each in made.places))


def markup_of(text: str) -> list[str]:
    """Return the tokens of Markdown except code and text, since a place without a location has one piece of code fewer."""
    return [kind for kind, _ in skeleton(text) if not kind.startswith(("code_inline", "text"))]


def texts_in(node: Any) -> list[tuple[str, str]]:
    """Return the texts of a document, each with its mark."""
    if isinstance(node, dict) and node.get("type") == "text":
        return [(node["text"], "".join(mark["type"] for mark in node.get("marks", ())))]
    return [each for child in node.get("content", ()) for each in texts_in(child)]


@pytest.mark.parametrize(
    ("event_type", "first"),
    [
        (TicketEventType.UPDATED, "The latest scan changed this ticket."),
        (TicketEventType.FIXED, "This is fixed: the latest scans no longer found it."),
    ],
)
def test_a_comment_has_counts_places_link_and_marker(event_type: TicketEventType, first: str) -> None:
    assert markdown.comment_of(event(event_type), LIMIT) == (
        f"{first}\n\n3 places added, 1 fixed, 5 still open.\n\nFixed:\n\n- `https://shop.example/cart` `main > img`\n\n"
        f"Added:\n\n- `https://shop.example/`\n- … and 2 more\n\n{LINK}\n\nRiskRelay event {EVENT_ID}"
    )


def test_the_comment_on_a_reopened_ticket_calls_places_found_again_and_not_added() -> None:
    comment = markdown.comment_of(event(TicketEventType.REOPENED), LIMIT)
    assert "This is back: the latest scan found it again.\n\n3 places found again, 1 fixed, 5 still open." in comment
    assert "Found again:" in comment
    assert "added" not in comment.lower()


@pytest.mark.parametrize(
    ("added", "fixed", "still_open", "sentence"),
    [
        (0, 42, 0, "42 places fixed."),
        (1, 0, 1, "1 place added, 1 still open."),
        (0, 0, 2, "2 places still open."),
        (0, 0, 0, None),
    ],
)
def test_counts_of_zero_are_omitted(added: int, fixed: int, still_open: int, sentence: str | None) -> None:
    made = event(places_added=added, places_fixed=fixed, places_open=still_open, places=(), console_url=None)
    lines = [
        "The latest scan changed this ticket.",
        *([] if sentence is None else [sentence]),
        f"RiskRelay event {EVENT_ID}",
    ]
    assert markdown.comment_of(made, LIMIT).split("\n\n") == lines


def test_a_comment_of_a_reopened_ticket_says_what_was_found_again() -> None:
    text = textile.comment_of(event(TicketEventType.REOPENED), LIMIT)
    assert "This is back" in text
    assert "Found again:\n\n<pre>\n\n    https://shop.example/\n    … and 2 more\n</pre>" in text


@pytest.mark.parametrize(
    "comment_of",
    [
        markdown.comment_of,
        wiki.comment_of,
        textile.comment_of,
        lambda made, limit: json.dumps(adf.comment_of(made, limit), ensure_ascii=False, separators=(",", ":")),
    ],
)
def test_as_many_places_as_fit_are_listed_and_never_more_than_fifty(comment_of: Any) -> None:
    long = ChangedPlace("https://shop.example/" + "a" * 3000, "ü" * 900, state="open")
    text = comment_of(event(places=(long,) * 60, places_added=60), LIMIT)
    assert len(text) <= LIMIT
    listed = text.count("https://shop.example/a")
    assert 8 <= listed < 50
    assert f"… and {60 - listed} more" in text
    assert EVENT_ID in text
    short = replace(long, url="https://shop.example/a", location="")
    assert comment_of(event(places=(short,) * 60), LIMIT).count("https://shop.example/a") == 50


@given(EVENTS)
def test_hostile_places_stay_code_in_markdown(made: TrackerEvent) -> None:
    text = markdown.comment_of(made, LIMIT)
    assert effects(text) <= {"link"}
    assert not effects_in_text("\n".join(in_code(text))) - {"link"}
    assert markup_of(text) == markup_of(markdown.comment_of(plain(made), LIMIT))


@given(EVENTS)
def test_hostile_places_stay_in_the_blocks_of_redmine_and_jira(made: TrackerEvent) -> None:
    text, expected = textile.comment_of(made, LIMIT), textile.comment_of(plain(made), LIMIT)
    assert re.split("</?pre>", text)[::2] == re.split("</?pre>", expected)[::2]
    assert HtmlTags(html_of(text)).tags == HtmlTags(html_of(expected)).tags
    assert not re.search(r"(?:^|\W)@\w", text)
    text, expected = wiki.comment_of(made, LIMIT), wiki.comment_of(plain(made), LIMIT)
    outside = re.compile(r"\{noformat\}", re.IGNORECASE)
    assert outside.split(text)[::2] == outside.split(expected)[::2]


@given(EVENTS)
def test_hostile_places_are_texts_of_code_in_a_document(made: TrackerEvent) -> None:
    ours = [text for text, mark in texts_in(adf.comment_of(plain(made), LIMIT)) if mark != "code"]
    texts = texts_in(adf.comment_of(made, LIMIT))
    assert [text for text, mark in texts if mark != "code" and text != " "] == [text for text in ours if text != " "]
    assert all(text for text, _ in texts)
    assert not effects_in_text("\n".join(text for text, mark in texts if mark == "code")) - {"link"}


def test_text_that_affected_a_real_gitea_has_no_effect() -> None:
    for body in recorded_bodies():
        place = ChangedPlace(f"https://shop.example/{body['markdown']}", body["markdown"], state="fixed")
        assert effects(markdown.comment_of(event(places=(place,)), LIMIT)) <= {"link"}


def test_a_place_of_invisible_text_is_shown_as_unknown() -> None:
    text = markdown.comment_of(event(places=(ChangedPlace("\x00", "\u202e", state="fixed"),)), LIMIT)
    assert "- `unknown`" in text


def test_an_erased_ticket_has_nothing_but_its_marker() -> None:
    made = event(TicketEventType.REDACT)
    assert erased_title(made) == f"Erased ticket {EXPORT_ID}"
    texts = [markdown.erased_of(made), textile.erased_of(made), wiki.erased_of(made)]
    texts.append("\n\n".join(text for text, _ in texts_in(adf.erased_of(made))))
    for text in texts:
        assert text.startswith("The content of this ticket was erased on request.")
        assert text.endswith(f"\n\nRiskRelay export {EXPORT_ID}")
        assert "shop.example" not in text
        assert ZWSP not in text


def test_a_comment_of_just_the_limit_keeps_all_its_places() -> None:
    places = tuple(ChangedPlace(f"https://shop.example/{number}", "main", state="open") for number in range(51))
    made = event(TicketEventType.UPDATED, places=places[:50])
    whole = markdown.comment_of(made, LIMIT)
    assert whole.count("https://shop.example/") == 50
    assert markdown.comment_of(replace(made, places=places), LIMIT) == whole
    assert markdown.comment_of(made, len(whole)) == whole
    assert markdown.comment_of(made, len(whole) - 1).count("https://shop.example/") == 49
    assert "https://shop.example/" not in markdown.comment_of(made, 1)
