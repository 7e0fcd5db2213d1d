"""`serve`: run the HTTP service under gunicorn."""

import logging
import os
import socket
import sys
from typing import Final

import click

from bin.cli.installation import WrongSettings, alone, daemon_settings, require_migrated
from bin.cli.output import Refused
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.base.principal import OPERATOR
from schemas.settings.definitions import ENV_FILE_VARIABLE, InvalidSettings, Settings, find_env_file
from storage.accounts import accounts
from storage.db.engine import OUTAGES, close_database, connection, location_hint, open_database, outage_reason
from storage.db.locks import Lock
from storage.maintenance import restore as restoring
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault
from storage.targets import targets

_log: Final = logging.getLogger(__name__)

#: Each start holds the lock for a moment only, but a host may start many workers at once.
_OTHERS_START_WITHIN_S: Final = 5.0

GUNICORN = ("-P", "-m", "service.server", "--config", "python:service.server.gunicorn_config", "service.wsgi:app")


@click.command()
def serve() -> None:
    """Run the HTTP service until SIGTERM; open requests are finished first.

    Example: riskrelay serve

    Exit codes: 0 stopped, 1 could not start, 2 wrong settings.
    """
    settings = daemon_settings()
    require_startable(settings)
    require_free(settings.bind)
    warn_if_redis_is_unavailable(settings)
    os.execv(sys.executable, [sys.executable, *GUNICORN])  # noqa: S606 - no shell is wanted here


def require_free(bind: str) -> None:
    """Raise Refused if the address cannot be bound."""
    host, _, port = bind.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Bind like gunicorn: connections in TIME_WAIT do not keep the address in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as failed:
            fix = "stop the process that listens there (RiskRelay may already be running), or set BIND to another address"
            raise Refused(f"{bind} cannot be bound: {failed.strerror}; {fix}.") from None


def require_keys(settings: Settings) -> None:
    """Raise WrongSettings without encryption keys."""
    if not settings.encryption_keys:
        where = f"set neither in the environment nor in {find_env_file()}"
        how = f"restore the .env of this database, run bin/riskrelay init for a new one, or set {ENV_FILE_VARIABLE}"
        raise WrongSettings(str(InvalidSettings({"ENCRYPTION_KEYS": [f"{where}; {how}."]})))


def warn_if_redis_is_unavailable(settings: Settings) -> None:
    """Log a warning if an external Redis does not respond."""
    if not (settings.redis_embedded or WakeUpQueue(connect(settings.redis_url)).is_reachable()):
        _log.warning("Redis does not respond; see REDIS_URL. Nothing is lost: workers poll the database for due exports")


def require_startable(settings: Settings, *, needs_account: bool = True) -> None:
    """Raise Refused if a daemon could not work. An unavailable database only logs a warning, because it may come back.

    With `needs_account`, a database without accounts logs a warning, too. Applies the default secret to the targets.
    """
    require_keys(settings)
    open_database(settings.database_url)
    try:
        require_migrated()
        # Check the keys before they are used: a wrong key gets one message at the start, not one per delivery.
        with connection():
            _require_restored()
            vault = Vault(settings.encryption_keys)
            check_keys(vault, utc_now())
            targets.apply_default_secret(DefaultSecret.of(settings, vault), utc_now(), OPERATOR.key)
            if needs_account and accounts.first_id() is None:
                _log.warning("the database has no account, so every request is rejected; run: bin/riskrelay init")
    except OUTAGES as outage:
        message = "the database is unavailable (%s; see %s); starting anyway, requests get 503 until it is back"
        _log.warning(message, outage_reason(outage), location_hint())
    finally:
        close_database()


def _require_restored() -> None:
    """Raise Refused while a restore runs or is incomplete: data that it is about to erase again would be visible."""
    with alone(Lock.RESTORE, _OTHERS_START_WITHIN_S):
        if restoring.is_unfinished():
            raise Refused(f"{restoring.UNFINISHED} To finish it, {restoring.FINISH}")
