"""Supervises child processes: stops them in order after a signal, or when one of them exits.

It restarts nothing: a process that exits is an error, and the service manager (systemd, the container's restart policy)
restarts the installation because of the exit code.
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

#: The time a worker may need beyond its longest delivery, for the last commit and its shutdown.
STOP_GRACE_S = 30
#: How often the children are checked.
POLL_INTERVAL_S = 0.1


class Supervisor:
    """Starts children, waits, and stops them in reverse order; children with the same command are stopped together.

    A child that does not exit within `stop_within_s` is killed.
    """

    def __init__(self, stop_within_s: float) -> None:
        self._stop_within_s = stop_within_s
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def start(self, name: str, command: list[str], env: Mapping[str, str]) -> None:
        """Start a child; it is stopped when this process dies for any reason."""
        self._children[name] = child_process.start(command, env=env)

    def adopt(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Supervise a child that was started elsewhere."""
        self._children[name] = process

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `ready()`; return False if a child exits, a signal arrives or `timeout_s` passes first."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.is_running():
            if ready():
                return True
            time.sleep(POLL_INTERVAL_S)
        return False

    def is_running(self) -> bool:
        """Return whether every child runs and no signal has arrived."""
        return not self._stopping and self.exited() is None

    def exited(self) -> str | None:
        """Return the name of a child that exited, or None."""
        return next((name for name, child in self._children.items() if child.poll() is not None), None)

    def run(self) -> int:
        """Wait for a signal or the exit of a child, stop all, and return the exit code: 0 after a signal, otherwise 1."""
        while self.is_running():
            time.sleep(POLL_INTERVAL_S)
        exited = None if self._stopping else self.exited()
        if exited is not None:
            _log.error("%s exited with %s; stopping the other processes", exited, self._children[exited].returncode)
        self.stop()
        return 0 if exited is None else 1

    def stop(self) -> None:
        """Stop the children, the latest started first, those with the same command together; kill those that are late."""
        self._stopping = True
        for _, group in groupby(reversed(self._children.values()), key=lambda child: child.args):
            self._stop_together(list(group))

    def _stop_together(self, children: Sequence[subprocess.Popen[bytes]]) -> None:
        # Terminated one after another, a worker would claim deliveries until the previous worker has exited.
        for child in children:
            child.terminate()
        deadline = time.monotonic() + self._stop_within_s
        for child in children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
