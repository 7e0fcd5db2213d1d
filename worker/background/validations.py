"""Validates targets: URL, DNS, connection, certificate. Nothing is sent.

The result is recorded with the target. Only our own address policy blocks a target; a resolver error or a receiver that is
down is shown and blocks nothing. No database connection is held during the network calls.
"""

import logging
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from runtime.account_shares import AccountId
from runtime.dns_resolver import DnsFailure
from schemas.targets.validations import Validation
from storage.db.engine import connection
from storage.targets import validations
from storage.targets.validations import ValidationJob

#: Concurrent validations of one account alone, in one worker; beside it, other accounts have threads of their own. A
#: receiver that hangs must not make other clients wait for its deadline.
VALIDATIONS_AT_ONCE: Final = 4
#: A client waits: a lost wake-up costs it a second at most.
POLL_S: Final = 1.0
#: How much longer than its deadline a validation is leased: to write the result, to wait for another writer.
LEASE_MARGIN_S: Final = 15.0

_log: Final = logging.getLogger(__name__)


class ValidationTask:
    """Claims and validates targets.

    `inspect` checks the URL of an account within a deadline and never raises for what the network does; a lease lasts
    `lease_s` seconds.
    """

    def __init__(
        self, inspect: Callable[[str, AccountId], Validation], worker: str, now: Callable[[], datetime], lease_s: float
    ) -> None:
        self._inspect = inspect
        self._worker = worker
        self._now = now
        self._lease_s = lease_s

    def run_once(self) -> bool:
        """Validate the target that has been due longest; return whether there was one."""
        due = self.claim()
        if due is not None:
            self.validate(due)
        return due is not None

    def claim(self, excluded: Collection[AccountId] = ()) -> ValidationJob | None:
        """Claim the target that has been due longest, of any account but those `excluded`."""
        with connection():
            return validations.claim_next(self._now(), self._lease_s, excluded)

    def validate(self, due: ValidationJob) -> None:
        """Validate a target that was claimed, and record the result."""
        validation = self._inspect(due.base_url, due.account_id)
        if validation.reason == DnsFailure.OVERLOADED:
            # Our own overload, not the target's fault: the lease expires, and the target is validated then.
            overloaded = {"target_id": due.target_id, "worker": self._worker}
            _log.warning("DNS resolver overloaded, validation postponed", extra=overloaded)
            return
        with connection():
            is_recorded = validations.finish(due, validation, self._now(), self._worker)
        if is_recorded and validation.is_refused:
            extra = {"target_id": due.target_id, "reason": validation.reason, "worker": self._worker}
            _log.warning("target blocked: its address is not allowed", extra=extra)
