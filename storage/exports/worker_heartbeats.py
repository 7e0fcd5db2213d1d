"""Heartbeats of worker processes, from which each worker computes its share of a target's concurrency."""

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from peewee import fn

from schemas.targets.throttle_state import WorkerShare
from storage.db.engine import transaction
from storage.db.models import WorkerRow
from storage.db.queries import scalars

#: As long as a lease: a worker that has sent no heartbeat for this long has lost its claims.
ALIVE_FOR: Final = timedelta(seconds=6)
#: After this time, the other workers delete the rows of workers that were killed.
FORGOTTEN_AFTER: Final = timedelta(minutes=10)

#: More than any real number of workers, so that the list fits on one page.
MAX_LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """The last heartbeat of a worker process; `is_alive` if it was recent."""

    name: str
    started_at: datetime
    seen_at: datetime
    is_alive: bool


@cache
def process_name(kind: str) -> str:
    """Return the name of this process as a `kind` of worker, unique over all hosts and times.

    Containers may all be host `app` with process 1, and a system reuses process ids. Two workers with one name would count
    as one, and each would use the share of both.
    """
    return f"{kind}:{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def beat(name: str, now: datetime) -> WorkerShare:
    """Record that a worker is alive and return its place among those that are."""
    with transaction():
        new = WorkerRow.insert(name=name, started_at=now, seen_at=now)
        new.on_conflict(conflict_target=[WorkerRow.name], update={WorkerRow.seen_at: now}).execute()
        WorkerRow.delete().where(WorkerRow.seen_at < now - FORGOTTEN_AFTER).execute()
    return share(name, now)


def share(name: str, now: datetime) -> WorkerShare:
    """Return a worker's place among the workers with a recent heartbeat; it always counts itself."""
    found = {*list_alive(now), name}
    return WorkerShare(sorted(found).index(name), len(found))


def list_alive(now: datetime) -> list[str]:
    """Return the names of the workers with a recent heartbeat."""
    return scalars(WorkerRow.select(WorkerRow.name).where(_is_alive(now)).order_by(WorkerRow.name))


def count_alive(now: datetime) -> int:
    """Return how many workers have a recent heartbeat."""
    return int(WorkerRow.select().where(_is_alive(now)).count())


def last_seen() -> datetime | None:
    """Return the time of the last heartbeat of any worker; None if all workers ended properly or were killed long ago."""
    seen_at: datetime | None = WorkerRow.select(fn.MAX(WorkerRow.seen_at)).scalar()
    return seen_at


def list_recent(now: datetime) -> list[WorkerHeartbeat]:
    """Return up to MAX_LISTED workers with a heartbeat younger than FORGOTTEN_AFTER, the latest heartbeat first."""
    recent = WorkerRow.select().where(WorkerRow.seen_at > now - FORGOTTEN_AFTER)
    found = recent.order_by(WorkerRow.seen_at.desc(), WorkerRow.name).limit(MAX_LISTED)
    return [WorkerHeartbeat(row.name, row.started_at, row.seen_at, abs(now - row.seen_at) < ALIVE_FOR) for row in found]


def on_this_host_since_before(moment: datetime, now: datetime) -> list[str]:
    """Return the names of the running workers of this host that started before `moment`."""
    living = WorkerRow.select(WorkerRow.name).where(_is_alive(now), WorkerRow.started_at < moment)
    here = f"worker:{socket.gethostname()}:"
    return sorted(name for name in scalars(living) if name.startswith(here))


def remove(name: str) -> None:
    """Record that a worker has ended; from their next heartbeat on, the others share its concurrency."""
    with transaction():
        WorkerRow.delete().where(WorkerRow.name == name).execute()


def _is_alive(now: datetime) -> Any:
    # Not later than now either: before a clock was set back, workers that are dead now had heartbeats in the future.
    return (WorkerRow.seen_at > now - ALIVE_FOR) & (WorkerRow.seen_at < now + ALIVE_FOR)
