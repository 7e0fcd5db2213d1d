"""Fixtures of all tests: real servers, a migrated database of either kind, an account, a target, a browser."""

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import falcon
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from playwright.sync_api import Browser

from schemas.targets.target import Target
from storage.db import schema_version
from storage.db.engine import close_database, connection, open_database
from tests.support.database import kept_sessions
from tests.support.database.databases import PostgresEmptier
from tests.support.database.kept_sessions import KeptSession
from tests.support.factories import Customer, make_customer, make_target
from tests.support.http.shared_routes import SharedRoutes
from tests.support.processes.workers import CountingReceiver, StartedWorker, WorkerProcess
from tests.support.servers.browsers import chromium
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer
from tests.support.trackers.redmine_server import RedmineServer

# Collecting the tests creates no garbage, but garbage collection would take a third of the time.
gc.disable()

# Databases are in memory if there is enough: writing to disk would take a third of the time of many tests.
_MEMORY = Path("/dev/shm")  # noqa: S108 - the folders in it get random names
_ENOUGH_BYTES = 8 << 30
if "TMPDIR" not in os.environ and _MEMORY.is_dir():
    _memory = os.statvfs(_MEMORY)
    # Some tests execute files that they write, so the file system must allow that.
    if _memory.f_bavail * _memory.f_frsize >= _ENOUGH_BYTES and not _memory.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

# The settings of an installation in this checkout do not affect tests.
os.environ["RISKRELAY_ENV_FILE"] = "/nonexistent/.env"

# On a busy machine, a slow example is no failure. `tests/fuzz` has profiles of its own.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# For applications in this process. Services in other processes compile their own routes.
falcon.routing.DefaultRouter = SharedRoutes  # type: ignore[assignment]  # has the methods that Falcon calls


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real Redis for the test run. A test that stops it must start it again."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL for the test run. Only tests run ANALYZE, so that no query plan depends on the time."""
    with PostgresServer() as server:
        with psycopg.connect(server.url, autocommit=True) as session:
            session.execute("ALTER SYSTEM SET autovacuum = off")
            session.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="session")
def redmine() -> Iterator[RedmineServer]:
    """A real Redmine for the test run."""
    with RedmineServer() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file. Copying it is faster than migrating a new one for each test."""
    path = tmp_path_factory.mktemp("migrated") / "riskrelay.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a migrated PostgreSQL database to copy. It never had rows, because emptied tables keep their size."""
    url = postgres_server.create_database()
    _migrate(url)
    return url.rpartition("/")[2]


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer, postgres_template: str) -> str:
    """The URL of a migrated PostgreSQL database, which one test at a time uses."""
    return postgres_server.create_database(postgres_template)


@pytest.fixture(scope="session")
def postgres_emptier(migrated_postgres: str) -> Iterator[PostgresEmptier]:
    """Empties the migrated PostgreSQL database."""
    emptier = PostgresEmptier(migrated_postgres)
    yield emptier
    kept_sessions.end_all()
    emptier.close()


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    """A migrated SQLite database for this test only."""
    path = tmp_path / "riskrelay.db"
    shutil.copyfile(migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(migrated_postgres: str, postgres_emptier: PostgresEmptier) -> str:
    """A migrated PostgreSQL database without rows. Emptying a database takes 1 ms, creating one 50 ms."""
    postgres_emptier.empty()
    return migrated_postgres


def pytest_collection_finish() -> None:
    """Exclude collected tests and modules from garbage collection: it would take 0.2 s after every dozen tests."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on both kinds of database, unless the test or its module selects one."""
    mark = metafunc.definition.get_closest_marker("database")
    kinds = mark.args if mark else ["sqlite", "postgresql"]
    named = [each.args[0] for each in metafunc.definition.iter_markers("parametrize")]
    if "database_url" in metafunc.fixturenames and not any("database_url" in each for each in named):
        metafunc.parametrize("database_url", kinds, indirect=True)
    if "module_database" in metafunc.fixturenames and not any("module_database" in each for each in named):
        metafunc.parametrize("module_database", kinds, indirect=True, scope="module")


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database for this test only. The test runs once for each kind of database."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    """The database at `database_url`, opened in this process; yields its URL."""
    open_database(database_url, driver=KeptSession)
    with connection():
        yield database_url
    close_database()


@pytest.fixture(scope="module")
def module_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A migrated database of each kind, opened for all tests of a module; yields the folder of its installation.

    For tests that do not change it, or whose examples do not depend on each other.
    """
    folder = tmp_path_factory.mktemp("installation")
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("migrated_sqlite"), folder / "riskrelay.db")
        url = f"sqlite:///{folder / 'riskrelay.db'}"
    else:
        template = request.getfixturevalue("postgres_template")
        url = request.getfixturevalue("postgres_server").create_database(template)
    open_database(url)
    with connection():
        yield folder
    close_database()


@pytest.fixture
def customer(database: str) -> Customer:
    """An account with a user, a project and an API token in the open database."""
    return make_customer()


@pytest.fixture
def target(customer: Customer) -> Target:
    """An active target of the customer."""
    return make_target(customer)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The installed Chromium."""
    with chromium() as launched:
        yield launched


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[RedisServer]:
    """The real Redis, empty. A test can stop it."""
    redis_server.flush()
    yield redis_server
    redis_server.start()
    redis_server.flush()


@pytest.fixture
def receiver() -> Iterator[CountingReceiver]:
    """A receiver on loopback that records requests."""
    with CountingReceiver() as made:
        yield made


@pytest.fixture
def start(database: str, redis: RedisServer, tmp_path: Path) -> Callable[..., WorkerProcess]:
    """Return a function that starts real worker processes on the open database, with settings by name."""

    def started(*, forked: bool = True, **changes: str) -> WorkerProcess:
        kind = WorkerProcess if forked else StartedWorker
        return kind(tmp_path / "data", database, redis.url, **changes)

    return started


def _migrate(url: str) -> None:
    open_database(url)
    schema_version.migrate()
    close_database()
