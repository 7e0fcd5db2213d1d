"""Hosts of one installation: each has its own folder, and its own connections to the shared PostgreSQL and Redis."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from storage.db.engine import execute, rows, transaction
from storage.exports.worker_heartbeats import ALIVE_FOR
from tests.support.factories import environment, make_approved, make_customer, make_target
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import WorkerProcess
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.servers.relays import CuttableRelay


class Host:
    """One host: its own folder, and relays to PostgreSQL and Redis that can be cut."""

    def __init__(self, folder: Path, database_url: str, redis: RedisServer) -> None:
        self.folder = folder
        folder.mkdir()
        at = urlsplit(database_url)
        self._to_postgres = CuttableRelay((at.hostname or "", at.port or 0))
        self._to_redis = CuttableRelay(str(redis.folder / "redis.sock"))
        self.database_url = database_url.replace(f":{at.port}/", f":{self._to_postgres.port}/")
        self.redis_url = f"redis://127.0.0.1:{self._to_redis.port}/0"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for line in (self._to_postgres, self._to_redis):
            self._stack.enter_context(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cut_off(self) -> None:
        """Cut the host off from PostgreSQL and Redis."""
        self._to_postgres.cut()
        self._to_redis.cut()

    def reconnect(self) -> None:
        """Restore the connections to PostgreSQL and Redis."""
        self._to_postgres.restore()
        self._to_redis.restore()

    def work(self, **changes: str) -> WorkerProcess:
        """Start a worker on this host; it is killed at the end of the host's block."""
        # The worker ends before the relays: a connection that waits on a cut relay would keep the relay open.
        return self._stack.enter_context(WorkerProcess(self.folder, self.database_url, self.redis_url, **changes))

    def serve(self, **changes: str) -> Service:
        """Start a service on this host; it is killed at the end of the host's block."""
        settings = {"DATABASE_URL": self.database_url, "REDIS_URL": self.redis_url, "WEB_PROCESSES": "1", **changes}
        return self._stack.enter_context(Service(environment(self.folder, **settings)))


def name_of(worker: WorkerProcess) -> str:
    """Return the name of a worker from its log; the rows that it writes have the same name."""
    [name] = {line["worker"] for line in worker.log_lines if line["message"] == "worker started"}
    return str(name)


def approved_for_each(url: str, targets: int, each: int) -> list[str]:
    """Store approved and due exports: `each` for every one of `targets` targets at `url` whose ramp is complete."""
    customer = make_customer()
    # In one transaction. Otherwise, the first worker that scans would send each export as soon as it is stored.
    with transaction():
        made = [make_target(customer, url).id for _ in range(targets)]
        ids = [make_approved(customer, target_id, utc_now()) for target_id in made for _ in range(each)]
        # A new target gets one request at a time until it has responded. These tests are not about the ramp.
        execute("UPDATE targets SET ramp = 16, concurrency = 8")
    return ids


def delivered_by() -> Counter[str]:
    """Return the number of exports that each worker delivered."""
    return Counter(dict(rows("SELECT worker, COUNT(*) FROM attempts WHERE outcome = 'delivered' GROUP BY worker")))


def claimed_by() -> Counter[str]:
    """Return the number of claims that each worker made."""
    return Counter(dict(rows("SELECT actor, COUNT(*) FROM audit_entries WHERE action = 'claim' GROUP BY actor")))


def count_alive() -> int:
    """Return the number of workers with a recent heartbeat."""
    return int(rows("SELECT COUNT(*) FROM workers WHERE seen_at > ?", (to_ms(utc_now() - ALIVE_FOR),))[0][0])
