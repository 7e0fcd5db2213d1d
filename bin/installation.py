"""What most commands stand on: checked settings and the migrated database of this installation.

Refuses to go on with wrong settings, a database that is away, or one that is not migrated: one clear line and its remedy.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from schemas.settings import InvalidSettings, Settings, load_settings
from storage import locks, schema
from storage.database import OUTAGES, close_database, connection, open_database
from storage.locks import Lock


class WrongSettings(click.ClickException):
    """The settings are wrong; exit code 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:
        """Print the report as it is."""
        click.echo(self.message, err=True)


class Refused(click.ClickException):
    """What was asked cannot be done; exit code 1."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        """Print the reason as it is."""
        click.echo(f"riskrelay: {self.message}", err=True)


def checked_settings() -> Settings:
    """Return the settings, or end with every mistake in one report and exit code 2."""
    try:
        return load_settings()
    except InvalidSettings as wrong:
        raise WrongSettings(wrong.report()) from None


@contextmanager
def opened(settings: Settings | None = None) -> Iterator[Settings]:
    """Open the migrated database for a command and close it afterwards; yields the settings."""
    settings = settings or checked_settings()
    open_database(settings.database_url)
    try:
        require_migrated()
        with connection():
            yield settings
    except OUTAGES as away:
        raise Refused(f"The database is away, locked or full ({type(away).__name__}); see DATABASE_URL.") from None
    finally:
        close_database()


@contextmanager
def alone(lock: Lock) -> Iterator[None]:
    """Keep a second run of the same command out; call it within `opened()`."""
    try:
        with locks.alone(lock):
            yield
    except locks.Held:
        raise Refused(f"Another {lock.name.lower().replace('_', '-')} is running; wait for its end.") from None


def make_data_dir(settings: Settings) -> None:
    """Make DATA_DIR for its owner alone, or end with a remedy."""
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failed:
        raise Refused(f"DATA_DIR {settings.data_dir} cannot be made: {failed.strerror}; choose another.") from None
    if not os.access(settings.data_dir, os.W_OK | os.X_OK):
        raise Refused(f"DATA_DIR {settings.data_dir} cannot be written to; make it yours, or choose another.")


def require_migrated() -> None:
    """End with a remedy where migrations are pending."""
    if schema.pending():
        raise Refused("The database is not migrated; run: bin/riskrelay migrate")
