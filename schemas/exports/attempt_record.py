"""An attempt as clients see it: what came of one signed POST and how long each part took.

The address that was dialed, the nonce, the worker's host and what the receiver said are not in it: they are the operator's.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from schemas.base.timestamps import rfc3339
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


def trace_record(trace: Trace) -> dict[str, Any]:
    """Return the attempt as the operator sees it."""
    own = {"address": trace.address, "nonce": trace.nonce, "worker": trace.worker, "answer": trace.answer}
    return {**attempt_record(trace.attempt), **own}


def attempt_record(attempt: Attempt) -> dict[str, Any]:
    """Return the attempt as clients see it; a part that was never reached took null."""
    timings = attempt.timings
    return {
        "id": attempt.id,
        "number": attempt.number,
        "started_at": rfc3339(attempt.started_at),
        "outcome": attempt.outcome,
        "response_status": attempt.response_status,
        "error_code": attempt.error_code,
        "retry_after_seconds": attempt.retry_after_s,
        "durations": {
            "dns_ms": timings.dns_ms,
            "connect_ms": timings.connect_ms,
            "tls_ms": timings.tls_ms,
            "first_byte_ms": timings.first_byte_ms,
            "total_ms": timings.total_ms,
        },
    }
