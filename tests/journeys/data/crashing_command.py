"""Runs a command that is killed at an internal point, which a test cannot observe from outside.

It is the command of `bin/riskrelay`. Functions at the point are replaced before it runs, in this process only.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from bin.__main__ import riskrelay
from storage.compliance import erasure_replay
from storage.db import schema_version
from storage.maintenance import postgres_dumps, sqlite_copies
from storage.maintenance import restore as restoring


def main() -> None:
    """Prepare the death at the point that the first argument names, and run the rest as the command line."""
    point, *words = sys.argv[1:]
    POINTS[point]()
    riskrelay(words, prog_name="riskrelay")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, *, when: Callable[..., bool] = lambda *_: True) -> Callable[[], None]:
    """Return a function that replaces `owner.name`: when called with arguments that `when` accepts, the process dies."""

    def armed() -> None:
        original = getattr(owner, name)

        @wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            if when(*args):
                _die()
            return original(*args, **kwargs)

        setattr(owner, name, replaced)

    return armed


def _in_the_copy(nth: int) -> Callable[[], None]:
    """Return a function that makes the process die within the `nth` copy of SQLite, after half of its pages."""

    def armed() -> None:
        original, made = sqlite_copies._copy, [0]

        def replaced(source: Any, target: Any, *_: Any) -> None:
            made[0] += 1
            if made[0] < nth:
                original(source, target)
                return
            source.backup(target, pages=7, progress=lambda _status, left, of: _die() if left < of // 2 else None)

        sqlite_copies._copy = replaced  # type: ignore[assignment]  # this process has no other use for it
        sqlite_copies.PAGES_A_STEP = 7  # type: ignore[misc]  # this process has no other use for it

    return armed


#: A restore on SQLite makes three copies: of the backup beside the database, of the database to a safe place, and of the
#: prepared copy of the backup into the database.
POINTS: Final[dict[str, Callable[[], None]]] = {
    "backup: within the copy": _in_the_copy(1),
    "backup: before its name": _before(sqlite_copies, "sync"),
    "sqlite: beside": _before(schema_version, "migrate"),
    "sqlite: half prepared": _before(erasure_replay, "_bring_up_to_date"),
    "sqlite: prepared": _before(restoring, "_set_aside"),
    "sqlite: aside": _before(sqlite_copies, "put_in_place"),
    "sqlite: within the last copy": _in_the_copy(3),
    "postgresql: saved": _before(postgres_dumps, "put_in_place"),
    "postgresql: before the commit": _before(
        postgres_dumps, "_require_success", when=lambda process, _stderr: "--file=-" in process.args
    ),
    "postgresql: committed": _before(schema_version, "migrate"),
    "postgresql: half prepared": _before(erasure_replay, "_bring_up_to_date"),
}

if __name__ == "__main__":
    main()
