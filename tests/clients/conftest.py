"""A real installation for the tests of the client library."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.db.engine import close_database, connection, open_database
from tests.support.factories import LOOPBACK, Customer, environment, make_customer
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import WorkerProcess
from tests.support.servers.redis_and_postgres import RedisServer


@pytest.fixture(scope="module")
def installation(
    migrated_sqlite: Path, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Customer]]:
    """The URL of a service with a worker that allows loopback targets, and a customer; shared by the tests of a module."""
    folder = tmp_path_factory.mktemp("installation")
    shutil.copyfile(migrated_sqlite, folder / "riskrelay.db")
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    open_database(url)
    with connection():
        customer = make_customer()
        settings = {"DATABASE_URL": url, "REDIS_URL": redis_server.url, "WEB_PROCESSES": "1", **LOOPBACK}
        # Only this mode has uploads. In it, only the operator's account has the default secret.
        mode = {"DEPLOYMENT_MODE": "cloud", "OPERATOR_ACCOUNT_ID": str(customer.account_id)}
        named = environment(folder, DEFAULT_PROJECT_ID=str(customer.project_id), **settings, **mode)
        with Service(named) as service, WorkerProcess(folder, url, redis_server.url, **mode):
            yield f"http://127.0.0.1:{service.port}", customer
    close_database()
