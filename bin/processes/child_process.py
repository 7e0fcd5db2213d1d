"""Starts a child process that gets SIGTERM when its parent dies for any reason, and never the terminal's Ctrl-C.

A small launcher requests that signal from the kernel and then executes the command. It is a new interpreter, because code
between fork and exec is unsafe in a process with threads; it runs isolated, with the standard library only.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def start(
    command: list[str],
    *,
    env: Mapping[str, str] | None = None,
    keep_open: Iterable[int] = (),
    output: int | IO[bytes] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` (its first word is an absolute path) in a new session, without standard input.

    `output` receives standard output and error; with None, the child inherits ours.
    Call it on the main thread: the kernel sends the signal when the thread that started the child ends.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        cwd=cwd,
        env=None if env is None else dict(env),
        start_new_session=True,
        pass_fds=list(keep_open),
    )


def end_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when `parent` (a process id) dies; exit if it has died already."""
    if sys.platform == "linux":  # on other systems, children survive a killed parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def _execute(parent: int, command: list[str]) -> None:
    """Replace this launcher with the command, which gets SIGTERM when `parent` (a process id) dies."""
    end_with(parent)
    os.execv(command[0], command)  # noqa: S606 - deliberately without a shell


if __name__ == "__main__":
    _execute(int(sys.argv[1]), sys.argv[2:])
