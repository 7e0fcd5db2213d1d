"""A pseudo-terminal for a command: types its input and reads its output."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
#: A command starts within a second; a machine that runs all tests at once can be much slower.
WITHIN_S: Final = 30.0


class Terminal:
    """`riskrelay WORDS…` on a terminal, in a folder without an installation. `settings` are environment variables."""

    def __init__(self, folder: Path, *words: str, **settings: str) -> None:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        self._ours, theirs = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bin", *words],
            cwd=folder,
            env={
                **inherited,
                "LANG": "C.UTF-8",
                "PYTHONPATH": str(ROOT),
                "RISKRELAY_ENV_FILE": str(folder / ".env"),
                **settings,
            },
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._ours, text.encode())

    def read_until(self, words: str) -> str:
        """Read the output until it contains `words`; return all output so far."""
        deadline = time.monotonic() + WITHIN_S
        while words not in self.seen and time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # the command has ended
                    break
        if words not in self.seen:
            self.end()
            raise AssertionError(f"It did not say {words!r}:\n{self.seen}")
        return self.seen

    def end(self) -> int:
        """Wait for the end of the command, or kill it; return its exit code."""
        try:
            self.process.wait(WITHIN_S / 3)
        except subprocess.TimeoutExpired:
            self.process.kill()
        os.close(self._ours)
        return self.process.wait()
