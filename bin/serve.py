"""`serve`: the service under gunicorn."""

import errno
import os
import socket
import sys

import click

from bin.installation import Refused, checked_settings, require_migrated
from schemas.settings import Settings
from storage.database import OUTAGES, close_database, open_database

GUNICORN = ("-P", "-m", "gunicorn", "--config", "python:service.gunicorn_config", "service.wsgi:app")


@click.command(epilog="Example: riskrelay serve\n\nExit codes: 0 stopped, 1 could not start, 2 wrong settings.")
def serve() -> None:
    """Serve the HTTP API until SIGTERM; what is being answered is finished first."""
    settings = checked_settings()
    require_startable(settings)
    require_free(settings.bind)
    os.execv(sys.executable, [sys.executable, *GUNICORN])  # noqa: S606 - without a shell is how it should be


def require_free(bind: str) -> None:
    """End with a remedy where the address to serve on cannot be had."""
    host, _, port = bind.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As gunicorn binds: what is left of closed connections does not count as use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as failed:
            in_use = failed.errno == errno.EADDRINUSE
            why = "is in use" if in_use else f"cannot be listened on: {failed.strerror}"
            raise Refused(f"{bind} {why}; set BIND to another address.") from None


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
