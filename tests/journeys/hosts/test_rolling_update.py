"""A rolling update and a rollback: old and new code side by side on one PostgreSQL, under load, without losses or 5xx."""

import http.client
import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from storage.db import schema_version
from storage.db.engine import close_database, connection, open_database, rows
from tests.support.factories import environment, make_customer, make_exports, make_target, postback
from tests.support.http.raw_http import EXPORTS, RESULTS, SCANNER
from tests.support.processes.checkouts import ROOT, copy_checkout
from tests.support.processes.gunicorn_process import free_port
from tests.support.processes.workers import CountingReceiver, StartedWorker, wait_until
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer

#: More than clients approve while all processes are replaced twice.
EXPORTS_MADE: Final = 2000
#: Pause between two requests of a client.
PAUSE_S: Final = 0.05
CLIENTS: Final = 2
#: Minimum time for which both versions run.
SIDE_BY_SIDE_S: Final = 1.0
#: Every kind of change that is allowed while older code runs: new tables, new optional columns, new indexes.
MIGRATION: Final = """
def up(_migrator, db):
    db.execute_sql("ALTER TABLE exports ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'")
    db.execute_sql("CREATE INDEX exports_colour ON exports (colour) WHERE colour <> 'blue'")
    db.execute_sql("CREATE TABLE colours (id INTEGER PRIMARY KEY)")
"""


class Running(StartedWorker):
    """One command of one version's code, as a process."""

    def __init__(self, code: Path, verb: str, folder: Path, database: str, redis: RedisServer, **changes: str) -> None:
        self.command = (str(code / "bin" / "riskrelay"), verb)
        super().__init__(folder, database, redis.url, WEB_PROCESSES="1", RATE_LIMIT_PER_MINUTE="100000", **changes)


class Pair:
    """A service and a worker of one version; `port` is the service's."""

    def __init__(self, code: Path, folder: Path, database: str, redis: RedisServer, project_id: int) -> None:
        self.port = free_port()
        served = {"BIND": f"127.0.0.1:{self.port}", "DEFAULT_PROJECT_ID": str(project_id)}
        self.service = Running(code, "serve", folder / f"{self.port}", database, redis, **served)
        self.worker = Running(code, "work", folder / f"{self.port}-worker", database, redis)

    def is_ready(self) -> bool:
        """Return whether the service is ready, as a load balancer checks it, and the worker has started."""
        assert (self.service.process.poll(), self.worker.process.poll()) == (None, None), self.service.log.read_text()
        with suppress(OSError):
            return send(self.port, "GET", "/readyz", {})[0] == 200 and self.worker.has_logged("worker started")
        return False

    def stop(self) -> None:
        """Stop both as a cluster does, and wait until they have finished their open work."""
        for each in (self.service, self.worker):
            each.signal()
        assert [each.wait(30) for each in (self.service, self.worker)] == [0, 0]

    def kill(self) -> None:
        """Kill both."""
        self.service.kill()
        self.worker.kill()


def send(port: int, method: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, Any]:
    """Send one request and return the status and the JSON of the response. Raises OSError or HTTPException."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request(
            method, path, json.dumps(body).encode() if body else None, {"Content-Type": "application/json", **headers}
        )
        response = client.getresponse()
        return response.status, json.loads(response.read())
    finally:
        client.close()


class Load:
    """Clients that approve exports, post findings and read, through any service behind the load balancer."""

    def __init__(self, approvals: list[str], target_id: str, bearer: dict[str, str]) -> None:
        self.ports: list[int] = []
        self.statuses: Counter[int] = Counter()
        self.approved: list[str] = []
        self.reported = 0
        self._waiting = iter(approvals)
        self._target_id, self._bearer = target_id, bearer
        self._is_over = threading.Event()
        self._counted = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send requests until the block ends."""
        clients = [threading.Thread(target=self._send_all, args=(number,)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            self._is_over.set()
            for client in clients:
                client.join()

    def _send_all(self, number: int) -> None:
        count = 0
        while not self._is_over.wait(PAUSE_S):
            count += 1
            with self._counted:
                export_id = next(self._waiting)
            path, body = f"{EXPORTS}/{export_id}/approve", {"target_id": self._target_id}
            self._send("POST", path, {**self._bearer, "Idempotency-Key": export_id}, body)
            self.approved.append(export_id)
            page = {
                "url": f"https://shop.example/{number}/{count}",
                "normalizedUrl": f"https://shop.example/{number}/{count}",
            }
            self._send("POST", RESULTS, SCANNER, postback(page=page))
            with self._counted:
                self.reported += 1
            self._send("GET", EXPORTS, self._bearer)

    def _send(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> Any:
        """Send a request as docs/clients.md requires: without a response, repeat it with the same key."""
        while True:
            try:
                status, response = send(random.choice(self.ports), method, path, headers, body)
            except (OSError, http.client.HTTPException):
                with self._counted:
                    self.statuses[0] += 1
                continue
            with self._counted:
                self.statuses[status] += 1
            return response


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A database for this test only, because its schema changes."""
    url = postgres_server.create_database(postgres_template)
    open_database(url)
    with connection():
        yield url
    close_database()


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The code of a newer version, with one more migration that is compatible with this version."""
    checkout = copy_checkout(tmp_path)
    name = f"0999_colours_since_{schema_version.known()[-1][:4]}.py"
    (checkout / "storage" / "db" / "migrations" / name).write_text(MIGRATION)
    return checkout


def migrated(code: Path, folder: Path, database: str) -> str:
    """Run a version's `migrate` and return what it printed."""
    command = [str(code / "bin" / "riskrelay"), "migrate"]
    settings = environment(folder, DATABASE_URL=database)
    done = subprocess.run(command, env=settings, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.timeout(300)  # six processes start, in three pairs
def test_an_update_and_its_rollback_lose_no_export(database: str, redis: RedisServer, newer: Path, tmp_path: Path) -> None:
    customer = make_customer()
    with ExitStack() as stack, CountingReceiver() as receiver:
        target = make_target(customer, receiver.url())
        load = Load(make_exports(customer, EXPORTS_MADE), target.id, dict(customer.bearer))

        def start(code: Path) -> Pair:
            pair = Pair(code, tmp_path, database, redis, customer.project_id)
            stack.callback(pair.kill)
            wait_until(pair.is_ready)
            load.ports.append(pair.port)
            return pair

        def replace(old: Pair, code: Path) -> Pair:
            started = start(code)
            # Both versions run for some time. Then the load balancer sends no more requests to the pair that is to stop.
            time.sleep(SIDE_BY_SIDE_S)
            load.ports.remove(old.port)
            time.sleep(PAUSE_S)
            old.stop()
            return started

        pair = start(ROOT)
        with load.running():
            assert migrated(newer, tmp_path, database).startswith("ran: 0999_colours_since_")
            assert pair.is_ready()
            pair = replace(pair, newer)
            # The rollback: the old code on the new schema.
            pair = replace(pair, ROOT)
            assert migrated(ROOT, tmp_path, database) == "The schema is up to date."
        wait_until(lambda: rows("SELECT COUNT(*) FROM exports WHERE status = 'exported'")[0][0] == len(load.approved))
        pair.stop()
    assert set(load.statuses) <= {200, 202, 0}, load.statuses
    assert len(load.approved) > 50
    # Every approved export was delivered once: each worker sent all of its claimed exports before its end.
    assert Counter(receiver.keys) == dict.fromkeys(load.approved, 1)
    assert rows("SELECT COUNT(*) FROM findings") == [(load.reported,)]
