"""How much a soak does, and in which order things go wrong: everything that a seed decides.

The same seed gives the same kills in the same order and the same moods of every receiver; what they meet depends on the
machine. Nothing here touches the world.
"""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

#: A killed process takes some two seconds to be back: often enough, and the next kill still finds something at work.
KILL_EVERY_S: Final = 4.5
#: Approvals a second that two slow cores carry beside the clients, the receivers and the kills.
RATE: Final = 14.0
DURATION_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """One soak of one database; `rate` is in approvals a second."""

    database: str
    seed: int
    duration_s: float
    exports: int
    kills: int
    rate: float
    clients: int = 6
    workers: int = 2
    receivers: int = 3
    targets: int = 60
    drain_s: float = 300.0
    sample_s: float = 10.0

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def sizes(
    duration_s: float | None, exports: int | None, kills: int | None, rate: float | None
) -> tuple[float, int, int, float]:
    """Return duration, exports, kills and rate, each from the others where it is not given.

    Without a duration, the run is as long as its exports and kills take at a pace that two slow cores carry.
    """
    if duration_s is None:
        wanted_s = [(exports or 0) / (rate or RATE), (kills or 0) * KILL_EVERY_S]
        duration_s = max(wanted_s) or DURATION_S
    if exports is None:
        exports = int(duration_s * (rate or RATE))
    if kills is None:
        kills = int(duration_s / KILL_EVERY_S)
    return duration_s, exports, kills, rate or exports / duration_s


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: `victim` counts among those of its kind, `pause_s` is how long it stays so."""

    kind: str
    victim: int
    pause_s: float

    @property
    def is_kill(self) -> bool:
        """Tell whether a process ends by it."""
        return self.kind not in LESSER


#: Nothing ends by these; they come on top of the kills that were asked for.
LESSER: Final = frozenset({"worker stalled", "redis emptied"})
#: How often each comes, beside the others: most of what can be lost is in the hands of a worker.
_FAULTS: Final = {
    "worker killed": 30,
    "worker told to stop": 7,
    "worker stalled": 8,
    "service killed": 8,
    "service told to stop": 3,
    "service process killed": 12,
    "redis killed, back empty": 4,
    "redis killed, back with its file": 4,
    "redis emptied": 3,
    "receiver killed": 4,
}
_FAULTS_OF_POSTGRESQL: Final = {
    "postgresql backend killed": 5,
    "postgresql stopped at once": 3,
    "postgresql killed": 3,
}
#: Up to more than a lease (6 s), so that a stalled worker comes back to what somebody else has taken over.
_LONGEST_STALL_S: Final = 9.0
#: How long a server of others may be away.
_LONGEST_ABSENCE_S: Final = 2.5
#: More than there are processes of any kind: taken modulo their number.
_VICTIMS: Final = 1000


def faults(plan: SoakPlan) -> Iterator[Fault]:
    """Yield what goes wrong, one after the other, without an end."""
    chance = random.Random(f"{plan.seed}:faults")
    weights = {**_FAULTS, **(_FAULTS_OF_POSTGRESQL if plan.database == "postgresql" else {})}
    while True:
        [kind] = chance.choices(list(weights), list(weights.values()))
        longest_s = _LONGEST_STALL_S if kind == "worker stalled" else _LONGEST_ABSENCE_S
        yield Fault(kind, chance.randrange(_VICTIMS), chance.uniform(0.0, longest_s))


def intervals(plan: SoakPlan) -> Iterator[float]:
    """Yield the seconds from each kill to the next: on average what spreads them over the run."""
    chance = random.Random(f"{plan.seed}:intervals")
    while True:
        yield plan.duration_s / max(1, plan.kills) * chance.uniform(0.3, 1.5)
