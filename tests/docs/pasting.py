"""Runs the blocks of a documentation page as a reader would paste them into a shell.

All blocks of a page run unchanged and in order in one bash, except that free ports replace 8000 and 9000 to 9009. Each block
is sourced from a file with the page's line numbers, so that errors of bash name the page and line. The processes of a page
stop with the page, installations with the test module. The folder's name contains a space.
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

from tests.docs.snippets import MarkdownPage, Snippet, Use, difference
from tests.support.servers.redis_and_postgres import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
CURL_STAND_IN: Final = ROOT / "tests" / "journeys" / "setup" / "curl_stand_in.py"

#: Files of the checkout that pages use.
CHECKOUT: Final = ("Makefile", "bin", "deploy", "docs", "examples", ".venv")
#: Files of the installation, which its commands read from the current folder.
INSTALLED: Final = (".env", "data")
#: Allows deliveries to this machine, and the failed authentications of the pages.
TEST_SETTINGS: Final = {
    "TARGET_ALLOW_HTTP": "true",
    "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8",
    "TARGET_ALLOWED_PORTS": "1-65535",
    "AUTH_FAILURES_PER_MINUTE": "10000",
}
PORTS: Final = ("8000", *(str(port) for port in range(9000, 9010)))

#: Reports a failed command in bash's format for errors.
TRAP: Final = """trap 'echo ".blocks/0.sh: line $LINENO: $BASH_COMMAND" >&2' ERR"""

START_WITHIN_S: Final = 40
STOP_WITHIN_S: Final = 30
#: For one block, including its deliveries.
BLOCK_WITHIN_S: Final = 60
#: Includes the time of a compiler.
LISTEN_WITHIN_S: Final = 40


@dataclass(frozen=True, slots=True)
class RunningInstallation:
    """A running installation: its folder, port, and the environment of its commands."""

    folder: Path
    port: int
    environment: Mapping[str, str]


class Installations:
    """The installations that pages share, one per set of settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, RunningInstallation] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, settings: Mapping[str, str]) -> RunningInstallation:
        """Return the installation with these settings; start it if it does not run yet."""
        key = " ".join(sorted(f"{name}={value}" for name, value in settings.items()))
        if key not in self._running:
            folder = self._folder / f"installation {len(self._running)}"
            self._running[key] = self._stack.enter_context(_installed(folder, settings))
        return self._running[key]


@contextmanager
def _installed(folder: Path, settings: Mapping[str, str]) -> Iterator[RunningInstallation]:
    folder.mkdir()
    link_all(ROOT, folder, CHECKOUT)
    port = free_port()
    environment = {**_reader_environment(folder), **TEST_SETTINGS, "BIND": f"127.0.0.1:{port}", **settings}
    log = folder / "run.log"
    with started("bin/riskrelay init && exec bin/riskrelay run", folder, environment, log) as process:
        _wait_for(lambda: "is ready at" in log.read_text(), process, log, START_WITHIN_S)
        yield RunningInstallation(folder, port, environment)


def link_all(source: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Link files of another folder into a folder."""
    for name in names:
        (folder / name).symlink_to(source / name)


def _reader_environment(folder: Path) -> dict[str, str]:
    """Return an environment with HTTPie and curl, and without settings of an installation."""
    commands = folder / "commands"
    commands.mkdir()
    for name in ("http", "https"):
        (commands / name).symlink_to(ROOT / ".venv" / "bin" / name)
    if shutil.which("curl") is None:
        stand_in = commands / "curl"
        stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CURL_STAND_IN}" "$@"\n')
        stand_in.chmod(0o755)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    # Compiling Go's standard library again would take longer than everything else.
    kept["GOCACHE"] = os.environ.get("GOCACHE", str(Path.home() / ".cache" / "go-build"))
    return {
        **kept,
        "RISKRELAY_ENV_FILE": str(folder / ".env"),
        "PATH": f"{commands}:{os.environ['PATH']}",
        "HOME": str(folder),
    }


@contextmanager
def started(script: str, folder: Path, environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script in the background; at the end, interrupt it as Ctrl-C does."""
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
    """Interrupt a script as Ctrl-C does, then kill processes that still run."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_WITHIN_S)


class PageError(Exception):
    """A block does not behave as its page says; the message starts with page and line."""


class PageRunner:
    """Pastes a page into a shell, block by block."""

    def __init__(self, page: MarkdownPage, installation: RunningInstallation, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self._stack = ExitStack()
        self._environment = {**installation.environment, "HOME": str(folder)}
        self._ports = {"8000": str(installation.port), **{port: str(free_port()) for port in PORTS[1:]}}
        self._output = _NoOutput()
        folder.mkdir(parents=True)
        self._blocks = folder / ".blocks"
        self._blocks.mkdir()
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
        self._send_line(TRAP)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe is not None:
                pipe.close()
        _stop(self._shell)

    def paste_all(self) -> None:
        """Paste every block of the page. Raises PageError."""
        for snippet in self.page.snippets:
            self.paste(snippet)

    def paste(self, snippet: Snippet) -> None:
        """Write, start, run or compare a block, depending on its use. Raises PageError."""
        match snippet.use:
            case Use.FILE:
                self._write(snippet)
            case Use.PRINTS:
                self._compare(snippet)
            case Use.BACKGROUND:
                self._start(snippet)
            case Use.RUN if snippet.language == "sh":
                self._run(snippet)
            case _:
                pass

    def with_ports(self, text: str) -> str:
        """Return the text with free ports instead of the page's."""
        return re.sub(rf"(?<![\w.-])({'|'.join(PORTS)})(?![\w.-])", lambda found: self._ports[found[1]], text)

    def _write(self, snippet: Snippet) -> None:
        path = self.folder / snippet.argument
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise PageError(f"{snippet.place}: {snippet.argument} would be written into the checkout")
        path.write_text(self.with_ports(snippet.text))

    def _run(self, snippet: Snippet) -> None:
        block, out, err = (self._blocks / f"{snippet.line}.{kind}" for kind in ("sh", "out", "err"))
        block.write_text(self.with_ports(snippet.padded_text))
        self._output = _Output(out)
        self._send_line(f". .blocks/{block.name} </dev/null >.blocks/{out.name} 2>.blocks/{err.name}; echo")
        stdout = _pipe(self._shell.stdout)
        ready, _, _ = select.select([stdout], [], [], BLOCK_WITHIN_S)
        if not ready or not stdout.readline():
            raise PageError(f"{snippet.place}: {self._failure(bool(ready), out, err)}")

    def _send_line(self, line: str) -> None:
        stdin = _pipe(self._shell.stdin)
        stdin.write(f"{line}\n".encode())
        stdin.flush()

    def _failure(self, is_ended: bool, out: Path, err: Path) -> str:
        ended = f"exit code {self._shell.wait(STOP_WITHIN_S)}" if is_ended else f"not finished after {BLOCK_WITHIN_S} s"
        words = err.read_text(errors="replace") if err.exists() else ""
        # The line numbers of the block are those of the page.
        words = re.sub(r"\.blocks/\d+\.sh: line (\d+)", rf"{self.page.name}:\1", words)
        return f"{ended}\n{words}\n{out.read_text(errors='replace') if out.exists() else ''}"

    def _start(self, snippet: Snippet) -> None:
        log = self._blocks / f"{snippet.line}.log"
        before = self._listening()
        script = f"set -eu\n{self.with_ports(snippet.text)}"
        process = self._stack.enter_context(started(script, self.folder, self._environment, log))
        self._output = _Output(log, is_running=True)
        try:
            _wait_for(lambda: self._listening() != before, process, log, LISTEN_WITHIN_S)
        except AssertionError as failed:
            raise PageError(f"{snippet.place}: no listener on ports {PORTS[1]} to {PORTS[-1]}: {failed}") from None

    def _listening(self) -> set[int]:
        """Return those of the page's ports with a listener, without connecting to them."""
        tables = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
        found = {int(port, 16) for port in re.findall(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A ", tables, re.MULTILINE)}
        return found & {int(port) for port in self._ports.values()}

    def _compare(self, snippet: Snippet) -> None:
        found = self._output.difference_from(replace(snippet, text=self.with_ports(snippet.text)))
        if found is not None:
            raise PageError(f"{snippet.place}: {found}")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("the shell has no pipes")
    return pipe


class _NoOutput:
    """Empty output, before any block ran."""

    def difference_from(self, shown: Snippet) -> str | None:
        return difference(shown, "")


class _Output(_NoOutput):
    """The output of a block, finished or still running."""

    def __init__(self, path: Path, *, is_running: bool = False) -> None:
        self._path = path
        self._until = time.monotonic() + (LISTEN_WITHIN_S if is_running else 0)

    def difference_from(self, shown: Snippet) -> str | None:
        found = difference(shown, self._path.read_text(errors="replace"))
        while found is not None and time.monotonic() < self._until:
            time.sleep(0.05)
            found = difference(shown, self._path.read_text(errors="replace"))
        return found


def _wait_for(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, within_s: float) -> None:
    until = time.monotonic() + within_s
    while not is_ready():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, f"not within {within_s} s: {log.read_text()}"
        time.sleep(0.05)
