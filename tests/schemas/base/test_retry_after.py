"""Retry-After: seconds, dates, fractions, several values, and invalid texts."""

import math
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base.retry_after import RetryAfter, parse_retry_after

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
#: The same time in the three formats of RFC 9110, and a time one second earlier.
DATES: Final = ("Sun, 01 Mar 2026 12:01:00 GMT", "Sunday, 01-Mar-26 12:01:00 GMT", "Sun Mar  1 12:01:00 2026")
EARLIER: Final = "Sun, 01 Mar 2026 12:00:59 GMT"
MOMENT: Final = NOW + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("0", 0),
        ("120.5", 120.5),
        ("0.000", 0),
        ("12345678901234567890", 1.2345678901234567e19),
        ("9" * 5000, math.inf),
        ("7, 9", 9),
        ("9,7", 9),
        ("9, soon, 7", 9),
        ("soon, 7", 7),
        (", 7,,", 7),
    ],
)
def test_seconds_may_have_a_fraction_and_the_most_of_several_count(text: str, seconds: float) -> None:
    assert parse_retry_after(text) == RetryAfter(seconds, None)


@pytest.mark.parametrize("date", DATES)
def test_the_latest_of_several_dates_counts_although_dates_have_a_comma(date: str) -> None:
    for text in (date, f"{date}, {EARLIER}", f"{EARLIER},{date}", f"{date}, soon", f"{EARLIER}, {date}, {EARLIER}"):
        assert parse_retry_after(text) == RetryAfter(None, MOMENT), text
    for text in (f"90, {date}", f"{date},90", f"{EARLIER}, 7, {date}, 90"):
        assert parse_retry_after(text) == RetryAfter(90, MOMENT), text


@pytest.mark.parametrize(
    "text", [None, "", " ", ",", "soon", "-7", "+7", "1e3", "0x10", "7 s", ".5", "5.", "inf", "nan", "²", "٣"]
)
def test_any_other_text_names_no_time(text: str | None) -> None:
    assert parse_retry_after(text) == RetryAfter(None, None)


@pytest.mark.parametrize(
    ("asked", "wait_s"),
    [
        (RetryAfter(None, None), None),
        (RetryAfter(7, None), 7),
        (RetryAfter(None, MOMENT), 60),
        (RetryAfter(7, MOMENT), 60),
        (RetryAfter(90, MOMENT), 90),
        (RetryAfter(None, NOW - timedelta(seconds=9)), -9),
        (RetryAfter(0, NOW - timedelta(seconds=9)), 0),
    ],
)
def test_the_later_of_a_number_of_seconds_and_a_date_determines_the_wait(asked: RetryAfter, wait_s: float | None) -> None:
    assert asked.wait_s(NOW) == wait_s


@given(st.text(alphabet=st.characters(max_codepoint=255)) | st.text(alphabet="0123456789., :MarSunGT+-"))
def test_no_text_of_a_retry_after_header_raises_an_exception(text: str) -> None:
    parse_retry_after(text).wait_s(NOW)


def test_a_header_of_commas_is_not_read_to_its_end() -> None:
    # The values of 100 headers, the maximum of a response, are all read.
    assert parse_retry_after(", ".join([EARLIER] * 99 + ["7"])).seconds == 7
    assert parse_retry_after("," * 60_000 + "7") == RetryAfter(None, None)
