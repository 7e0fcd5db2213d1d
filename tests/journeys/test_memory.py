"""What the processes of an installation load, and what they share."""

from collections.abc import Callable
from pathlib import Path

from tests.support.factories import LOOPBACK, environment
from tests.support.gunicorn_process import Service
from tests.support.servers import RedisServer
from tests.support.workers import WorkerProcess, wait_until

#: The compiled part of PostgreSQL's driver, among the files that a process has mapped.
DRIVER = "psycopg_binary"


def loads_driver(pid: int) -> bool:
    return DRIVER in Path(f"/proc/{pid}/maps").read_text()


def shared_kb(pid: int) -> int:
    """Return how much memory of a process, files apart, is one with that of others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name.rstrip(":"): int(kb) for name, kb, *_ in map(str.split, lines)}["Shared_Dirty"]


def serving(service: Service) -> list[int]:
    """Return the ids of the processes that serve, once both were forked."""
    wait_until(lambda: len(service.workers) == 2)
    return service.workers


def test_only_processes_on_postgresql_load_its_driver(
    database: str, redis: RedisServer, tmp_path: Path, start: Callable[..., WorkerProcess]
) -> None:
    settings = environment(tmp_path, DATABASE_URL=database, REDIS_URL=redis.url, WEB_PROCESSES="2", **LOOPBACK)
    with Service(settings) as service, start() as worker:
        pids = [service.pid, *serving(service), worker.process.pid]
        assert [loads_driver(pid) for pid in pids] == [database.startswith("postgresql")] * 4


def test_the_processes_of_a_service_share_the_application(database: str, redis: RedisServer, tmp_path: Path) -> None:
    settings = environment(tmp_path, DATABASE_URL=database, REDIS_URL=redis.url, WEB_PROCESSES="2", **LOOPBACK)
    with Service(settings) as service:
        # Of about 60 MB; each process has its own copy of what it wrote to since the fork.
        assert [shared_kb(pid) > 25_000 for pid in serving(service)] == [True, True]
