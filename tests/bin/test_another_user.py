"""A command that is run by a user other than the installation's owner reports this in one line, without a traceback."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.factories import environment
from tests.support.processes.workers import RISKRELAY

WITHIN_S: Final = 60.0
#: Root can enter every folder, unless these capabilities are dropped.
PREFIX: Final = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all") if os.geteuid() == 0 else ()


FIX: Final = "run this as the owner of the installation, or of that file"


def run(words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PREFIX, RISKRELAY, *words.split()], env=settings, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )


def without_env_file(data_dir: Path, **settings: str) -> dict[str, str]:
    return {**environment(data_dir, **settings), "RISKRELAY_ENV_FILE": str(data_dir.parent / ".env")}


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that the user who runs the commands cannot enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    yield folder
    folder.chmod(0o700)


@pytest.mark.parametrize("words", ["account list", "export list --json", "sweep", "backup x.db", "run", "audit verify"])
def test_an_inaccessible_data_folder_is_named(closed: Path, words: str) -> None:
    done = run(words, **without_env_file(closed))
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("riskrelay: ")
    assert str(closed) in line


def test_doctor_reports_files_that_this_user_may_not_access(closed: Path) -> None:
    done = run("doctor", **without_env_file(closed))
    assert (done.returncode, done.stderr) == (1, "")
    assert f"failure  backups     This user may not access {closed / 'backups'}. Fix: run this as the owner" in done.stdout
    assert "failure  database    The database is unavailable, locked or full: Permission denied." in done.stdout
    done = run("doctor", **{**without_env_file(closed), "RISKRELAY_ENV_FILE": str(closed / ".env")})
    assert (done.returncode, done.stderr) == (2, "")
    assert f"failure  env file    This user may not access {closed / '.env'}." in done.stdout


def test_an_inaccessible_env_file_is_named(closed: Path, tmp_path: Path) -> None:
    done = run("init", **{**without_env_file(tmp_path / "data"), "RISKRELAY_ENV_FILE": str(closed / ".env")})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"riskrelay: {closed / '.env'}: Permission denied; {FIX}.\n"


def test_an_unusable_python_is_not_reported_as_a_missing_setup(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "riskrelay").write_bytes(Path(RISKRELAY).read_bytes())
    start = ["/bin/sh", str(tmp_path / "bin" / "riskrelay"), "doctor"]
    missing = subprocess.run(start, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert (missing.returncode, missing.stderr) == (1, "not set up yet; run: make setup\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(tmp_path / "removed" / "python3")
    removed = subprocess.run(start, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert removed.returncode == 1
    assert "a Python that is missing or that this user may not run" in removed.stderr
