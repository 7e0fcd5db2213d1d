"""Parses the header Retry-After, for receivers of webhooks and for trackers."""

import re
from datetime import datetime
from typing import Final, NamedTuple

from schemas.base.timestamps import parse_http_date

#: RFC 9110 allows only whole seconds, but receivers and proxies also send fractions.
_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
#: A response has at most 100 headers, and each may be a date, which has one comma. Parsing more would only cost time.
_MAX_COMMAS: Final = 200


class RetryAfter(NamedTuple):
    """The wait that a response asks for: `seconds`, or until `moment`; both are None if the response asks for no wait."""

    seconds: float | None
    moment: datetime | None

    def wait_s(self, now: datetime) -> float | None:
        """Return the seconds from `now` until the later of both, 0 or less if both have passed; None if both are None."""
        until_s = None if self.moment is None else (self.moment - now).total_seconds()
        return max((each for each in (self.seconds, until_s) if each is not None), default=None)


def parse_retry_after(text: str | None) -> RetryAfter:
    """Parse Retry-After: seconds or an HTTP date; of several values, joined by commas, the latest.

    Other values are ignored. A number that is too large for a float is infinite.
    """
    # A comma also follows the weekday of a date; without its weekday, the rest is still parsed as a date.
    values = [each.strip() for each in (text or "").split(",", _MAX_COMMAS)]
    seconds = [float(each) for each in values if _SECONDS.fullmatch(each)]
    moments = [moment for moment in map(parse_http_date, values) if moment is not None]
    return RetryAfter(max(seconds, default=None), max(moments, default=None))
