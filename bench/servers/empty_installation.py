"""An installation with one account and no exports, for measurements that generate their rows in SQL."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from bench.servers.durable_postgres import DurablePostgres
from bench.servers.receiver_process import ROOT
from storage.db import schema_version
from storage.db.engine import close_database, connection, execute, open_database, transaction
from tests.support.factories import LOOPBACK, Customer, environment, make_customer
from tests.support.servers.redis_and_postgres import RedisServer


@dataclass(frozen=True, slots=True)
class EmptyInstallation:
    """Its only customer, and the environment for its processes; its migrated database is open in this process."""

    customer: Customer
    env: dict[str, str]

    def reset(self) -> None:
        """Delete all exports and workers, reset the throttle state of targets, and empty Redis."""
        with transaction():
            for table in ("attempts", "exports", "audit_entries", "workers"):
                execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
            execute(
                "UPDATE targets SET ramp = 16, concurrency = 16, held_until = NULL, held_reason = NULL, failures_in_row = 0"
                ", paced_until = NULL"
            )
        with Redis.from_url(self.env["REDIS_URL"]) as client:
            client.flushall()


@contextmanager
def empty_installation(kind: str, **settings: str) -> Iterator[EmptyInstallation]:
    """Create an installation on `sqlite` or `postgresql`; `settings` are added to its environment."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(DurablePostgres()) if kind == "postgresql" else None
        url = postgres.create_database() if postgres else f"sqlite:///{folder / 'riskrelay.db'}"
        open_database(url)
        stack.callback(close_database)
        schema_version.migrate()
        stack.enter_context(connection())
        env = environment(
            folder, DATABASE_URL=url, REDIS_URL=redis.url, PYTHONPATH=str(ROOT), LOG_LEVEL="info", **{**LOOPBACK, **settings}
        )
        yield EmptyInstallation(make_customer(), env)
