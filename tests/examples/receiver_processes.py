"""The example receivers as programs: how each language is built and started, and one that runs."""

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

from tests.support.workers import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "examples" / "receivers"
VECTORS: Final = ROOT / "examples" / "vectors.json"

#: Whoever has compiled nothing in Go yet compiles its standard library first.
BUILD_WITHIN_S: Final = 280
#: A machine that does much else gets its time; alone, the slowest needs half a second.
RUN_WITHIN_S: Final = 60

Words = list[str]


@dataclass(frozen=True, slots=True)
class Language:
    """One receiver: the command that has to be there, how to build it into a folder, and how to start what was built."""

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
    # What Go compiled before is kept where it always is; without a home that is nowhere, and this folder has to do.
    cached = {} if "HOME" in os.environ else {"GOCACHE": str(folder / "cache")}
    _compile(["go", "build", "-o", str(program), str(FOLDER / "receiver.go")], GOTOOLCHAIN="local", **cached)
    return [str(program)]


def _java(folder: Path) -> Words:
    # Once for all its starts: `java Receiver.java` compiles it anew each time.
    _compile(["javac", "-Xlint:all", "-Werror", "-d", str(folder), str(FOLDER / "Receiver.java")])
    return ["java", "-cp", str(folder), "Receiver"]


def _behind_php(program: Words) -> Words:
    """PHP's own web server takes its address as an option; the script is run for every request."""
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
    """Run one to its end, with nothing of the caller's settings."""
    environment = {**_environment(), **changes}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=RUN_WITHIN_S, check=False)


def _environment() -> dict[str, str]:
    # Java reads its environment by the locale; the other languages take the bytes.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8"}


def _compile(words: Words, **changes: str) -> None:
    environment = {**_environment(), **changes}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=BUILD_WITHIN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Programs:
    """Builds each receiver once, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.of = cache(self._build)

    def _build(self, language: Language) -> Words:
        folder = self._folder / language.name
        folder.mkdir()
        return language.build(folder)


class ReceiverProcess:
    """A receiver that runs, on a free port; whoever starts it ends it."""

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
        """Where it listens."""
        found = re.search(r"http://127\.0\.0\.1:([0-9]+)", self.log.read_text())
        return int(found[1]) if found else 0

    @property
    def url(self) -> str:
        """The address to deliver to."""
        return f"http://127.0.0.1:{self.port}/hook"

    def wait_until_it_listens(self) -> None:
        """Return when it does."""
        wait_until(lambda: self.port or self.process.poll() is not None, RUN_WITHIN_S)
        assert self.process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        """End it; harmless when it has ended."""
        self.process.kill()
        self.process.wait()
