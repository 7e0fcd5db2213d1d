"""Runs commands in the test's own installation, and reads their output."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from bin.__main__ import riskrelay
from storage.db.engine import close_database, connection, open_database
from tests.support.factories import environment


class Shell:
    """Runs commands in its own installation, which has no Redis."""

    #: Words that precede the words of every command.
    verb: tuple[str, ...] = ()

    def __init__(self, folder: Path, url: str, **settings: str) -> None:
        self.url = url
        given = {"REDIS_URL": f"unix://{folder}/no-redis.sock", **settings}
        self.environment: dict[str, str | None] = dict(environment(folder, DATABASE_URL=url, **given))

    def run(self, *words: str, standard_input: str | bytes | None = None) -> Result:
        """Run a command in this process."""
        return CliRunner().invoke(riskrelay, [*self.verb, *words], env=self.environment, input=standard_input)

    def json(self, *words: str, standard_input: str | bytes | None = None, exit_code: int = 0) -> Any:
        """Run a command and return the JSON document that it prints."""
        result = self.run(*words, "--json", standard_input=standard_input)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)

    def refused(self, *words: str, standard_input: str | bytes | None = None) -> str:
        """Run a command that must fail with a one-line error message; return the message."""
        result = self.run(*words, standard_input=standard_input)
        assert (result.exit_code, result.stdout) == (1, ""), result.output
        assert len(result.stderr.splitlines()) == 1
        return result.stderr

    def for_processes(self) -> dict[str, str]:
        """Return the environment for a command in a separate process."""
        return {name: value for name, value in self.environment.items() if value is not None}

    @contextmanager
    def database(self) -> Iterator[None]:
        """Open the installation's database during the block."""
        open_database(self.url)
        with connection():
            yield
        close_database()


class RemoteShell(Shell):
    """Runs commands on a host without an installation, with a token for the installation at `url`."""

    def __init__(self, folder: Path, url: str, token: str, **variables: str) -> None:
        super().__init__(folder, f"sqlite:///{folder}/absent/riskrelay.db", RISKRELAY_TOKEN=token, **variables)
        self.verb = ("--url", url)
