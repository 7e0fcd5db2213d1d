"""Which libraries the processes of an installation load, and how much memory they share."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.factories import LOOPBACK, environment
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import RISKRELAY, WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer

#: The file name of the compiled PostgreSQL driver in a process' memory map.
DRIVER = "psycopg_binary"
ROOT = Path(__file__).parents[3]


def loads(pid: int, file: str) -> bool:
    """Return whether a process has mapped a file of this name."""
    return file in Path(f"/proc/{pid}/maps").read_text()


def shared_kb(pid: int) -> int:
    """Return how much anonymous memory of a process is shared with other processes, in KB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name.rstrip(":"): int(kb) for name, kb, *_ in map(str.split, lines)}["Shared_Dirty"]


def serving(service: Service) -> list[int]:
    """Return the ids of the service's two workers, once both are forked."""
    wait_until(lambda: len(service.workers) == 2)
    return service.workers


def test_only_processes_on_postgresql_load_its_driver(
    database: str, redis: RedisServer, tmp_path: Path, start: Callable[..., WorkerProcess]
) -> None:
    settings = environment(tmp_path, DATABASE_URL=database, REDIS_URL=redis.url, WEB_PROCESSES="2", **LOOPBACK)
    with Service(settings, forked=False) as service, start(forked=False) as worker:
        pids = [service.pid, *serving(service), worker.process.pid]
        assert [loads(pid, DRIVER) for pid in pids] == [database.startswith("postgresql")] * 4


def test_a_worker_does_not_load_charset_normalizer(start: Callable[..., WorkerProcess]) -> None:
    with start(forked=False) as worker:
        # The log has no warning about it: every line is JSON.
        wait_until(lambda: worker.has_logged("worker started"))
        assert not loads(worker.process.pid, "charset_normalizer")


def test_commands_import_the_postgresql_driver_only_for_postgresql(database: str, tmp_path: Path) -> None:
    settings = {**environment(tmp_path, DATABASE_URL=database), "PYTHONPROFILEIMPORTTIME": "1"}
    ran = subprocess.run([RISKRELAY, "token", "list"], env=settings, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "peewee" in imported
    assert ("psycopg.pq" in imported) is database.startswith("postgresql")


@pytest.mark.parametrize(
    ("endpoint", "loaded"), [({}, "False"), ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "True")]
)
def test_only_tracing_loads_opentelemetry(tmp_path: Path, endpoint: dict[str, str], loaded: str) -> None:
    settings = environment(tmp_path, DATABASE_URL=f"sqlite:///{tmp_path / 'riskrelay.db'}", **endpoint)
    code = (
        "import sys; from runtime import tracing; from schemas.settings.definitions import load_settings; "
        "tracing.leave_out_if_unused(load_settings()); import redis; print('opentelemetry.sdk' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == (f"{loaded}\n", 0), ran.stderr


def test_the_gevent_threadpool_is_imported_before_the_service_forks(database: str, tmp_path: Path) -> None:
    code = "import sys; import service.server.gunicorn_config; print('gevent.threadpool' in sys.modules)"
    settings = environment(tmp_path, DATABASE_URL=database)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("True\n", 0), ran.stderr


def test_service_processes_share_the_memory_of_the_application(database: str, redis: RedisServer, tmp_path: Path) -> None:
    settings = environment(tmp_path, DATABASE_URL=database, REDIS_URL=redis.url, WEB_PROCESSES="2", **LOOPBACK)
    with Service(settings, forked=False) as service:
        # Of about 60 MB. Each process has its own copy of the pages that it has written to since the fork.
        assert [shared_kb(pid) > 25_000 for pid in serving(service)] == [True, True]


def test_regular_expressions_are_compiled_before_the_first_request(tmp_path: Path) -> None:
    settings = environment(tmp_path, DATABASE_URL=f"sqlite:///{tmp_path / 'riskrelay.db'}", **LOOPBACK)
    code = (
        "import re, service.wsgi; from schemas.base.fields import WebUrl; re.compile = None; "
        "print(WebUrl().deserialize('https://shop.example/cart'))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("https://shop.example/cart\n", 0), ran.stderr
