"""A validation: a check of a target's URL, addresses, connection and certificate, without sending a request."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from schemas.url_policy.policy import RefusalReason

PASSED: Final = "passed"
FAILED: Final = "failed"

#: `reason` of a passed validation if the certificate expires within this many days.
EXPIRES_SOON: Final = "certificate_expires_soon"
EXPIRES_SOON_DAYS: Final = 14

#: No automatic validation of a target within this time after a delivery or a validation that passed.
VALID_FOR: Final = timedelta(days=1)

#: The time between the first failed validation and the next one; it doubles after each further failure.
REVALIDATE_AFTER: Final = timedelta(seconds=30)
REVALIDATE_AT_MOST: Final = timedelta(hours=1)
#: Enough doublings of REVALIDATE_AFTER to exceed REVALIDATE_AT_MOST.
_MAX_DOUBLINGS: Final = 7


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of a validation: `reason` names the problem, None if there is none.

    `is_refused` means that our address policy refuses the URL, which blocks the target; a failure of the network or the
    receiver (an unknown name, an invalid certificate) does not block it. `is_partial` means that only the URL and its
    addresses were checked, not the connection and the certificate. `base_url` is the URL that was checked; None if it
    cannot have changed since.
    """

    reason: str | None = None
    is_refused: bool = False
    is_partial: bool = False
    base_url: str | None = None

    @property
    def has_passed(self) -> bool:
        return self.reason in {None, EXPIRES_SOON}


def is_about_address(reason: str | None) -> bool:
    """Return whether a partial validation covers the failure `reason`: the URL, its name, its addresses."""
    return reason is not None and (reason.startswith("dns_") or reason in set(RefusalReason))


def next_validation_in(failures: int) -> timedelta:
    """Return the time until a target is validated automatically, after `failures` failed validations in a row."""
    if failures == 0:
        return VALID_FOR
    return min(REVALIDATE_AFTER * (1 << min(failures - 1, _MAX_DOUBLINGS)), REVALIDATE_AT_MOST)
