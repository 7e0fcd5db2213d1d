"""A shell for the tests of commands: it types them into an installation of the test's own and reads what they say."""

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
    """Types commands into an installation of its own, which has no Redis."""

    #: What stands in front of all that is typed.
    verb: tuple[str, ...] = ()

    def __init__(self, folder: Path, url: str, **settings: str) -> None:
        self.url = url
        given = {"REDIS_URL": f"unix://{folder}/no-redis.sock", **settings}
        self.environment: dict[str, str | None] = dict(environment(folder, DATABASE_URL=url, **given))

    def run(self, *words: str, standard_input: str | bytes | None = None) -> Result:
        """Type a command."""
        return CliRunner().invoke(riskrelay, [*self.verb, *words], env=self.environment, input=standard_input)

    def json(self, *words: str, standard_input: str | bytes | None = None, exit_code: int = 0) -> Any:
        """Type a command and return its one JSON document."""
        result = self.run(*words, "--json", standard_input=standard_input)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)

    def refused(self, *words: str, standard_input: str | bytes | None = None) -> str:
        """Type a command that is refused in one line; return the line."""
        result = self.run(*words, standard_input=standard_input)
        assert (result.exit_code, result.stdout) == (1, ""), result.output
        assert len(result.stderr.splitlines()) == 1
        return result.stderr

    def for_processes(self) -> dict[str, str]:
        """Return the environment for a command in a process of its own."""
        return {name: value for name, value in self.environment.items() if value is not None}

    @contextmanager
    def database(self) -> Iterator[None]:
        """Open its database for a while."""
        open_database(self.url)
        with connection():
            yield
        close_database()


class RemoteShell(Shell):
    """Types commands on a host without an installation, which has a token for the one at `url`."""

    def __init__(self, folder: Path, url: str, token: str, **variables: str) -> None:
        super().__init__(folder, f"sqlite:///{folder}/absent/riskrelay.db", RISKRELAY_TOKEN=token, **variables)
        self.verb = ("--url", url)
