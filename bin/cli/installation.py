"""What most commands stand on: checked settings and the migrated database of this installation.

Refuses to go on with wrong settings, or with a database that is away, not migrated, of a newer version or another
application's: one clear line and its remedy.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from bin.cli import extras
from runtime import logs
from schemas.settings.definitions import InvalidSettings, Settings, find_env_file, load_settings, strange_names
from storage.db import locks, schema_version
from storage.db.engine import DAMAGE, OUTAGES, close_database, connection, location_hint, open_database, outage_reason
from storage.db.locks import Lock
from storage.db.schema_version import UnfitDatabase

_log: Final = logging.getLogger(__name__)


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


def daemon_settings() -> Settings:
    """Return the settings of a command that stays, as `checked_settings` does; what it tells from here on is its log."""
    settings = checked_settings()
    lacking = extras.missing(settings)
    if lacking:
        raise WrongSettings(InvalidSettings(lacking).report())
    logs.configure(settings.log_level, settings.log_format)
    return settings


@contextmanager
def opened(settings: Settings | None = None) -> Iterator[Settings]:
    """Open the migrated database for a command and close it afterwards; yields the settings."""
    settings = settings or checked_settings()
    with database_at(settings.database_url):
        require_migrated()
        with connection():
            yield settings


@contextmanager
def database_at(url: str) -> Iterator[None]:
    """Open a database, migrated or not, and close it afterwards; what is wrong with it is told in one line."""
    open_database(url)
    try:
        yield
    except OUTAGES as away:
        raise Refused(f"The database is away, locked or full ({outage_reason(away)}); see {location_hint()}.") from None
    except UnfitDatabase as unfit:
        raise Refused(str(unfit)) from None
    except DAMAGE as damaged:
        if type(damaged) is not DAMAGE:
            raise
        raise Refused(
            f"The database is damaged ({outage_reason(damaged)}); restore a backup. See {location_hint()}."
        ) from None
    finally:
        close_database()


@contextmanager
def alone(lock: Lock, within_s: float = 0.0) -> Iterator[None]:
    """Keep a second run of the same command out, after so many seconds of waiting for its end; call it within `opened()`."""
    try:
        with locks.exclusive_within(lock, within_s):
            yield
    except locks.LockBusy:
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
    """End with a remedy where migrations are pending, or have run of which this version knows nothing."""
    if require_fit():
        raise Refused("The database is not migrated; run: bin/riskrelay migrate")


def require_fit() -> tuple[str, ...]:
    """Return the names of the migrations that are pending, or end with a remedy where this version cannot run them."""
    standing = schema_version.inspect()
    if standing.problem:
        raise Refused(standing.problem)
    return standing.pending


def warn_of_strange_names() -> None:
    """Tell which names in `.env` are no setting's: a slip of the hand has no other sign."""
    env_file = find_env_file()
    for name, meant in strange_names(env_file).items():
        remedy = f"did you mean {meant}?" if meant else "it changes nothing."
        _log.warning("%s sets %s, which is no setting of RiskRelay; %s", env_file, name, remedy)
