"""The title of an issue is one harmless line, never empty, within the limits of every tracker."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.trackers.text.neutral import ZWSP, length
from schemas.trackers.text.titles import title_of
from tests.support.trackers.texts import HOSTILE, PLAIN, effects_in_text, recorded_bodies, recorded_titles

FALLBACK = "Website risk of severity high"


def titled(title: str, max_chars: int = 255, max_bytes: int | None = None) -> str:
    return title_of(replace(PLAIN, title=title), max_chars, max_bytes)


@pytest.mark.parametrize(
    ("title", "max_chars", "max_bytes", "expected"),
    [
        ("abcdef", 6, None, "abcdef"),
        ("abcdefg", 6, None, "abcde…"),
        ("ab  cdefgh", 4, None, "ab…"),
        ("abcdef", 1, None, "…"),
        ("abcdef", 250, 6, "abcdef"),
        ("abcdefg", 250, 6, "abc…"),
        ("éééé", 250, 8, "éééé"),
        ("éééé", 250, 7, "éé…"),
        ("éééé", 3, 8, "éé…"),
        # An emoji has two units of UTF-16 and four bytes of UTF-8.
        ("🚀🚀🚀", 6, 12, "🚀🚀🚀"),
        ("🚀🚀🚀", 5, None, "🚀🚀…"),
        ("🚀🚀🚀", 250, 11, "🚀🚀…"),
        # No invisible space remains before the ellipsis.
        ("abc@defgh", 6, None, "abc@…"),
    ],
)
def test_a_title_is_cut_within_its_limits(title: str, max_chars: int, max_bytes: int | None, expected: str) -> None:
    assert titled(title, max_chars, max_bytes) == expected


@pytest.mark.parametrize("title", ["", "   ", "\n", "\x00", ZWSP, "\u202e\u2066", "\u200d\u2060", "\xad"])
def test_an_invisible_title_is_replaced(title: str) -> None:
    assert titled(title) == FALLBACK


def test_the_recorded_titles_have_no_effect() -> None:
    made = [titled(each["title"]).replace(ZWSP, "|") for each in recorded_titles()]
    assert made == ["title @|victim fixes #|1", "title @|victim #|1", "title `#|1`"]


def test_the_recorded_bodies_have_no_effect_as_titles() -> None:
    titles = [titled(each["markdown"]) for each in recorded_bodies()]
    assert [title for title in titles if effects_in_text(title) - {"link"} or "://" in title or "\n" in title] == []


@given(HOSTILE | st.text(), st.integers(1, 300), st.none() | st.integers(3, 300))
def test_any_title_is_one_harmless_line_within_its_limits(title: str, max_chars: int, max_bytes: int | None) -> None:
    made = titled(title, max_chars, max_bytes)
    assert made.strip(f" {ZWSP}")
    assert made.replace(ZWSP, "").isprintable() or not title.isprintable()
    assert "\n" not in made
    assert length(made) <= max_chars
    assert max_bytes is None or len(made.encode()) <= max_bytes
    assert not effects_in_text(made) - {"link"}
