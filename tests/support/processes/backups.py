"""Runs commands in an installation, and reads its complete database, for tests of backup and restore."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from bin.__main__ import riskrelay
from runtime.clock import utc_now
from storage.db.engine import close_database, connection, open_database, rows
from storage.db.models import ALL
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault
from tests.support.factories import LOOPBACK, environment
from tests.support.http.storefront import CLOUD
from tests.support.processes.workers import RISKRELAY
from tests.support.servers.redis_and_postgres import free_port

VAULT: Final = Vault([b"A" * 32])
#: An encryption key of another installation.
FOREIGN_KEY: Final = "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI="

Contents = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and the output of a command."""

    exit_code: int
    stdout: str
    stderr: str


def refusal(reported: CommandResult) -> str:
    """Return the one-line error message of a command that failed."""
    assert reported.exit_code == 1, reported.stdout + reported.stderr
    assert len(reported.stderr.splitlines()) == 1, reported.stderr
    assert reported.stderr.startswith("riskrelay: ")
    return reported.stderr


class CommandRunner:
    """Runs commands in an installation in `folder` on the database at `url`."""

    def __init__(self, folder: Path, url: str, **changes: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.url = url
        settings = {"DATABASE_URL": url, "BIND": f"127.0.0.1:{free_port()}", **CLOUD, **LOOPBACK, **changes}
        self.environment = environment(folder / "data", **settings)

    def run(self, *words: str | Path, **changes: str) -> CommandResult:
        """Run a command in this process. It closes the database that this process has open."""
        done = CliRunner().invoke(riskrelay, [*map(str, words)], env={**self.environment, **changes})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        return CommandResult(done.exit_code, done.stdout, done.stderr)

    def run_in_subprocess(self, *words: str | Path, **changes: str) -> CommandResult:
        """Run a command as a separate process."""
        command, env = [RISKRELAY, *map(str, words)], self.environment | changes
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=100)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def json(self, *words: str | Path) -> Any:
        """Run a command that must succeed, and return the JSON document that it prints."""
        done = self.run(*words, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, *words: str | Path, **changes: str) -> str:
        """Run a command that must fail, and return its one-line error message."""
        return refusal(self.run(*words, **changes))

    def backed_up(self, name: str = "taken.backup") -> Path:
        """Run `backup` and return the path of its file."""
        path = self.folder / name
        done = self.run("backup", path)
        assert done.exit_code == 0, done.stderr
        return path

    @contextmanager
    def database(self) -> Iterator[None]:
        """Open the installation's database in this process during the block."""
        with opened(self.url):
            yield

    def contents(self) -> Contents:
        """Return every row of every table."""
        with self.database():
            return contents()


@contextmanager
def opened(url: str) -> Iterator[None]:
    """Open a database in this process during the block."""
    open_database(url)
    try:
        with connection():
            yield
    finally:
        close_database()


def contents() -> Contents:
    """Return every row of every table of the open database."""
    names = [str(model._meta.table_name) for model in ALL]
    found = {name: rows(f"SELECT * FROM {name}") for name in names}  # noqa: S608 - our own names
    return {name: sorted(map(_comparable, lines), key=repr) for name, lines in found.items()}


def store_key_check() -> None:
    """Store the key check in the open database, as the first start does."""
    check_keys(VAULT, utc_now())


def _comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
