"""Builds and starts the example receivers of each language."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.processes.workers import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "examples" / "receivers"
VECTORS: Final = ROOT / "examples" / "vectors.json"

#: The first Go build compiles the standard library.
BUILD_WITHIN_S: Final = 280
#: Generous for a busy machine; on an idle one the slowest needs half a second.
RUN_WITHIN_S: Final = 60

Words = list[str]


@dataclass(frozen=True, slots=True)
class Language:
    """The receiver of one language: its required command, how to build it into a folder, and how to start it."""

    name: str
    command: str
    build: Callable[[Path], Words]
    serve: Callable[[Words], Words] = lambda program: program

    @property
    def is_here(self) -> bool:
        """Whether this machine can run it."""
        return shutil.which(self.command) is not None


def _script(interpreter: str, name: str) -> Callable[[Path], Words]:
    return lambda _: [interpreter, str(FOLDER / name)]


def _go(folder: Path) -> Words:
    program = folder / "receiver"
    # Go caches builds in the home folder; without HOME, use this folder.
    cached = {} if "HOME" in os.environ else {"GOCACHE": str(folder / "cache")}
    _compile(["go", "build", "-o", str(program), str(FOLDER / "receiver.go")], GOTOOLCHAIN="local", **cached)
    return [str(program)]


def _java(folder: Path) -> Words:
    # Compile once; `java Receiver.java` would compile at every start.
    _compile(["javac", "-Xlint:all", "-Werror", "-d", str(folder), str(FOLDER / "Receiver.java")])
    return ["java", "-cp", str(folder), "Receiver"]


def _behind_php(program: Words) -> Words:
    """Return the command of PHP's built-in web server, which runs the script for every request."""
    return [program[0], "-S", "127.0.0.1:0", *program[1:]]


LANGUAGES: Final = (
    Language("python", sys.executable, _script(sys.executable, "receiver.py")),
    Language("node", "node", _script("node", "receiver.mjs")),
    Language("php", "php", _script("php", "receiver.php"), _behind_php),
    Language("ruby", "ruby", lambda _: ["ruby", "-w", str(FOLDER / "receiver.rb")]),
    Language("java", "javac", _java),
    Language("go", "go", _go),
)


def run(words: Words, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without the caller's settings."""
    environment = {**_environment(), **changes}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=RUN_WITHIN_S, check=False)


def _environment() -> dict[str, str]:
    # Java decodes its environment by the locale; the other languages use the bytes.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8"}


def _compile(words: Words, **changes: str) -> None:
    environment = {**_environment(), **changes}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=BUILD_WITHIN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Programs:
    """Builds each receiver once, on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.of = cache(self._build)

    def _build(self, language: Language) -> Words:
        folder = self._folder / language.name
        folder.mkdir()
        return language.build(folder)


class ReceiverProcess:
    """A running receiver on a free port; the caller stops it with `kill`."""

    def __init__(self, language: Language, program: Words, folder: Path, secrets: tuple[str, ...], rate: int = 0) -> None:
        self.name = f"{language.name}-{rate}"
        self.log = folder / f"{self.name}.log"
        named = dict(zip(("WEBHOOK_SECRET", "WEBHOOK_SECRET_OLD"), secrets, strict=False))
        state = {"STATE_FILE": str(folder / f"{self.name}.json")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                language.serve(program),
                env={**_environment(), **named, **state, "PORT": "0", "RATE_PER_MINUTE": str(rate)},
                stdout=log,
                stderr=log,
                cwd=folder,
            )

    @property
    def port(self) -> int:
        """The port that it listens on, or 0."""
        found = re.search(r"http://127\.0\.0\.1:([0-9]+)", self.log.read_text())
        return int(found[1]) if found else 0

    @property
    def url(self) -> str:
        """The URL for deliveries."""
        return f"http://127.0.0.1:{self.port}/hook"

    def wait_until_listening(self) -> None:
        """Wait until the receiver listens."""
        wait_until(lambda: self.port or self.process.poll() is not None, RUN_WITHIN_S)
        assert self.process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        self.process.kill()
        self.process.wait()
