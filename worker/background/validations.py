"""Looks at targets as they are now: URL, names, connection, certificate. Nothing is sent.

What a look finds is recorded with the target. Only our own address policy turns a target off; a resolver's hiccup or a
receiver that is down shows, and passes by. No database connection is held while the network is asked.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from runtime.dns_resolver import DnsFailure
from schemas.targets.validations import Validation
from storage.db.engine import connection
from storage.targets import validations

#: How many looks one worker makes at once: a receiver that hangs must not make a client wait for its deadline.
LOOKS_AT_ONCE: Final = 4
#: A client waits: a lost wake-up costs it a second at most.
LOOK_EVERY_S: Final = 1.0
#: How much longer than the deadline of a look its claim holds: to write the result, to wait for another writer.
LEASE_MARGIN_S: Final = 15.0

_log: Final = logging.getLogger(__name__)


class ValidationTask:
    """Makes looks, each on the thread that takes it.

    `inspect` looks at a URL within a deadline and never raises for what the network does; a claim lasts `lease_s` seconds.
    """

    def __init__(
        self, inspect: Callable[[str], Validation], worker: str, now: Callable[[], datetime], lease_s: float
    ) -> None:
        self._inspect = inspect
        self._worker = worker
        self._now = now
        self._lease_s = lease_s

    def run_once(self) -> bool:
        """Take the target whose look is due longest and make it; tell whether there was one."""
        with connection():
            look = validations.claim_next(self._now(), self._lease_s)
        if look is None:
            return False
        validation = self._inspect(look.base_url)
        if validation.reason == DnsFailure.OVERLOADED:
            # That is about us, not about the target: the lease lapses, and it is looked at then.
            _log.warning("too busy to look at a target", extra={"target_id": look.target_id, "worker": self._worker})
            return True
        with connection():
            is_recorded = validations.finish(look, validation, self._now(), self._worker)
        if is_recorded and validation.is_refused:
            extra = {"target_id": look.target_id, "reason": validation.reason, "worker": self._worker}
            _log.warning("target leads where nothing may go, and is blocked", extra=extra)
        return True
