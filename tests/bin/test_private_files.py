"""Files that commands write are accessible to their owner only, for every umask and with hostile files in their place."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.factories import environment
from tests.support.processes.shell import Shell
from tests.support.processes.workers import RISKRELAY

SECRET: Final = "typed-by-hand-and-not-shown-4711"
#: A longer run is a command that waits forever, not a slow machine.
WITHIN_S: Final = 120


def run(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the umask 000."""
    return subprocess.run(
        [RISKRELAY, *words],
        cwd=folder,
        env=without_secrets(folder, **settings),
        umask=0,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )


def without_secrets(folder: Path, **settings: str) -> Mapping[str, str]:
    made = environment(folder / "data", **settings)
    return {name: value for name, value in made.items() if not name.endswith(("SECRET", "KEYS"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation with a backup, created with the umask 000."""
    made_in = tmp_path_factory.mktemp("installation")
    made = run(made_in, "init")
    assert made.returncode == 0, made.stderr
    taken = run(made_in, "backup", "backups/")
    assert taken.returncode == 0, taken.stderr
    return made_in


def test_files_are_private_even_with_a_permissive_umask(folder: Path) -> None:
    for words in (("migrate",), ("prune",)):
        assert run(folder, *words).returncode == 0
    found = {each: each.lstat().st_mode & 0o777 for each in folder.rglob("*") if not each.is_symlink()}
    names = {each.name for each in found}
    assert {".env", "first-token", "riskrelay.db", "data", "backups"} <= names
    # Files in a private folder must be private too, because the folder can be copied.
    assert {str(each): oct(mode) for each, mode in found.items() if mode & 0o077} == {}


def test_private_files_are_not_written_through_symbolic_links(tmp_path: Path) -> None:
    """In a folder that others can write to, a symbolic link with the file's name would redirect the data."""
    elsewhere, data = tmp_path / "elsewhere", tmp_path / "data"
    elsewhere.write_text("theirs")
    data.mkdir()
    for name in ("first-token", "link.db", ".backup.db.part"):
        (data / name).symlink_to(elsewhere)
    assert run(tmp_path, "init").returncode == 0
    assert (data / "first-token").lstat().st_mode & 0o177777 == 0o100600
    refused = run(tmp_path, "backup", str(data / "link.db"), "--force")
    assert (refused.returncode, "it is a symbolic link" in refused.stderr) == (1, True)
    assert (data / "link.db").is_symlink()
    assert run(tmp_path, "backup", str(data / "backup.db")).returncode == 0
    assert (data / "backup.db").lstat().st_mode & 0o177777 == 0o100600
    assert elsewhere.read_text() == "theirs"


def test_no_command_accepts_a_secret_as_an_argument(tmp_path: Path) -> None:
    """Every user of the machine can read the command lines of all processes."""
    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/none.db")
    for verb in (("secret", "set", "scanner"), ("listen",), ("trigger",), ("restore", "a.db")):
        for words in ((SECRET,), ("--secret", SECRET), (f"--secret={SECRET}",)):
            reported = shell.run(*verb, *words)
            assert (reported.exit_code, SECRET in reported.stdout) == (2, False), (verb, words)


def test_a_typed_secret_is_not_echoed(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [RISKRELAY, "secret", "set", "scanner"],
        cwd=folder,
        env=without_secrets(folder),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        assert "Secret" in shown(ours, "Secret")
        os.write(ours, f"{SECRET}\n".encode())
        reported, _ = command.communicate(timeout=WITHIN_S)
        assert command.returncode == 0
        assert b"fp:" in reported
        assert SECRET not in shown(ours, SECRET, within_s=0.2) + reported.decode()
    finally:
        command.kill()
        command.wait()
        os.close(ours)
        os.close(theirs)


def shown(terminal: int, until: str, within_s: float = WITHIN_S) -> str:
    """Read a terminal's output until it contains a text or the time is over."""
    text, gives_up_at = "", time.monotonic() + within_s
    while until not in text and (left_s := gives_up_at - time.monotonic()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            text += os.read(terminal, 65_536).decode()
    return text
