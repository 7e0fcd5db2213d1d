"""Size of a soak and order of its faults: everything that the seed determines.

The same seed gives the same kills in the same order and the same behaviors of every receiver; which requests they affect
depends on the machine. No I/O.
"""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

#: A killed process runs again after about two seconds, so that the next kill finds a running process.
KILL_EVERY_S: Final = 4.5
#: Approvals per second that two slow cores can handle together with clients, receivers and kills.
RATE: Final = 14.0
DURATION_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """One soak of one database; `rate` is in approvals per second."""

    database: str
    seed: int
    duration_s: float
    exports: int
    kills: int
    rate: float
    clients: int = 6
    workers: int = 2
    receivers: int = 3
    trackers: int = 1
    targets: int = 60
    settle_s: float = 300.0
    sample_s: float = 10.0

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def sizes(
    duration_s: float | None, exports: int | None, kills: int | None, rate: float | None
) -> tuple[float, int, int, float]:
    """Return duration, exports, kills and rate; derive the ones not given from the others.

    Without a duration, the run is as long as its exports and kills take at a pace that two slow cores carry.
    """
    if duration_s is None:
        needed_s = [(exports or 0) / (rate or RATE), (kills or 0) * KILL_EVERY_S]
        duration_s = max(needed_s) or DURATION_S
    if exports is None:
        exports = int(duration_s * (rate or RATE))
    if kills is None:
        kills = int(duration_s / KILL_EVERY_S)
    return duration_s, exports, kills, rate or exports / duration_s


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `victim` is an index among processes of its kind, `pause_s` the duration of the fault."""

    kind: str
    victim: int
    pause_s: float

    @property
    def is_kill(self) -> bool:
        """Return whether it ends a process."""
        return self.kind not in _NOT_KILLS


#: These end no process and do not count as kills.
_NOT_KILLS: Final = frozenset({"worker stalled", "redis emptied"})
#: Relative frequencies; most for workers, which hold most of what can be lost.
_FAULTS: Final = {
    "worker killed": 30,
    "worker asked to stop": 7,
    "worker stalled": 8,
    "service killed": 8,
    "service asked to stop": 3,
    "service process killed": 12,
    "redis killed, back empty": 4,
    "redis killed, back with its file": 4,
    "redis emptied": 3,
    "receiver killed": 4,
    "tracker killed": 4,
}
_FAULTS_OF_POSTGRESQL: Final = {"postgresql backend killed": 5, "postgresql stopped at once": 3, "postgresql killed": 3}
#: Up to more than a lease (6 s), so that a stalled worker resumes after another one has taken over its exports.
_LONGEST_STALL_S: Final = 9.0
#: Outage of a database or Redis server, in seconds.
_LONGEST_OUTAGE_S: Final = 2.5
#: A victim is a number below this, modulo the number of processes of its kind.
_VICTIMS: Final = 1000


def faults(plan: SoakPlan) -> Iterator[Fault]:
    """Yield an infinite sequence of faults."""
    rng = random.Random(f"{plan.seed}:faults")
    weights = {**_FAULTS, **(_FAULTS_OF_POSTGRESQL if plan.database == "postgresql" else {})}
    while True:
        [kind] = rng.choices(list(weights), list(weights.values()))
        longest_s = _LONGEST_STALL_S if kind == "worker stalled" else _LONGEST_OUTAGE_S
        yield Fault(kind, rng.randrange(_VICTIMS), rng.uniform(0.0, longest_s))


def intervals(plan: SoakPlan) -> Iterator[float]:
    """Yield the seconds between kills, spread evenly over the run on average."""
    rng = random.Random(f"{plan.seed}:intervals")
    while True:
        yield plan.duration_s / max(1, plan.kills) * rng.uniform(0.3, 1.5)
