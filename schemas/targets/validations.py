"""A validation: a look at a target's address as it is now, from its URL to its certificate, without sending anything."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

#: Said of a target that passed: its certificate runs out within this many days.
EXPIRES_SOON: Final = "certificate_expires_soon"
EXPIRES_SOON_DAYS: Final = 14

#: A target that was heard from within this time, by a success or a validation, is not looked at by itself.
VALID_FOR: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Validation:
    """What a look found: `reason` names what is wrong, None where nothing is.

    `is_refused` tells that our own address policy said no, which blocks a target; what the network or the receiver does
    (a name that is not found, a certificate that does not count) passes by and only shows.
    """

    reason: str | None = None
    is_refused: bool = False

    @property
    def has_passed(self) -> bool:
        return self.reason in {None, EXPIRES_SOON}
