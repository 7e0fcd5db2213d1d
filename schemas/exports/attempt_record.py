"""An attempt as clients see it: the result of one signed POST and the duration of each phase.

Clients do not see the dialed address, the nonce, the worker's host and the receiver's response; the operator does.
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
class AttemptDetails:
    """An attempt with the fields that only the operator sees; the excerpt of the response is redacted."""

    attempt: Attempt
    address: str | None
    nonce: str | None
    worker: str
    response_excerpt: str | None
