"""Supervises child processes: stops them in order after a signal, or when one of them exits.

It restarts nothing: a process that exits is an error, and the service manager (systemd, the container's restart policy)
restarts the installation because of the exit code.
"""

from __future__ import annotations

import os
import signal
import sys
import time

# No other module is imported here: the process that supervises an installation runs this file alone, in 5 MB instead of 50.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen
    from types import FrameType


#: The time a worker may need beyond its longest delivery, for the last commit and its shutdown.
STOP_GRACE_S = 30
#: Seconds between two checks of the children.
POLL_INTERVAL_S = 0.1
#: Seconds between two checks of the children during a stop.
STOP_POLL_INTERVAL_S = 0.02
#: Signals within this time count as one, here and in workers: one Ctrl-C may reach a process several times.
ECHO_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Supervisor:
    """Starts children, waits, and stops them in reverse order; forked children are stopped together.

    A child that does not exit within `stop_within_s` is killed. After a second signal each child gets further signals, even
    if it is stopped later: a worker then exits without waiting for its requests.
    """

    def __init__(self, stop_within_s: float) -> None:
        self._stop_within_s = stop_within_s
        self._children: dict[str, Popen[bytes] | _Adopted] = {}
        self._stopping = False
        self._signaled_at: float | None = None
        self._is_urgent = False
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def start(self, name: str, command: list[str], env: Mapping[str, str]) -> None:
        """Start a child; it is stopped when this process dies for any reason. After a signal, none is started."""
        if self._stopping:
            return
        from bin.processes import child_process  # noqa: PLC0415 - see above

        self.adopt(name, child_process.start(command, env=env))

    def fork(self, name: str, work: Callable[[], int]) -> None:
        """Start a child that calls `work` and exits with its result; as in `start`. This process must have no threads."""
        if self._stopping:
            return
        from bin.processes import child_process  # noqa: PLC0415 - see above

        parent = os.getpid()
        # A signal that arrives meanwhile waits until the child is known here and has its own handlers there.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            child_process.end_with(parent)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            sys.exit(work())
        self.adopt(name, _Adopted(pid, "forked"))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def adopt(self, name: str, child: Popen[bytes] | _Adopted) -> None:
        """Supervise a child that was started elsewhere."""
        self._children[name] = child

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
            _log_exit(exited, self._children[exited].returncode)
        self.stop()
        return 0 if exited is None else 1

    def run_alone(self, level: str, form: str, remove: Iterable[Path]) -> int:
        """Replace this program with one that does what `run` does, with this process's id and children.

        It logs with `level` and `form`, and at its end removes the files and folders in `remove`. Returns only if a stop has
        already begun.
        """
        # A signal that arrives meanwhile waits for the new program's handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if self.is_running():
            commands = [child.args for child in self._children.values()]
            children = [f"{child.pid}:{commands.index(child.args)}:{name}" for name, child in self._children.items()]
            words = [f"{self._stop_within_s}", level, form, *children, "--", *map(str, remove)]
            os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *words])  # noqa: S606 - no shell is wanted here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return self.run()

    def stop(self) -> None:
        """Stop the children in reverse order, those with the same command together; kill those that do not exit in time."""
        self._stopping = True
        waiting = list(self._children.values())
        while waiting:
            together = [waiting.pop()]
            while waiting and waiting[-1].args == together[0].args:
                together.append(waiting.pop())
            self._stop_together(together)

    def _stop_together(self, children: Sequence[Popen[bytes] | _Adopted]) -> None:
        # Terminate all at once: otherwise a worker would claim deliveries until the previous worker has exited.
        for child in children:
            child.terminate()
        began_at = time.monotonic()
        deadline, again_at = began_at + self._stop_within_s, began_at + ECHO_S
        while any(child.poll() is None for child in children):
            if self._is_urgent and time.monotonic() > again_at:
                again_at += ECHO_S
                for child in children:
                    child.terminate()
            if time.monotonic() >= deadline:
                for child in children:
                    child.kill()
            time.sleep(STOP_POLL_INTERVAL_S)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        now = time.monotonic()
        if self._signaled_at is None:
            self._signaled_at = now
        elif now - self._signaled_at > ECHO_S:
            self._is_urgent = True


class _Adopted:
    """A forked child, or one of the program that this one has replaced; those that stop together have the same `args`."""

    def __init__(self, pid: int, args: str) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        # Until this process has waited for a child, no other process can get the child's id.
        if self.poll() is None:
            os.kill(self.pid, number)


def _log_exit(name: str, code: int | None) -> None:
    import logging  # noqa: PLC0415 - see above

    logging.getLogger(__name__).error("%s exited with %s; stopping the other processes", name, code)


def _supervise(stop_within_s: str, level: str, form: str, *words: str) -> int:
    """Supervise the children of `Supervisor.run_alone`."""
    end = words.index("--")
    supervisor = Supervisor(float(stop_within_s))
    for word in words[:end]:
        pid, command, name = word.split(":", 2)
        supervisor.adopt(name, _Adopted(int(pid), command))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        while supervisor.is_running():
            time.sleep(POLL_INTERVAL_S)
        _configure_logs(level, form)
        return supervisor.run()
    finally:
        supervisor.stop()
        remove(words[end + 1 :])


def _configure_logs(level: str, form: str) -> None:
    """Configure the logs like those of the other processes."""
    from pathlib import Path  # noqa: PLC0415 - needed only at the end

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from runtime import logs  # noqa: PLC0415 - likewise

    logs.configure(level, form)


def remove(paths: Iterable[str | Path]) -> None:
    """Remove files and empty folders."""
    from pathlib import Path  # noqa: PLC0415 - needed only at the end

    for path in map(Path, paths):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(_supervise(*sys.argv[1:]))
