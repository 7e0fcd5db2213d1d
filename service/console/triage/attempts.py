"""The attempts of an export for display, with the share that each phase has of the attempt's time."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from schemas.exports.attempt_record import AttemptDetails
from schemas.exports.delivery import Timings
from service.console.sessions import ConsoleUser
from storage.exports import attempts


class AttemptPhase(NamedTuple):
    """One phase of an attempt; `x` and `width` are percentages of the whole bar."""

    name: str
    ms: int
    x: float
    width: float


def shown_attempts(
    export_id: str, user: ConsoleUser, limit: int, before: str | None
) -> list[tuple[AttemptDetails, list[AttemptPhase]]]:
    """Return up to `limit` attempts with their phases, newest first. Raises ExportNotFound, ValidationFailed."""
    found = attempts.list_details(export_id, user.account_id, limit, before)
    return [(details, phases_of(details.attempt.timings)) for details in found]


def phases_of(timings: Timings) -> list[AttemptPhase]:
    """Return the phases of an attempt with a duration above zero.

    The time to the first byte is measured from the start of the attempt, so the earlier phases are subtracted.
    """
    connecting = {"DNS": timings.dns_ms or 0, "connect": timings.connect_ms or 0, "TLS": timings.tls_ms or 0}
    before = sum(connecting.values())
    waited = 0 if timings.first_byte_ms is None else max(0, timings.first_byte_ms - before)
    phases = {**connecting, "first byte": waited, "rest": max(0, timings.total_ms - before - waited)}
    return list(_placed({name: ms for name, ms in phases.items() if ms}))


def _placed(phases: Mapping[str, int]) -> Iterator[AttemptPhase]:
    total, x = sum(phases.values()), 0.0
    for name, ms in phases.items():
        width = 100 * ms / total
        yield AttemptPhase(name, ms, round(x, 2), round(width, 2))
        x += width
