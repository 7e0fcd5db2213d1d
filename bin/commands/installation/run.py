"""`run`: run the whole installation: embedded Redis unless REDIS_URL is set, migrations, service and workers."""

import json
import logging
import os
import sys
from contextlib import suppress
from typing import Final
from urllib.error import URLError

import click

from bin.cli.installation import daemon_settings, database_at, make_data_dir, require_fit
from bin.cli.output import Refused, echo
from bin.commands.installation.init import FIRST_TOKEN, FIRST_USER, create_missing_records
from bin.commands.installation.serve import (
    GUNICORN,
    require_free,
    require_keys,
    require_startable,
    warn_if_redis_is_unavailable,
)
from bin.processes.embedded_redis import EmbeddedRedis
from bin.processes.local_service import DIRECTLY, local_url
from bin.processes.supervisor import STOP_GRACE_S, Supervisor
from bin.processes.workers import worker_command
from schemas.settings.definitions import RouteFamily, Settings, embedded_redis_socket
from storage.db import schema_version

_log: Final = logging.getLogger(__name__)

#: A start takes one or two seconds, and longer on a loaded machine.
READY_WITHIN_S = 60
REDIS_WITHIN_S = 20


@click.command()
def run() -> None:
    """Run everything until Ctrl-C or SIGTERM: Redis, migrations, service and workers.

    In a database without accounts, it creates the first account, user, project and token, as `init` does.

    Example: riskrelay run

    Exit codes: 0 stopped, 1 a process died or did not start, 2 wrong settings.
    """
    settings = daemon_settings()
    # Check everything before changing anything: an installation may already be running here.
    require_keys(settings)
    require_free(settings.bind)
    with database_at(settings.database_url):
        require_fit()
    make_data_dir(settings)
    redis = EmbeddedRedis(settings.data_dir, embedded_redis_socket(settings.data_dir)) if settings.redis_embedded else None
    try:
        if redis is not None:
            # First, because it refuses a data folder that another installation uses.
            redis.start_and_wait(REDIS_WITHIN_S)
        with database_at(settings.database_url):
            for name in schema_version.migrate():
                echo(f"Migrated: {name}")
        require_startable(settings, needs_account=False)
        create_missing_records(settings)
        warn_if_redis_is_unavailable(settings)
        # From here on, a signal is recorded and handled by the supervisor.
        supervisor = Supervisor(stop_within_s=settings.delivery_timeout_s + STOP_GRACE_S)
        _start(settings, supervisor, redis)
        if supervisor.wait_until(lambda: _is_ready(settings), READY_WITHIN_S):
            # The installation runs, even if its address cannot be printed.
            with suppress(Refused, BrokenPipeError):
                _greet(settings)
        elif supervisor.is_running():
            _log.warning("not ready after %s s, continuing; see the lines above", READY_WITHIN_S)
        temporary_paths = [] if redis is None else redis.temporary_paths
        raise SystemExit(supervisor.run_alone(settings.log_level, settings.log_format, temporary_paths))
    finally:
        if redis is not None:
            redis.stop()


def _start(settings: Settings, supervisor: Supervisor, redis: EmbeddedRedis | None) -> None:
    if redis is not None:
        supervisor.adopt("redis", redis.process)
    supervisor.start("workers", worker_command(settings.worker_processes), os.environ)
    supervisor.start("service", [sys.executable, *GUNICORN], os.environ)


def _is_ready(settings: Settings) -> bool:
    """Return whether all checks of /readyz are ok, including a live worker."""
    try:
        with DIRECTLY.open(f"{local_url(settings.bind)}/readyz", timeout=1) as response:
            checks = json.load(response)["checks"]
    except (URLError, OSError, ValueError):
        return False
    # An external Redis that is down was logged before, and does not stop deliveries.
    return all(found in {"ok", "low"} for name, found in checks.items() if name != "redis" or settings.redis_embedded)


def _greet(settings: Settings) -> None:
    """Print the URL and the next commands."""
    token = settings.data_dir / FIRST_TOKEN
    echo(f"\nRiskRelay is ready at {settings.public_base_url}\n")
    if token.is_file():
        echo(f"The first API token is in {token}; store it elsewhere and delete the file.\n")
    echo("Try in another terminal:")
    echo(f"  curl -s {local_url(settings.bind)}/readyz")
    echo(f"  bin/riskrelay token create --user {FIRST_USER}")
    echo("  bin/riskrelay listen\n")
    if RouteFamily.CONSOLE in settings.route_families:
        console = f"{settings.public_base_url}/console"
        echo(f"Sign in at {console} with the first API token, or one created with `--ability console`.\n")
    echo("Ctrl-C stops everything.")
