"""The start of a recovery: a time, a date or how long ago, and nothing else."""

from datetime import UTC, datetime, timedelta

import pytest

from schemas.api.deliveries import RecoveryResponse
from schemas.api.response_fields import dump
from schemas.base.errors import ValidationFailed
from schemas.exports.recoveries import Recovery, RecoveryStatus, parse_past, parse_since
from tests.support.factories import NOW

# Columns: a text entered at noon of 1 March 2026, UTC; the time that it denotes.
MOMENTS = [
    ("2026-02-27T10:00:00Z", datetime(2026, 2, 27, 10, tzinfo=UTC)),
    ("2026-02-27T10:00:00.25+02:00", datetime(2026, 2, 27, 8, 0, 0, 250_000, tzinfo=UTC)),
    ("2026-02-27", datetime(2026, 2, 27, tzinfo=UTC)),  # its start in UTC
    ("7d", datetime(2026, 2, 22, 12, tzinfo=UTC)),
    ("12h", datetime(2026, 3, 1, 0, tzinfo=UTC)),
    ("30m", datetime(2026, 3, 1, 11, 30, tzinfo=UTC)),
    ("0m", datetime(2026, 3, 1, 12, tzinfo=UTC)),
    ("2027-01-01", datetime(2027, 1, 1, tzinfo=UTC)),  # whether a future time is allowed is decided elsewhere
    ("", None),
    ("yesterday", None),
    ("7", None),  # without a unit
    ("7w", None),
    ("-7d", None),
    ("1.5h", None),
    ("7d ", None),
    ("\u0667d", None),  # a digit for Python, but not ASCII
    ("2026-02-30", None),
    ("2026-2-3", None),
    ("2026-02-27T10:00:00", None),  # no time zone
    ("999999999d", None),  # before the year 1
    ("9999999999d", None),
]


@pytest.mark.parametrize(("text", "moment"), MOMENTS)
def test_a_time_may_be_typed_in_three_formats(text: str, moment: datetime | None) -> None:
    assert parse_since(text, NOW) == moment


def test_a_recovery_has_these_members_in_the_response() -> None:
    running = Recovery("rec_1", "tgt_1", NOW, RecoveryStatus.RUNNING, 3, 1, NOW + timedelta(seconds=1), None)
    assert dump(RecoveryResponse, running) == {
        "id": "rec_1",
        "target_id": "tgt_1",
        "since": "2026-03-01T12:00:00.000Z",
        "status": "running",
        "total": 3,
        "done": 1,
        "created_at": "2026-03-01T12:00:01.000Z",
        "finished_at": None,
    }


def test_a_future_time_is_refused_and_the_current_time_is_accepted() -> None:
    assert parse_past("0m", NOW) == NOW
    with pytest.raises(ValidationFailed):
        parse_past((NOW + timedelta(milliseconds=1)).isoformat(), NOW)
