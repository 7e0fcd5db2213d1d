"""`/readyz` reports each check, and distinguishes failures that only delay deliveries from those that prevent responses."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from service.app import create_app
from storage.db.disk_space import LAST_FULL_WRITE
from storage.db.engine import connection, execute, open_database
from storage.exports import worker_heartbeats
from storage.secrets import key_check
from storage.secrets.vault import Vault
from tests.support.factories import Customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import Call

HEALTHY = {"database": "ok", "disk": "ok", "schema": "ok", "keys": "ok", "redis": "ok", "workers": "ok"}
WORKER = "worker:test"


@dataclass
class ReadinessScene:
    """An installation without problems, until a test causes one."""

    client: TestClient
    wake_ups: FakeWakeUpQueue
    folder: Path


@pytest.fixture
def scene(customer: Customer, tmp_path: Path) -> ReadinessScene:
    settings, wake_ups = make_settings(tmp_path), FakeWakeUpQueue()
    key_check.check_keys(Vault(settings.encryption_keys), utc_now())
    worker_heartbeats.beat(WORKER, utc_now())
    return ReadinessScene(TestClient(create_app(settings, wake_ups, FakeResolver({}))), wake_ups, tmp_path)


def redis_unavailable(scene: ReadinessScene) -> None:
    scene.wake_ups.is_connected = False


def no_worker(_: ReadinessScene) -> None:
    worker_heartbeats.remove(WORKER)


def silent_worker(_: ReadinessScene) -> None:
    worker_heartbeats.remove(WORKER)
    worker_heartbeats.beat(WORKER, utc_now() - timedelta(seconds=20))


def nothing_to_deliver_with(scene: ReadinessScene) -> None:
    redis_unavailable(scene)
    no_worker(scene)


def other_keys(_: ReadinessScene) -> None:
    execute("DELETE FROM installation")
    key_check.check_keys(Vault([b"B" * 32]), utc_now())


def no_room(_: ReadinessScene) -> None:
    LAST_FULL_WRITE.record()


def no_database(scene: ReadinessScene) -> None:
    open_database(f"sqlite:///{scene.folder / 'gone' / 'riskrelay.db'}")


def no_database_of_ours(scene: ReadinessScene) -> None:
    (scene.folder / "other.db").write_bytes(b"This is no database. " * 100)
    open_database(f"sqlite:///{scene.folder / 'other.db'}")


NOT_CHECKED = {"schema": "unknown", "keys": "unknown", "workers": "unknown"}

#: Columns: cause; status code; overall status; failed checks.
CASES: dict[str, tuple[Callable[[ReadinessScene], None], int, str, dict[str, str]]] = {
    "nothing": (lambda _: None, 200, "ok", {}),
    # Requests succeed; deliveries wait for the sweep, or for a worker.
    "Redis away": (redis_unavailable, 200, "degraded", {"redis": "unavailable"}),
    "no worker": (no_worker, 200, "degraded", {"workers": "unavailable"}),
    "a worker not seen lately": (silent_worker, 200, "degraded", {"workers": "unavailable"}),
    "both": (nothing_to_deliver_with, 200, "degraded", {"redis": "unavailable", "workers": "unavailable"}),
    # With these keys, the installation would store secrets that nobody else can decrypt.
    "another installation's keys": (other_keys, 503, "unavailable", {"keys": "wrong"}),
    "a write without room": (no_room, 503, "unavailable", {"disk": "full"}),
    "no database": (no_database, 503, "unavailable", {"database": "unavailable", **NOT_CHECKED}),
    "no database of ours": (no_database_of_ours, 503, "unavailable", {"database": "unavailable", **NOT_CHECKED}),
}


@pytest.mark.parametrize("case", CASES)
def test_readiness_names_each_check(case: str, scene: ReadinessScene) -> None:
    happens, code, status, failed = CASES[case]
    happens(scene)

    answer = Call("GET", "/readyz").send(scene.client)

    assert (answer.status_code, answer.json) == (code, {"status": status, "checks": {**HEALTHY, **failed}})
    assert Call("HEAD", "/readyz").send(scene.client).status_code == code


NEWEST = "(SELECT MAX(name) FROM schema_migrations)"
#: How to make the migration history another one, and how to undo it: on PostgreSQL, the next test uses the same database.
HISTORIES = {
    "a migration of tomorrow": (
        "INSERT INTO schema_migrations (id, name, applied) VALUES (9999, '9999_of_tomorrow', '2030-01-01')",
        "DELETE FROM schema_migrations WHERE name = '9999_of_tomorrow'",
    ),
    "a migration that has not run": (
        f"UPDATE schema_migrations SET name = '9999_' || name WHERE name = {NEWEST}",  # noqa: S608 - our own names
        f"UPDATE schema_migrations SET name = SUBSTR(name, 6) WHERE name = {NEWEST}",  # noqa: S608 - our own names
    ),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_a_schema_of_another_version_is_not_served(case: str, scene: ReadinessScene) -> None:
    happens, mend = HISTORIES[case]
    with connection():
        execute(happens)
    try:
        answer = Call("GET", "/readyz").send(scene.client)
    finally:
        with connection():
            execute(mend)

    checks = {**HEALTHY, "schema": "not_current", "keys": "unknown", "workers": "unknown"}
    assert (answer.status_code, answer.json) == (503, {"status": "unavailable", "checks": checks})
    assert Call("GET", "/readyz").send(scene.client).json["status"] == "ok"
