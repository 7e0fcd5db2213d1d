"""`serve`: the service under gunicorn."""

import os
import sys

import click

from bin.installation import Refused, checked_settings, require_migrated
from schemas.settings import Settings
from storage.database import OUTAGES, close_database, open_database

GUNICORN = ("-P", "-m", "gunicorn", "--config", "python:service.gunicorn_config", "service.wsgi:app")


@click.command(epilog="Example: riskrelay serve\n\nExit codes: 0 stopped, 1 could not start, 2 wrong settings.")
def serve() -> None:
    """Serve the HTTP API until SIGTERM; what is being answered is finished first."""
    require_startable(checked_settings())
    os.execv(sys.executable, [sys.executable, *GUNICORN])  # noqa: S606 - without a shell is how it should be


def require_startable(settings: Settings) -> None:
    """End with a remedy where a long-running process could not do its work; a database that is away may come back."""
    if not settings.encryption_keys:
        raise Refused("ENCRYPTION_KEYS is not set; run: bin/riskrelay init")
    open_database(settings.database_url)
    try:
        require_migrated()
    except OUTAGES:
        click.echo("riskrelay: the database is away; starting all the same, requests get 503 until it is back", err=True)
    finally:
        close_database()
