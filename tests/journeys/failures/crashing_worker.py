"""A worker daemon that is killed or stopped at an internal point, which a test cannot observe, or whose clock steps.

It runs the daemon of `bin/riskrelay work` with the same settings. Before it runs, it replaces functions in this process
only: those at the named point, the clock, and the delay before the first deletion of old records. It starts its work when a
line arrives on standard input, so that a test can start the process early and choose the time.
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
#: The function to call at the point.
Action = Callable[[], None]


def main() -> None:
    """Prepare the failures that the options select, wait for a line on standard input, and run the worker."""
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
            # SIGKILL takes effect at once. SIGSTOP can reach this thread slightly later than other threads.
            time.sleep(STOPPED_WITHIN_S)


def _before(owner: Any, name: str, action: Action) -> None:
    """Call `action` before `owner.name` runs, unless its first argument is empty: then it has nothing to do."""
    original = getattr(owner, name)

    @wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if not args or args[0]:
            action()
        return original(*args, **kwargs)

    setattr(owner, name, replaced)


def _after(owner: Any, name: str, action: Action) -> None:
    """Call `action` after `owner.name` has returned a result that is not empty."""
    original = getattr(owner, name)

    @wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if result:
            action()
        return result

    setattr(owner, name, replaced)


def _committed(owner: Any, name: str, action: Action) -> None:
    """Call `action` after the result of `owner.name` is committed by the same thread."""
    waiting: set[int] = set()
    _after(owner, name, lambda: waiting.add(threading.get_ident()))
    # Functions that return after a commit: Peewee's for PostgreSQL, GroupCommit's for SQLite.
    for place, step in ((peewee.Database, "commit"), (GroupCommit, "_await_commit")):
        _then(place, step, lambda: action() if threading.get_ident() in waiting else None)


def _then(owner: Any, name: str, follows: Callable[[], None]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        follows()

    setattr(owner, name, replaced)


#: Points of a delivery, in order. Each function makes its action run at that point.
POINTS: Final[dict[str, Callable[[Action], None]]] = {
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
    """Shift the time in every module that imports `utc_now` by the seconds in the file."""
    original = clock.utc_now

    def shifted() -> datetime:
        return original() + timedelta(seconds=float(path.read_text()))

    for module in list(sys.modules.values()):
        if getattr(module, "utc_now", None) is original:
            module.utc_now = shifted  # type: ignore[attr-defined]  # this module has imported it


if __name__ == "__main__":
    main()
