"""A real Redmine, with its own SQLite database in a temporary folder.

It has the projects `shop`, `wiki` (without issues), `closed` and `vault` (private), and the users of KEYS: `reporter` may
add issues to `shop`, `developer` is a member to whom issues can be assigned, `manager` is a member who may close and reopen
issues, `stranger` is a member of no project.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import requests

from tests.support.servers.redis_and_postgres import Server, ServerError, free_port
from tests.support.servers.runtimes import missing, runtime

#: Where bin/runtimes unpacks Debian's package.
PACKAGE: Final = Path("/usr/local/share/riskrelay-tests/redmine")
KEYS: Final = {"reporter": "a" * 40, "developer": "b" * 40, "stranger": "c" * 40, "manager": "d" * 40}
TextFormat = Literal["textile", "common_mark", "markdown"]


class RedmineServer(Server):
    """A Redmine on a loopback port. The first start creates its database, which takes about ten seconds."""

    stop_signal = signal.SIGTERM
    death_signal = signal.SIGKILL
    ready_errors = (requests.RequestException,)
    start_timeout_s = 60.0  # Rails loads its complete code first

    def __init__(self) -> None:
        runtime("puma")
        if not (PACKAGE / "Gemfile").exists():
            missing(PACKAGE)
        super().__init__((os.geteuid(), os.getegid()))
        self.port = free_port()

    @property
    def url(self) -> str:
        """The URL of its home page, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start Redmine, and return when it is ready. The first start creates its database."""
        if not self._app.exists():
            self._create()
        super().start()

    def set_text_format(self, text_format: TextFormat) -> None:
        """Set the markup language of all texts, from the next request on."""
        self._execute(
            "INSERT OR REPLACE INTO settings (id, name, value, updated_on) VALUES "
            "((SELECT id FROM settings WHERE name = 'text_formatting'), 'text_formatting', ?, ?)",
            text_format,
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"),
        )

    def issues(self, project: str = "shop") -> int:
        """Return the number of issues of a project."""
        of_project = "SELECT count(*) FROM issues JOIN projects ON projects.id = project_id WHERE identifier = ?"
        return int(self._execute(of_project, project)[0][0])

    def close_issue(self, issue_id: str) -> None:
        """Close an issue, as a user would."""
        self._execute(
            "UPDATE issues SET status_id = (SELECT max(id) FROM issue_statuses WHERE is_closed) WHERE id = ?", issue_id
        )

    @property
    def _app(self) -> Path:
        return self.folder / "redmine"

    @property
    def _database(self) -> Path:
        return self._app / "instances" / "default" / "redmine.db"

    def _execute(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._database, timeout=10)) as database, database:
            return database.execute(statement, values).fetchall()

    def _create(self) -> None:
        # These are links into Debian's installed instance.
        links = shutil.ignore_patterns("Gemfile.lock", "instances", "database.yml")
        shutil.copytree(PACKAGE, self._app, symlinks=True, ignore=links)
        instance = self._database.parent
        for name in ("config", "log", "files", "tmp", "public/plugin_assets"):
            (instance / name).mkdir(parents=True)
        database = f"production:\n  adapter: sqlite3\n  timeout: 10000\n  database: {self._database}\n"
        for folder in (self._app, instance):
            (folder / "config" / "database.yml").write_text(database)
        (instance / "config" / "secret_key.txt").write_text("0" * 64)
        (self._app / "Gemfile.local").write_text('gem "sqlite3"\ngem "puma"\n')
        words = ["bundle", "exec", "ruby", str(Path(__file__).with_name("redmine_setup.rb"))]
        words += [word for pair in KEYS.items() for word in pair]
        made = subprocess.run(words, cwd=self._app, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise ServerError(f"Redmine's database was not created:\n{made.stdout}{made.stderr}")

    def _ping(self) -> None:
        requests.get(f"{self.url}/issues.json?limit=1", timeout=30).raise_for_status()

    def _command(self) -> list[str]:
        puma = f"exec bundle exec puma --bind tcp://127.0.0.1:{self.port} --threads 1:4 --environment production config.ru"
        return ["/bin/sh", "-c", f"cd {self._app} && {puma}"]
