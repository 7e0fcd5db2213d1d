"""Holds a few child processes together: a signal stops them in order, the death of one ends them all.

Nothing is started again here: a process that dies is a fault to be seen, and what restarts an installation (systemd, a
container's policy) sees it by the exit code.
"""

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from types import FrameType
from typing import Final

from bin.processes import child_process

_log: Final = logging.getLogger(__name__)

#: What a worker may take beyond its longest delivery: the last commit and the goodbye.
STOP_GRACE_S = 30
#: How often the children are looked at.
LOOK_S = 0.1


class Supervisor:
    """Starts children, waits, and stops them in the reverse of the order they were started in, those of one command at once.

    `stop_within_s` is how long a child may take to finish what it is doing before it is killed.
    """

    def __init__(self, stop_within_s: float) -> None:
        self._stop_within_s = stop_within_s
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def start(self, name: str, command: list[str], env: Mapping[str, str]) -> None:
        """Start a child; it ends when this process dies, of whatever cause."""
        self._children[name] = child_process.start(command, env=env)

    def adopt(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Watch and stop a child that somebody else started."""
        self._children[name] = process

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `ready()`; False when a child died, a signal came or `timeout_s` passed first."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and self.is_running():
            if ready():
                return True
            time.sleep(LOOK_S)
        return False

    def is_running(self) -> bool:
        """Tell whether every child lives and no signal has come."""
        return not self._stopping and self.dead() is None

    def dead(self) -> str | None:
        """Return the name of a child that ended, if any did."""
        return next((name for name, child in self._children.items() if child.poll() is not None), None)

    def run(self) -> int:
        """Wait for a signal or a death, stop everything, and return the exit code: 0 after a signal, else 1."""
        while self.is_running():
            time.sleep(LOOK_S)
        died = None if self._stopping else self.dead()
        if died is not None:
            _log.error("%s ended (%s); stopping the rest", died, self._children[died].returncode)
        self.stop()
        return 0 if died is None else 1

    def stop(self) -> None:
        """Stop the children, the latest started first, those of one command at once; what does not end in time is killed."""
        self._stopping = True
        for _, alike in groupby(reversed(self._children.values()), key=lambda child: child.args):
            self._stop_together(list(alike))

    def _stop_together(self, children: Sequence[subprocess.Popen[bytes]]) -> None:
        # Told one after another, a worker would go on taking up deliveries until the one before it has finished its own.
        for child in children:
            child.terminate()
        until = time.monotonic() + self._stop_within_s
        for child in children:
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
