"""Checked settings and the migrated database, which most commands need.

Refuses invalid settings, and a database that is unavailable, not migrated, of a newer version or another application's, with
one line that names the fix.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from bin.cli import extras
from bin.cli.output import Refused, echo
from runtime import logs
from schemas.settings.definitions import FILE_SUFFIX, InvalidSettings, Settings, find_env_file, load_settings, unknown_names
from storage.db import locks, schema_version
from storage.db.engine import (
    DAMAGE,
    OUTAGES,
    DatabaseFull,
    close_database,
    connection,
    location_hint,
    open_database,
    outage_reason,
)
from storage.db.locks import Lock
from storage.db.schema_version import UnsuitableDatabase

_log: Final = logging.getLogger(__name__)

#: The secrets that RiskRelay shares with its senders or receivers.
SHARED_SECRETS: Final = ("SCANNER_SHARED_SECRET", "EMAIL_WEBHOOK_SECRET", "STOREFRONT_WEBHOOK_SECRET", "WEBHOOK_SECRET")


class WrongSettings(click.ClickException):
    """The settings are wrong; exit code 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:
        """Print the report as it is."""
        echo(self.message, err=True)


def checked_settings(env_file: Path | None = None) -> Settings:
    """Return the settings; call it before anything is logged. Raises WrongSettings with every mistake in one report."""
    logs.quote_nothing()
    try:
        return load_settings(env_file)
    except InvalidSettings as wrong:
        raise WrongSettings(str(wrong)) from None


def daemon_settings() -> Settings:
    """Return checked settings for a daemon, after configuring its logs and warning of unknown names in `.env`."""
    settings = checked_settings()
    lacking = extras.missing(settings)
    if lacking:
        raise WrongSettings(str(InvalidSettings(lacking)))
    logs.configure(settings.log_level, settings.log_format)
    _warn_of_unknown_names()
    # For the processes that the command starts or becomes: threads allocate memory under the interpreter's lock, so one
    # arena is enough, and several keep more of what was freed.
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")
    return settings


def shared_secrets(settings: Settings) -> dict[str, str]:
    """Return the shared secrets that the environment or `.env` sets, by the names of their settings."""
    secrets = {name: getattr(settings, name.lower()) for name in SHARED_SECRETS}
    return {name: secret for name, secret in secrets.items() if secret}


@contextmanager
def opened() -> Iterator[Settings]:
    """Open the migrated database for a command, yield the settings, and close the database."""
    settings = checked_settings()
    with database_at(settings.database_url):
        require_migrated()
        with connection():
            yield settings


@contextmanager
def database_at(url: str) -> Iterator[None]:
    """Open a database, migrated or not, and close it afterwards. Raises Refused with one line for every failure of it."""
    open_database(url)
    try:
        yield
    except DatabaseFull:
        raise Refused(f"The disk of the database is full; free space. Check {location_hint()}.") from None
    except OUTAGES as outage:
        raise Refused(
            f"The database is unavailable, locked or full ({outage_reason(outage)}); check {location_hint()}."
        ) from None
    except UnsuitableDatabase as unsuitable:
        raise Refused(str(unsuitable)) from None
    except DAMAGE as damaged:
        if type(damaged) not in DAMAGE:
            raise
        raise Refused(
            f"The database is damaged ({outage_reason(damaged)}); restore a backup. Check {location_hint()}."
        ) from None
    finally:
        close_database()


@contextmanager
def alone(lock: Lock, within_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a command; waits `within_s` seconds, then raises Refused. Needs an open database."""
    try:
        with locks.exclusive(lock, within_s):
            yield
    except locks.LockBusy:
        raise Refused(f"Another {lock.name.lower().replace('_', '-')} is running; wait until it ends.") from None


def is_in_environment(name: str) -> bool:
    """Return whether the environment sets a setting or names its file; an empty variable counts as unset."""
    return bool(os.environ.get(name) or os.environ.get(name + FILE_SUFFIX))


def make_data_dir(settings: Settings) -> None:
    """Create DATA_DIR with mode 0700. Raises Refused with the fix."""
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failed:
        raise Refused(f"DATA_DIR {settings.data_dir} cannot be created: {failed.strerror}; set another folder.") from None
    if not os.access(settings.data_dir, os.W_OK | os.X_OK):
        raise Refused(f"DATA_DIR {settings.data_dir} is not writable; become its owner, or set another folder.")


def require_migrated() -> None:
    """Raise Refused if migrations are pending, or if a migration has run that this version does not have."""
    if require_fit():
        raise Refused("The database is not migrated; run: bin/riskrelay migrate")


def require_fit() -> tuple[str, ...]:
    """Return the pending migrations. Raises Refused if this version cannot run them."""
    schema = schema_version.inspect()
    if schema.problem:
        raise Refused(schema.problem)
    return schema.pending


def _warn_of_unknown_names() -> None:
    """Log a warning for each name in `.env` that is not a setting: a misspelled one has no other symptom."""
    env_file = find_env_file()
    for name, meant in unknown_names(env_file).items():
        fix = f"did you mean {meant}?" if meant else "it has no effect."
        _log.warning("%s sets %s, which is not a setting of RiskRelay; %s", env_file, name, fix)
