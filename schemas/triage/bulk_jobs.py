"""A bulk job: one decision on every export that matched a filter when the job was created."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from schemas.base.errors import Conflict
from schemas.triage.bulk_decisions import BulkAction

#: The error codes of the exports of a job that was stopped: its user was disabled, has a role that does not allow it any
#: more, or its account may not use webhooks.
USER_DISABLED: Final = "user_disabled"
USER_LOST_ABILITY: Final = "user_lost_ability"
WEBHOOKS_FORBIDDEN: Final = "webhooks_forbidden"


class BulkJobStatus(StrEnum):
    """The status of a bulk job."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class BulkJob:
    """A stored bulk job: of `total` exports, `done` were processed: changed, skipped, or counted by error code."""

    id: str
    action: BulkAction
    status: BulkJobStatus
    total: int
    done: int
    changed: int
    skipped: int
    errors: Mapping[str, int]
    created_at: datetime
    finished_at: datetime | None


class CountDiffers(Conflict):
    """The filter matches another number of exports than expected_count; review them and send the new count."""

    def __init__(self, count: int, expected: int) -> None:
        super().__init__(
            f"The filter matches {count} export{'' if count == 1 else 's'}, not {expected}; review the list, then "
            "send the new expected_count."
        )
        self.details = {"count": count}
