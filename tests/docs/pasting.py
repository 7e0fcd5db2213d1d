"""What a reader has before them while they paste from a page: a folder, an installation, a shell, other terminals.

A page's blocks go into one bash, in order, as they stand, but for the ports: 8000 and 9000 to 9009 become free ones. Each
block is a file of the page's name in which the line numbers are the page's, so that bash's own words lead to the place.
Everything ends with the page, installations with the module. The folder's name has a space in it.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Self

from tests.docs.snippets import Page, Snippet, Use, difference
from tests.support.servers import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
CURL_STAND_IN: Final = ROOT / "tests" / "journeys" / "curl_stand_in.py"

#: What a checkout has and pages speak of.
CHECKOUT: Final = ("Makefile", "bin", "deploy", "docs", "examples", ".venv")
#: What of it is the installation's, whose commands look for it where they are typed.
INSTALLED: Final = (".env", "data")
#: A receiver on this machine may be delivered to, and pages may show refusals.
OPEN: Final = {
    "TARGET_ALLOW_HTTP": "true",
    "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8",
    "TARGET_ALLOWED_PORTS": "1-65535",
    "AUTH_FAILURES_PER_MINUTE": "10000",
}
PORTS: Final = ("8000", *(str(port) for port in range(9000, 9010)))

#: What failed, in bash's own way of telling a place.
TRAP: Final = """trap 'echo ".blocks/0.sh: line $LINENO: $BASH_COMMAND" >&2' ERR"""

START_WITHIN_S: Final = 40
STOP_WITHIN_S: Final = 30
#: One block, however it waits for a delivery.
BLOCK_WITHIN_S: Final = 60
#: A compiler may have to run first.
LISTEN_WITHIN_S: Final = 40


@dataclass(frozen=True, slots=True)
class Installation:
    """A running installation: its folder, where it listens, and what its commands go by."""

    folder: Path
    port: int
    environment: Mapping[str, str]


class Installations:
    """The installations that the pages of a module share: one for each set of settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, Installation] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, settings: Mapping[str, str]) -> Installation:
        """Return the installation that has these settings, started with the first page that wants it."""
        key = " ".join(sorted(f"{name}={value}" for name, value in settings.items()))
        if key not in self._running:
            folder = self._folder / f"installation {len(self._running)}"
            self._running[key] = self._stack.enter_context(_installed(folder, settings))
        return self._running[key]


@contextmanager
def _installed(folder: Path, settings: Mapping[str, str]) -> Iterator[Installation]:
    folder.mkdir()
    link_all(ROOT, folder, CHECKOUT)
    port = free_port()
    environment = {**_of_reader(folder), **OPEN, "BIND": f"127.0.0.1:{port}", **settings}
    log = folder / "run.log"
    with started("bin/riskrelay init && exec bin/riskrelay run", folder, environment, log) as process:
        _wait_for(lambda: "is ready at" in log.read_text(), process, log, START_WITHIN_S)
        yield Installation(folder, port, environment)


def link_all(source: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Put into a folder what it shares with another."""
    for name in names:
        (folder / name).symlink_to(source / name)


def _of_reader(folder: Path) -> dict[str, str]:
    """Return the environment of somebody who has HTTPie and curl, and no settings of an installation."""
    commands = folder / "commands"
    commands.mkdir()
    for name in ("http", "https"):
        (commands / name).symlink_to(ROOT / ".venv" / "bin" / name)
    if shutil.which("curl") is None:
        stand_in = commands / "curl"
        stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CURL_STAND_IN}" "$@"\n')
        stand_in.chmod(0o755)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    # Whoever runs Go has compiled its library before: to do so anew takes longer than everything else together.
    kept["GOCACHE"] = os.environ.get("GOCACHE", str(Path.home() / ".cache" / "go-build"))
    return {**kept, "PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(folder)}


@contextmanager
def started(script: str, folder: Path, environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script beside the test, and stop it as Ctrl-C in its terminal would."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a script as Ctrl-C would, and whatever of it does not listen to that."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_WITHIN_S)


class Wrong(Exception):
    """A block does not do what its page says; the message begins with its place."""


class Reader:
    """Somebody who pastes a page into a shell, block by block."""

    def __init__(self, page: Page, installation: Installation, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self._stack = ExitStack()
        self._environment = {**installation.environment, "HOME": str(folder)}
        self._ports = {"8000": str(installation.port), **{port: str(free_port()) for port in PORTS[1:]}}
        self._printed = _Nothing()
        folder.mkdir(parents=True)
        self._notes = folder / ".blocks"
        self._notes.mkdir()
        link_all(ROOT, folder, CHECKOUT)
        link_all(installation.folder, folder, INSTALLED)

    def __enter__(self) -> Self:
        self._shell = subprocess.Popen(
            ["bash", "-E", "-eu", "-o", "pipefail"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._say(TRAP)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe is not None:
                pipe.close()
        _stop(self._shell)

    def paste_all(self) -> None:
        """Paste every block of the page that is for it. Raises Wrong."""
        for snippet in self.page.snippets:
            self.paste(snippet)

    def paste(self, snippet: Snippet) -> None:
        """Do with a block what it is for. Raises Wrong."""
        match snippet.use:
            case Use.FILE:
                self._write(snippet)
            case Use.PRINTS:
                self._compare(snippet)
            case Use.BACKGROUND:
                self._start(snippet)
            case Use.RUN if snippet.language == "sh":
                self._type(snippet)
            case _:
                pass

    def with_ports(self, text: str) -> str:
        """Return a text with free ports in place of the page's."""
        return re.sub(rf"(?<![\w.-])({'|'.join(PORTS)})(?![\w.-])", lambda found: self._ports[found[1]], text)

    def _write(self, snippet: Snippet) -> None:
        path = self.folder / snippet.said
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise Wrong(f"{snippet.place}: {snippet.said} would be written into the checkout")
        path.write_text(self.with_ports(snippet.text))

    def _type(self, snippet: Snippet) -> None:
        block, out, err = (self._notes / f"{snippet.line}.{kind}" for kind in ("sh", "out", "err"))
        block.write_text(self.with_ports(snippet.in_place))
        self._printed = _Printed(out)
        self._say(f". .blocks/{block.name} </dev/null >.blocks/{out.name} 2>.blocks/{err.name}; echo")
        stdout = _pipe(self._shell.stdout)
        ready, _, _ = select.select([stdout], [], [], BLOCK_WITHIN_S)
        if not ready or not stdout.readline():
            raise Wrong(f"{snippet.place}: {self._told_of_failure(bool(ready), out, err)}")

    def _say(self, line: str) -> None:
        stdin = _pipe(self._shell.stdin)
        stdin.write(f"{line}\n".encode())
        stdin.flush()

    def _told_of_failure(self, is_ended: bool, out: Path, err: Path) -> str:
        ended = f"exit code {self._shell.wait(STOP_WITHIN_S)}" if is_ended else f"no end after {BLOCK_WITHIN_S} s"
        words = err.read_text(errors="replace") if err.exists() else ""
        # What bash says of the n-th line of the block is said of that line of the page.
        words = re.sub(r"\.blocks/\d+\.sh: line (\d+)", rf"{self.page.name}:\1", words)
        return f"{ended}\n{words}\n{out.read_text(errors='replace') if out.exists() else ''}"

    def _start(self, snippet: Snippet) -> None:
        log = self._notes / f"{snippet.line}.log"
        before = self._listening()
        script = f"set -eu\n{self.with_ports(snippet.text)}"
        process = self._stack.enter_context(started(script, self.folder, self._environment, log))
        self._printed = _Printed(log, goes_on=True)
        try:
            _wait_for(lambda: self._listening() != before, process, log, LISTEN_WITHIN_S)
        except AssertionError as failed:
            raise Wrong(f"{snippet.place}: no port of {PORTS[1]} to {PORTS[-1]} is listened at: {failed}") from None

    def _listening(self) -> set[int]:
        """Return those of the page's ports that somebody listens at, without knocking."""
        tables = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
        found = {int(port, 16) for port in re.findall(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A ", tables, re.MULTILINE)}
        return found & {int(port) for port in self._ports.values()}

    def _compare(self, snippet: Snippet) -> None:
        told = self._printed.differs_from(replace(snippet, text=self.with_ports(snippet.text)))
        if told is not None:
            raise Wrong(f"{snippet.place}: {told}")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("a shell without pipes")
    return pipe


class _Nothing:
    """What is printed before anything was typed."""

    def differs_from(self, shown: Snippet) -> str | None:
        return difference(shown, "")


class _Printed(_Nothing):
    """What a block printed, or goes on printing."""

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        self._path = path
        self._until = time.monotonic() + (LISTEN_WITHIN_S if goes_on else 0)

    def differs_from(self, shown: Snippet) -> str | None:
        told = difference(shown, self._path.read_text(errors="replace"))
        while told is not None and time.monotonic() < self._until:
            time.sleep(0.05)
            told = difference(shown, self._path.read_text(errors="replace"))
        return told


def _wait_for(is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, within_s: float) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, f"not within {within_s} s: {log.read_text()}"
        time.sleep(0.05)
