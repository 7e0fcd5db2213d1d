"""The time of an export's next attempt as clients see it: by its own schedule, or later while its target is on hold."""

import math
from typing import Final, NamedTuple

from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import TargetStatus

#: Statuses of exports that wait for a worker.
WAITING: Final = frozenset({ExportStatus.APPROVED.value, ExportStatus.RETRY_SCHEDULED.value})
#: Seconds between two polls while the time of the next attempt is unknown.
UNKNOWN_WAIT_S: Final = 60

_RETRY_SCHEDULED: Final = ExportStatus.RETRY_SCHEDULED.value
_ACTIVE: Final = TargetStatus.ACTIVE.value
#: By status, targets that keep their exports until a person acts; a blocked or disabled target ends them within a second.
_STOPPED: Final = {status.value: f"target_{status.value}" for status in (TargetStatus.PAUSED, TargetStatus.INACTIVE)}


class NextAttempt(NamedTuple):
    """The next attempt: `at_ms` is None if none is scheduled or its time is unknown; then `reason` names what stops it.

    `retry_after_s` is how long a client waits before its next poll; None if it need not wait.
    """

    at_ms: int | None
    reason: str | None = None
    retry_after_s: int | None = None


_NONE: Final = NextAttempt(None)


def next_attempt(
    status: str, due_at_ms: int | None, target_status: str | None, held_until_ms: int | None, now_ms: int
) -> NextAttempt:
    """Return the next attempt of an export that is due at `due_at_ms`, for a target that is held until `held_until_ms`.

    After the hold has ended, the result is the same as without a hold.
    """
    if status not in WAITING or due_at_ms is None:
        return _NONE
    reason = _STOPPED.get(target_status or "")
    if reason is not None:
        return NextAttempt(None, reason, UNKNOWN_WAIT_S)
    at_ms = due_at_ms
    if held_until_ms is not None and target_status == _ACTIVE and held_until_ms > now_ms:
        at_ms = max(at_ms, held_until_ms)
    if at_ms <= now_ms and status != _RETRY_SCHEDULED:
        return NextAttempt(at_ms)
    return NextAttempt(at_ms, None, max(1, math.ceil((at_ms - now_ms) / 1000)))
