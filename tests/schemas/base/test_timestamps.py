"""Times survive conversion to text and to database values, and back."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base.timestamps import format_rfc3339, format_rfc3339_or_none, from_ms, parse_rfc3339, to_ms

moments = st.datetimes(
    min_value=datetime(1, 1, 2),  # noqa: DTZ001 - the time zone is drawn separately
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001 - the time zone is drawn separately
    timezones=st.timezones() | st.just(UTC),
)


@given(moments)
def test_a_time_is_restored_from_the_tables_to_the_millisecond(moment: datetime) -> None:
    back = from_ms(to_ms(moment))
    assert timedelta(0) <= moment - back < timedelta(milliseconds=1)
    assert to_ms(back) == to_ms(moment)
    assert back.tzinfo is UTC


@given(moments)
def test_a_formatted_time_parses_to_the_same_millisecond(moment: datetime) -> None:
    text = format_rfc3339(moment)
    assert len(text) == len("2026-01-31T12:00:00.000Z")
    assert text.endswith("Z")
    assert datetime.fromisoformat(text) == from_ms(to_ms(moment))


@given(moments, moments)
def test_a_later_time_is_never_written_as_an_earlier_one(one: datetime, other: datetime) -> None:
    earlier, later = sorted([one, other])
    assert to_ms(earlier) <= to_ms(later)
    assert format_rfc3339(earlier) <= format_rfc3339(later)


@pytest.mark.parametrize(
    ("moment", "ms", "text"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0, "1970-01-01T00:00:00.000Z"),
        (datetime(2026, 3, 1, 12, 0, 0, 1999, tzinfo=UTC), 1772366400001, "2026-03-01T12:00:00.001Z"),  # not rounded
        (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), -1, "1969-12-31T23:59:59.999Z"),  # rounded down
        (datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2))), 1772366400000, "2026-03-01T12:00:00.000Z"),
    ],
)
def test_times_are_whole_milliseconds(moment: datetime, ms: int, text: str) -> None:
    assert to_ms(moment) == ms
    assert format_rfc3339(moment) == text


def test_a_missing_time_is_none() -> None:
    assert from_ms(None) is None
    assert format_rfc3339_or_none(None) is None


@given(moments)
def test_a_written_timestamp_can_be_read(moment: datetime) -> None:
    assert parse_rfc3339(format_rfc3339(moment)) == from_ms(to_ms(moment))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00.000Z"),
        ("2026-03-01t12:00:00z", "2026-03-01T12:00:00.000Z"),  # RFC 3339, section 5.6: case does not matter
        ("2026-03-01 12:00:00Z", "2026-03-01T12:00:00.000Z"),  # and a space may replace the T
        ("2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00.000Z"),
        ("2026-03-01T12:00:00-00:00", "2026-03-01T12:00:00.000Z"),  # UTC with an unknown local offset
        ("2026-03-01T01:30:00+05:45", "2026-02-28T19:45:00.000Z"),
        ("2026-03-01T12:00:00.1Z", "2026-03-01T12:00:00.100Z"),
        ("2026-03-01T12:00:00.123456789Z", "2026-03-01T12:00:00.123Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_timestamp_names_one_instant(text: str, written: str) -> None:
    moment = parse_rfc3339(text)
    assert moment is not None
    assert moment.tzinfo is UTC
    assert format_rfc3339(moment) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-03-01",
        "2026-03-01T12:00:00",  # no time zone
        "2026-03-01T12:00Z",  # no seconds
        "2026-03-01T12Z",
        "20260301T120000Z",
        "2026-W09-7T12:00:00Z",
        "2026-060T12:00:00Z",
        "2026-03-01T12:00:00,5Z",
        "2026-03-01T12:00:00.Z",
        "2026-03-01T12:00:00.1234567890Z",
        "2026-03-01T12:00:00+0100",
        "2026-03-01T12:00:00+01",
        "2026-03-01T12:00:00+01:00:30",
        "2026-03-01T12:00:00+25:00",
        "2026-03-01T12:00:00+24:00",
        "2026-03-01T12:00:00 Z",
        "2026-03-01T12:00:00Z ",
        "2026-03-01T12:00:00Z\n",
        " 2026-03-01T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2025-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-00-01T12:00:00Z",
        "2026-03-01T24:00:00Z",  # some versions of Python accept it as midnight
        "2026-03-01T12:60:00Z",
        "2026-03-01T12:00:60Z",
        "0000-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "-2026-03-01T12:00:00Z",
        "0001-01-01T00:00:00+14:00",  # before the first year
        "9999-12-31T23:59:59-14:00",  # after the last year
        "\u0662\u0660\u0662\u0666-03-01T12:00:00Z",  # digits that are not ASCII
        "1772366400",
        "yesterday",
    ],
)
def test_an_invalid_timestamp_is_rejected(text: str) -> None:
    assert parse_rfc3339(text) is None
