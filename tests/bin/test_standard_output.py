"""A standard output that cannot encode a character, is closed or is full: no traceback, and no success without output."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bin.cli.output import Refused, echo, echo_styled, write_file
from storage.db.engine import close_database, connection, open_database
from tests.support.factories import environment, make_customer
from tests.support.processes.shell import Shell
from tests.support.processes.workers import RISKRELAY

OUTPUTS = ("audit export", "compliance export", "report --project 1 --format csv", "export list", "account list --json")


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str) -> Iterator[Shell]:
    open_database(sqlite_url)
    with connection():
        make_customer()
    close_database()
    yield Shell(tmp_path, sqlite_url)
    close_database()


def run(shell: Shell, redirection: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a separate process, with a redirection of the shell."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {redirection}', RISKRELAY, *words],
        env={**shell.for_processes(), **variables},
        capture_output=True,
        encoding="latin-1",
        check=False,
        timeout=100,
    )


def test_characters_missing_from_the_encoding_are_escaped(shell: Shell) -> None:
    assert shell.json("account", "add", "Ω ä")
    shown = run(shell, "", "account", "list", PYTHONIOENCODING="latin-1")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\\u03a9 ä" in shown.stdout


@pytest.mark.parametrize("encoding", ["latin-1", "koi8-r", "ascii", "utf-8", "UTF8"])
def test_json_output_is_valid_in_every_encoding(shell: Shell, encoding: str) -> None:
    name = "Zoë 😀 Я"
    for words in (("add", name, "--json"), ("list", "--json")):
        printed = run(shell, "", "account", *words, PYTHONIOENCODING=encoding).stdout.encode("latin-1")
        assert printed.isascii() == (not encoding.lower().startswith("utf"))
        assert name in str(json.loads(printed))


def run_unread(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose output pipe is closed at the reading end."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as pipe:
        return subprocess.run([RISKRELAY, *words], env=env, stdout=pipe, stderr=subprocess.PIPE, check=False, timeout=100)


@pytest.mark.parametrize("words", OUTPUTS)
def test_a_command_ends_without_a_message_if_its_output_pipe_is_closed(shell: Shell, words: str) -> None:
    """`head` and similar programs expect this."""
    ended = run_unread(shell.for_processes(), *words.split())
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("env_text", [None, "WEB_PROCESSES=1\n"])
def test_init_keeps_the_first_token_and_project_if_its_output_pipe_is_closed(env_text: str | None, tmp_path: Path) -> None:
    env_file, made = tmp_path / ".env", environment(tmp_path / "data")
    if env_text is not None:
        env_file.write_text(env_text)
        env_file.chmod(0o600)
    ended = run_unread(made, "init")
    assert (ended.returncode, ended.stderr) == (1, b"")
    assert (tmp_path / "data" / "first-token").read_text().startswith("rrt_")
    assert "DEFAULT_PROJECT_ID=1\n" in env_file.read_text()


class FullDisk:
    """An output file on a full disk."""

    encoding, errors = "utf-8", "strict"

    @property
    def buffer(self) -> "FullDisk":
        return self

    def isatty(self) -> bool:
        return False

    def write(self, text: str | bytes) -> int:
        return len(text)

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_write_ends_the_command_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for write in (echo, echo_styled, write_file):
        monkeypatch.setattr(sys, "stdout", FullDisk())
        with pytest.raises(Refused, match="Standard output cannot be written: No space left on device"):
            write("text")
        # Otherwise, Python would flush it again at its exit, and print a second message.
        assert sys.stdout is None
