"""Workers that are alive, as far as they say so: by that, each knows its share of what a target may be sent at once."""

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Final

from schemas.base.timestamps import from_ms, to_ms
from schemas.targets.throttle_state import WorkerShare
from storage.db.engine import execute, rows, transaction

#: As long as a lease: who has said nothing for so long has lost what it held.
ALIVE_FOR: Final = timedelta(seconds=6)
#: Rows of workers that were killed are swept away by the others after a while.
FORGOTTEN_AFTER: Final = timedelta(minutes=10)

#: More than anybody runs; a list of them stays a page.
MAX_LISTED: Final = 200

_BEAT: Final = """
INSERT INTO workers (name, started_at, seen_at) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at"""


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """A worker process that has said that it is alive; `is_alive` where it did so lately."""

    name: str
    started_at: datetime
    seen_at: datetime
    is_alive: bool


@cache
def process_name(kind: str) -> str:
    """Return the name of this process as a `kind` of worker; no other one, on whatever host, ever has the same.

    Containers may all be host `app` with process 1, and a system gives a dead process's number to the next one: two workers
    of one name would count as one, and each would take the share of both.
    """
    return f"{kind}:{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def beat(name: str, now: datetime) -> WorkerShare:
    """Say that a worker is alive and return its place among those that are."""
    with transaction():
        execute(_BEAT, (name, to_ms(now), to_ms(now)))
        execute("DELETE FROM workers WHERE seen_at < ?", (to_ms(now - FORGOTTEN_AFTER),))
    return share(name, now)


def share(name: str, now: datetime) -> WorkerShare:
    """Return a worker's place among those that were seen lately, itself always among them."""
    # Not later than now either: before a clock was set back, the dead were seen at times that are still to come.
    lately = (to_ms(now - ALIVE_FOR), to_ms(now + ALIVE_FOR))
    found = {row[0] for row in rows("SELECT name FROM workers WHERE seen_at > ? AND seen_at < ?", lately)} | {name}
    return WorkerShare(sorted(found).index(name), len(found))


def count_alive(now: datetime) -> int:
    """Return how many workers were seen lately."""
    lately = (to_ms(now - ALIVE_FOR), to_ms(now + ALIVE_FOR))
    return int(rows("SELECT COUNT(*) FROM workers WHERE seen_at > ? AND seen_at < ?", lately)[0][0])


def last_seen() -> datetime | None:
    """Return when a worker was last seen; None where none was within FORGOTTEN_AFTER."""
    [(seen_at,)] = rows("SELECT MAX(seen_at) FROM workers")
    return None if seen_at is None else from_ms(seen_at)


def list_recent(now: datetime) -> list[WorkerHeartbeat]:
    """Return up to MOST_KNOWN workers that said something within FORGOTTEN_AFTER, who spoke last first."""
    found = rows("SELECT name, started_at, seen_at FROM workers ORDER BY seen_at DESC, name LIMIT ?", (MAX_LISTED,))
    return [
        WorkerHeartbeat(name, from_ms(started_at), from_ms(seen_at), abs(now - from_ms(seen_at)) < ALIVE_FOR)
        for name, started_at, seen_at in found
    ]


def on_this_host_since_before(moment: datetime, now: datetime) -> list[str]:
    """Return the living workers of this host that started before `moment`."""
    asked = "SELECT name FROM workers WHERE seen_at > ? AND started_at < ?"
    began_before = rows(asked, (to_ms(now - ALIVE_FOR), to_ms(moment)))
    here = f"worker:{socket.gethostname()}:"
    return sorted(name for (name,) in began_before if name.startswith(here))


def remove(name: str) -> None:
    """Say that a worker has ended; the others share what it had from their next beat on."""
    with transaction():
        execute("DELETE FROM workers WHERE name = ?", (name,))
