"""`run`: everything in one: embedded Redis where REDIS_URL names none, migrations, service and workers."""

import os
import sys
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import click

from bin.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from bin.init import FIRST_TOKEN, FIRST_USER
from bin.installation import Refused, checked_settings, make_data_dir
from bin.serve import GUNICORN, require_free, require_startable
from bin.supervisor import Supervisor
from bin.work import WORK_ALONE
from schemas.settings import Settings
from storage import schema
from storage.database import OUTAGES, close_database, open_database

#: A start takes one or two seconds; a machine under load gets the benefit of the doubt.
READY_WITHIN_S = 60
REDIS_WITHIN_S = 20
#: Our own service is asked without the proxy that the environment may name for the way out.
_DIRECTLY = build_opener(ProxyHandler({}))
#: Beyond the longest delivery: the last commit and the goodbye.
STOP_GRACE_S = 30


@click.command(
    epilog="Example: riskrelay run\n\nExit codes: 0 stopped, 1 a part of it died or did not start, 2 wrong settings."
)
def run() -> None:
    """Run the whole installation until Ctrl-C or SIGTERM."""
    settings = checked_settings()
    make_data_dir(settings)
    _migrate(settings)
    require_startable(settings)
    require_free(settings.bind)
    supervisor = Supervisor(stop_within_s=settings.delivery_timeout_s + STOP_GRACE_S)
    redis = EmbeddedRedis(settings.data_dir, settings.redis_socket) if settings.redis_embedded else None
    try:
        _start(settings, supervisor, redis)
        if supervisor.wait_until(lambda: _is_ready(settings), READY_WITHIN_S):
            _greet(settings)
        elif supervisor.is_running():
            click.echo(f"riskrelay: not ready after {READY_WITHIN_S} s, going on; the log above says why", err=True)
        raise SystemExit(supervisor.run())
    except EmbeddedRedisError as failed:
        raise Refused(str(failed)) from None
    finally:
        if redis is not None:
            redis.stop()


def _migrate(settings: Settings) -> None:
    open_database(settings.database_url)
    try:
        for name in schema.migrate():
            click.echo(f"Migrated: {name}")
    except OUTAGES as away:
        raise Refused(f"The database cannot be reached ({type(away).__name__}); see DATABASE_URL.") from None
    finally:
        close_database()


def _start(settings: Settings, supervisor: Supervisor, redis: EmbeddedRedis | None) -> None:
    if redis is not None:
        redis.start()
        supervisor.adopt("redis", redis.process)
        redis.wait_until_ready(REDIS_WITHIN_S)
    for number in range(settings.worker_processes):
        supervisor.start(f"worker {number + 1}", [sys.executable, *WORK_ALONE], os.environ)
    supervisor.start("service", [sys.executable, *GUNICORN], os.environ)


def _local_url(settings: Settings) -> str:
    """Return where the service is for somebody on this machine."""
    host, _, port = settings.bind.rpartition(":")
    reachable = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - not bound here, only asked
    return f"http://{reachable}:{port}"


def _is_ready(settings: Settings) -> bool:
    try:
        with _DIRECTLY.open(f"{_local_url(settings)}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _greet(settings: Settings) -> None:
    """Tell where it is and what to type next."""
    token = settings.data_dir / FIRST_TOKEN
    click.echo(f"\nRiskRelay is ready at {settings.public_base_url}\n")
    if token.is_file():
        click.echo(f"The first API token is in {token}; keep it elsewhere and delete the file.\n")
    click.echo("Try, in another terminal:")
    click.echo(f"  curl -s {_local_url(settings)}/readyz")
    click.echo(f"  bin/riskrelay token create --user {FIRST_USER}")
    click.echo("  bin/riskrelay listen\n")
    click.echo("Ctrl-C stops everything.")
