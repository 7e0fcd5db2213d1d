"""A recovery: a job that redelivers the exports of one target that failed since a moment.

The moment is an RFC 3339 timestamp, a date (its start in UTC) or an age: `7d`, `12h`, `30m`.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from schemas.base.errors import ValidationFailed
from schemas.base.fields import RecordForm, Text, problem, required
from schemas.base.timestamps import parse_rfc3339
from schemas.exports.record import MAX_ID_LENGTH

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_AGO: Final = re.compile(r"([0-9]{1,9})([dhm])")
#: Longer than any moment that can be read.
MAX_SINCE: Final = 64
_UNITS: Final = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1)}


class RecoveryStatus(StrEnum):
    """The status of a recovery."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Recovery:
    """A stored recovery: `total` exports have been found so far, `done` of them were queued again."""

    id: str
    target_id: str
    since: datetime
    status: RecoveryStatus
    total: int
    done: int
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """A request for a recovery: `since` is the text as sent, because an age depends on the time of the request."""

    target_id: str
    since: str


class RecoveryForm(RecordForm):
    """The body of `POST /api/ticket-export-recoveries`."""

    makes = RecoveryRequest
    target_id = Text(
        max_length=MAX_ID_LENGTH,
        **required("The id of an active or paused target of the account; its failed and blocked exports are redelivered."),
    )
    since = Text(
        max_length=MAX_SINCE,
        **required(
            "The earliest time; exports that failed or were blocked then or later are redelivered. "
            "An RFC 3339 timestamp, a date (UTC) or an age (`7d`, `12h`, `30m`)."
        ),
    )


def parse_past(text: str, now: datetime) -> datetime:
    """Return the moment of `text`, relative to `now`. Raises ValidationFailed on `/since`, also for a future moment."""
    since = parse_since(text, now)
    if since is None:
        raise ValidationFailed(problem("/since", "invalid_since"))
    if since > now:
        raise ValidationFailed(problem("/since", "in_the_future"))
    return since


def parse_until(text: str, now: datetime) -> datetime | None:
    """Return the moment of `text`; a duration such as 7d is added to `now`. None if the text is not a moment."""
    return parse_since(text, now, sign=1)


def parse_since(text: str, now: datetime, sign: int = -1) -> datetime | None:
    """Return the moment of `text`; an age such as 7d is subtracted from `now`. None if the text is not a moment."""
    span = _AGO.fullmatch(text)
    if span is None:
        return parse_rfc3339(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)
    try:
        return now + sign * int(span[1]) * _UNITS[span[2]]
    except OverflowError:  # before the year 1 or after the year 9999
        return None
