"""A worker daemon with bad luck: it is killed or stopped at a point that cannot be seen from outside, or its clock steps.

It is the daemon of `bin/riskrelay work`, composed by it and fed by the same settings. What differs is assigned before it
runs, in this process alone: functions at the named point, the clock, and how soon it deletes what is over. It begins when a
line comes on standard input, so that a test has it ready and says when.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import peewee

from runtime import clock
from runtime.logs import configure
from schemas.settings.definitions import load_settings
from storage.db.drivers.group_commit import GroupCommit
from storage.exports import claims_sql
from worker import daemon
from worker.background import retention
from worker.http.client import HttpClient
from worker.http.connection_pool import GuardedConnection

STOPPED_WITHIN_S: Final = 0.3
#: What is to happen at the point.
Fate = Callable[[], None]


def main() -> None:
    """Arm what the command line asks for, wait for the cue, work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", choices=POINTS, help="the point that it reaches once and no further")
    parser.add_argument("--signal", choices=["KILL", "STOP"], default="KILL", help="what it does to itself there")
    parser.add_argument("--clock", type=Path, help="a file with the seconds that its clock is ahead")
    parser.add_argument("--prune-after", type=float, help="the seconds until it first deletes what is over")
    asked = parser.parse_args()
    settings = load_settings()
    configure(settings.log_level, settings.log_format)
    if asked.clock:
        _step_with(asked.clock)
    if asked.prune_after is not None:
        vars(retention)["FIRST_RUN_AFTER"] = timedelta(seconds=asked.prune_after)
        vars(retention)["POLL_S"] = 1.0
    if asked.at:
        POINTS[asked.at](_Once(signal.Signals[f"SIG{asked.signal}"]))
    logging.getLogger(__name__).info("waiting for its cue")
    sys.stdin.readline()
    raise SystemExit(daemon.run(settings))


class _Once:
    """Sends this process a signal the first time it is called."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self._is_over = False

    def __call__(self) -> None:
        if not self._is_over:
            self._is_over = True
            os.kill(os.getpid(), self._number)
            # A death is there at once; a stop may reach this thread a moment after the others.
            time.sleep(STOPPED_WITHIN_S)


def _before(owner: Any, name: str, fate: Fate) -> None:
    """Let `fate` come when `owner.name` is called for something: an empty first argument is none."""
    original = getattr(owner, name)

    @wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if not args or args[0]:
            fate()
        return original(*args, **kwargs)

    setattr(owner, name, replaced)


def _after(owner: Any, name: str, fate: Fate) -> None:
    """Let `fate` come when `owner.name` has brought something about."""
    original = getattr(owner, name)

    @wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if result:
            fate()
        return result

    setattr(owner, name, replaced)


def _committed(owner: Any, name: str, fate: Fate) -> None:
    """Let `fate` come when what `owner.name` has brought about is committed, by the same thread."""
    waiting: set[int] = set()
    _after(owner, name, lambda: waiting.add(threading.get_ident()))
    # Where a commit has just returned: PostgreSQL's through peewee, SQLite's without it.
    for place, step in ((peewee.Database, "commit"), (GroupCommit, "_await_commit")):
        _then(place, step, lambda: fate() if threading.get_ident() in waiting else None)


def _then(owner: Any, name: str, follows: Callable[[], None]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        follows()

    setattr(owner, name, replaced)


#: The story of a delivery, and where in it bad luck strikes.
POINTS: Final[dict[str, Callable[[Fate], None]]] = {
    "before the claim": partial(_before, claims_sql, "claim_due"),
    "claimed": partial(_after, claims_sql, "claim_due"),
    "claim committed": partial(_committed, claims_sql, "claim_due"),
    "before the request": partial(_before, HttpClient, "post"),
    "request sent": partial(_before, GuardedConnection, "read_response"),
    "answered": partial(_after, HttpClient, "post"),
    "tracker answered": partial(_after, HttpClient, "exchange"),
    "before the result": partial(_before, claims_sql, "record_attempts"),
    "result written": partial(_after, claims_sql, "record_attempts"),
    "result committed": partial(_committed, claims_sql, "record_attempts"),
}


def _step_with(path: Path) -> None:
    """Let every module that reads the time read it as much ahead as the file says."""
    original = clock.utc_now

    def shifted() -> datetime:
        return original() + timedelta(seconds=float(path.read_text()))

    for module in list(sys.modules.values()):
        if getattr(module, "utc_now", None) is original:
            module.utc_now = shifted  # type: ignore[attr-defined]  # whichever has imported it


if __name__ == "__main__":
    main()
