"""Decisions on an export: why it was dismissed, who approved it, until when it is snoozed."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final


class DismissalReason(StrEnum):
    """Why an export was dismissed, with the values of the API."""

    FALSE_POSITIVE = "false_positive"
    WONT_FIX = "wont_fix"
    DUPLICATE = "duplicate"
    TEST = "test"
    OTHER = "other"


#: After a dismissal with one of these reasons, new places of a group join it and need no decision.
REASONS_KEEPING_GROUP_OPEN: Final = frozenset({DismissalReason.FALSE_POSITIVE, DismissalReason.WONT_FIX})


@dataclass(frozen=True, slots=True)
class Dismissal:
    """Why and when an export was dismissed; an export that was redacted has neither reason nor note."""

    reason: DismissalReason | None
    note: str | None
    at: datetime | None


@dataclass(frozen=True, slots=True)
class ApprovedBy:
    """The user or the approval rule that approved an export: `id` and `name` are a user's id and address, or a rule's."""

    kind: str
    id: int | str
    name: str | None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Until when an export is snoozed; None: until one of its findings is seen again."""

    until: datetime | None

    def is_over(self, now: datetime) -> bool:
        """Return whether the snooze has ended at `now`."""
        return self.until is not None and self.until <= now
