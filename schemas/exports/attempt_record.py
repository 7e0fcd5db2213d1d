"""An attempt as clients see it: what came of one signed POST and how long each part took.

The address that was dialed, the nonce, the worker's host and what the receiver said are not in it: they are the operator's.
"""

from dataclasses import dataclass
from datetime import datetime

from schemas.exports.delivery import Timings


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one export; `id` is the `X-Request-Id` that the receiver saw."""

    id: str
    number: int
    started_at: datetime
    outcome: str
    response_status: int | None
    error_code: str | None
    retry_after_s: int | None
    timings: Timings


@dataclass(frozen=True, slots=True)
class Trace:
    """An attempt with what is the operator's alone; `answer` is the beginning of what the receiver said, cleaned."""

    attempt: Attempt
    address: str | None
    nonce: str | None
    worker: str
    answer: str | None
