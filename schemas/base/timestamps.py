"""Timestamps: RFC 3339 in UTC with milliseconds in JSON, whole milliseconds since 1970 in tables."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, overload

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: RFC 3339 requires seconds and a zone; Python parses many other formats, and they differ between versions.
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)


def to_ms(moment: datetime) -> int:
    """Return `moment` (aware) as whole milliseconds since 1970-01-01 UTC."""
    return (moment - _EPOCH) // _MILLISECOND


@overload
def from_ms(ms: int) -> datetime: ...
@overload
def from_ms(ms: None) -> None: ...
def from_ms(ms: int | None) -> datetime | None:
    """Return the instant `ms` milliseconds after 1970-01-01 UTC; None stays None."""
    return None if ms is None else _EPOCH + ms * _MILLISECOND


def format_rfc3339(moment: datetime) -> str:
    """Return `moment` as `2026-01-31T12:00:00.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_rfc3339_or_none(moment: datetime | None) -> str | None:
    """Return `moment` as text; None stays None."""
    return None if moment is None else format_rfc3339(moment)


def parse_rfc3339(text: str) -> datetime | None:
    """Return the time of an RFC 3339 timestamp in UTC; None for anything else, including a time without a zone."""
    if _RFC3339.fullmatch(text.upper()) is None:
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):  # the 31st of February; the first hour of year 1, east of Greenwich
        return None


def parse_http_date(text: str) -> datetime | None:
    """Return the moment of an HTTP date, in UTC if it names no zone; None for any other text."""
    try:
        moment: datetime = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
