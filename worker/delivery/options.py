"""The options of a worker process's dispatcher, and their defaults with the reasons for them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.exports.delivery import CompletedAttempt
from worker.delivery.claim_planner import QUICK_SCAN_S

#: Leases are renewed every 2 s and expire after 6 s, so that a worker that died is replaced within 10 s.
RENEW_S: Final = 2.0
LEASE_S: Final = 6.0
#: How long a stopping worker retries each of its writes while the database is unavailable.
STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DispatcherOptions:
    """How a worker process delivers: with `concurrency` threads, scanning every `sweep_s` seconds without a wake-up."""

    worker: str
    concurrency: int
    sweep_s: float
    now: Callable[[], datetime]
    lease_s: float = LEASE_S
    renew_s: float = RENEW_S
    stop_timeout_s: float = STOP_TIMEOUT_S
    quick_scan_s: float = QUICK_SCAN_S
    #: Called from time to time to correct `now` by the clock that all hosts share; the caller holds a database connection.
    compare_clocks: Callable[[], None] = lambda: None
    #: Called with attempts once they are committed, and with the ids of the exports whose state they changed.
    count: Callable[[Sequence[CompletedAttempt], Collection[str]], None] = lambda _attempts, _moved: None
