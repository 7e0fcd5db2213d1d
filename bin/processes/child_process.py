"""Start a child that ends with us: it gets SIGTERM when its parent dies, of whatever cause, and never the terminal's Ctrl-C.

A small launcher asks the kernel for that signal and then becomes the command. It is a fresh interpreter, not code between
fork and exec, because that is unsafe in a process with threads; standard library only, since it runs isolated.
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
    """Start `command` (its first word an absolute path) in a session of its own, without standard input.

    `output` takes both what it prints and its errors; None leaves them where ours go.
    Call it on the main thread: the kernel takes the end of the thread that started the child for the end of its parent.
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


def _become(parent: int, command: list[str]) -> None:
    """Turn this launcher into the command, which gets SIGTERM when `parent` (a process id) dies."""
    if sys.platform == "linux":  # elsewhere a killed parent leaves its children behind
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - without a shell is how it should be


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
