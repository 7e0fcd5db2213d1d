"""Runs COUNT worker processes, `python -m bin.processes.workers COUNT`, which share the memory of what they import.

They are forked from one process that has imported everything: each takes 20 MB instead of 50. That process then replaces
itself with a small supervisor.
"""

import sys

from bin.processes.supervisor import STOP_GRACE_S, Supervisor
from schemas.settings.definitions import load_settings
from worker.startup import import_worker

#: In seconds. Workers that do not stop are killed this much earlier than `run` would kill this supervisor. Otherwise, nobody
#: would kill them.
_HEAD_START_S = 2


def worker_command(count: int) -> list[str]:
    """Return the command that runs `count` worker processes; its last word shows in lists of processes."""
    module = ["worker"] if count == 1 else ["bin.processes.workers", str(count)]
    return [sys.executable, "-P", "-m", *module, "work"]


def _run(count: int) -> int:
    settings = load_settings()
    work = import_worker(settings)
    supervisor = Supervisor(stop_within_s=settings.delivery_timeout_s + STOP_GRACE_S - _HEAD_START_S)
    for number in range(count):
        supervisor.fork(f"worker {number + 1}", work)
    return supervisor.run_alone(settings.log_level, settings.log_format, [])


if __name__ == "__main__":
    raise SystemExit(_run(int(sys.argv[1])))
