"""Validates targets: URL, DNS, connection, certificate. Nothing is sent.

The result is recorded with the target. Only our own address policy blocks a target; a resolver error or a receiver that is
down is shown and blocks nothing. No database connection is held during the network calls.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from runtime.dns_resolver import DnsFailure
from schemas.targets.validations import Validation
from storage.db.engine import connection
from storage.targets import validations

#: Concurrent validations of one worker: a receiver that hangs must not make other clients wait for its deadline.
VALIDATIONS_AT_ONCE: Final = 4
#: A client waits: a lost wake-up costs it a second at most.
POLL_S: Final = 1.0
#: How much longer than its deadline a validation is leased: to write the result, to wait for another writer.
LEASE_MARGIN_S: Final = 15.0

_log: Final = logging.getLogger(__name__)


class ValidationTask:
    """Validates targets, each on the thread that claims it.

    `inspect` checks a URL within a deadline and never raises for what the network does; a lease lasts `lease_s` seconds.
    """

    def __init__(
        self, inspect: Callable[[str], Validation], worker: str, now: Callable[[], datetime], lease_s: float
    ) -> None:
        self._inspect = inspect
        self._worker = worker
        self._now = now
        self._lease_s = lease_s

    def run_once(self) -> bool:
        """Validate the target that has been due longest; return whether there was one."""
        with connection():
            due = validations.claim_next(self._now(), self._lease_s)
        if due is None:
            return False
        validation = self._inspect(due.base_url)
        if validation.reason == DnsFailure.OVERLOADED:
            # Our own overload, not the target's fault: the lease expires, and the target is validated then.
            overloaded = {"target_id": due.target_id, "worker": self._worker}
            _log.warning("DNS resolver overloaded, validation postponed", extra=overloaded)
            return True
        with connection():
            is_recorded = validations.finish(due, validation, self._now(), self._worker)
        if is_recorded and validation.is_refused:
            extra = {"target_id": due.target_id, "reason": validation.reason, "worker": self._worker}
            _log.warning("target blocked: its address is not allowed", extra=extra)
        return True
