"""`serve`: the service under gunicorn."""

import errno
import logging
import os
import socket
import sys
from typing import Final

import click

from bin.cli.installation import Refused, alone, daemon_settings, require_migrated, warn_of_strange_names
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.settings.definitions import Settings
from storage.db.engine import OUTAGES, close_database, connection, location_hint, open_database, outage_reason
from storage.db.locks import Lock
from storage.maintenance import restore as restoring
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

_log: Final = logging.getLogger(__name__)

#: Each start looks for a moment only, and a host may start many workers at once.
_OTHERS_START_WITHIN_S: Final = 5.0

GUNICORN = ("-P", "-m", "gunicorn", "--config", "python:service.server.gunicorn_config", "service.wsgi:app")


@click.command(epilog="Example: riskrelay serve\n\nExit codes: 0 stopped, 1 could not start, 2 wrong settings.")
def serve() -> None:
    """Run the HTTP service until SIGTERM; open requests are finished first."""
    settings = daemon_settings()
    warn_of_strange_names()
    require_startable(settings)
    require_free(settings.bind)
    warn_of_redis_away(settings)
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
            problem = "is in use" if in_use else f"cannot be listened on: {failed.strerror}"
            stop = "stop what listens there (RiskRelay itself may be running), or " if in_use else ""
            raise Refused(f"{bind} {problem}; {stop}set BIND to another address.") from None


def require_keys(settings: Settings) -> None:
    """End with a remedy where nothing could be sealed."""
    if not settings.encryption_keys:
        raise Refused("ENCRYPTION_KEYS is not set; run: bin/riskrelay init")


def warn_of_redis_away(settings: Settings) -> None:
    """Tell that a Redis of the operator's own does not answer; nothing waits for it."""
    if not (settings.redis_embedded or WakeUpQueue(connect(settings.redis_url)).is_reachable()):
        _log.warning("Redis does not answer; see REDIS_URL. Nothing is lost: workers find what is due")


def require_startable(settings: Settings) -> None:
    """End with a remedy where a long-running process could not do its work; a database that is away may come back."""
    require_keys(settings)
    open_database(settings.database_url)
    try:
        require_migrated()
        # Before anything is sealed, or fails to open: one line at the start, not one a delivery.
        with connection():
            _require_restored()
            check_keys(Vault(settings.encryption_keys), utc_now())
    except OUTAGES as away:
        told = "the database is away (%s; see %s); starting all the same, requests get 503 until it is back"
        _log.warning(told, outage_reason(away), location_hint())
    finally:
        close_database()


def _require_restored() -> None:
    """End with a remedy where a restore is at work or was cut off: what it erases again would be shown, and answered for."""
    with alone(Lock.RESTORE, _OTHERS_START_WITHIN_S):
        if restoring.is_unfinished():
            raise Refused(f"{restoring.UNFINISHED} To finish it, {restoring.FINISH}")
