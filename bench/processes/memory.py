"""Memory of an installation as `bin/riskrelay run` starts it, on SQLite: idle, and with two workers under load.

Pages that several processes share count once: a figure is the sum of the PSS of supervisor, service, workers and Redis.
"""

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from bench.deliveries.runs import count_delivered, count_listening, prepare, wait_until
from bench.figures import Extent, Figure
from bench.processes.cost import process_tree, proportional_mb
from bench.processes.starting import initialized, running, wait_until_ready
from bench.servers.receiver_process import run_receiver
from storage.db.engine import connection, transaction
from tests.support.factories import make_customer, make_target

PROMISED: Final = ("idle_memory_mb", "loaded_memory_mb")
_ROUNDS: Final = 2
_EXPORTS: Final = 5_000
_CLIENTS: Final = 16
#: Seconds after the installation is ready until everything that runs at the start has run once.
_IDLE_AFTER_S: Final = 10.0
#: The command `run` notices later than this program that everything is ready, and then releases memory.
_STARTED_AFTER_S: Final = 1.0
_SAMPLE_S: Final = 0.5
_WITHIN_S: Final = 60.0


def measure(extent: Extent) -> list[Figure]:
    """Measure idle and loaded memory; a quick run returns no figures, since this takes most of a minute."""
    if extent is Extent.QUICK:
        return []
    rounds = [(_idle_mb(), _loaded_mb()) for _ in range(_ROUNDS)]
    idle, loaded = zip(*rounds, strict=True)
    return [
        Figure("idle_memory_mb", idle, "MB", 150.0, is_cost=True),
        Figure("loaded_memory_mb", loaded, "MB", 210.0, is_cost=True),
    ]


def _idle_mb() -> float:
    with initialized() as (folder, env), running(folder, env) as process:
        wait_until_ready(process, env)
        time.sleep(_IDLE_AFTER_S)
        return _sum_mb(process.pid)


def _loaded_mb() -> float:
    """Return the highest memory while exports are approved over HTTP and delivered."""
    settings = {"WORKER_PROCESSES": "2", "RATE_LIMIT_PER_MINUTE": "1000000"}
    with run_receiver(0) as receiver, initialized(**settings) as (folder, env), connection():
        with transaction():
            customer = make_customer()
            target_id = make_target(customer, receiver.url).id
            ids = prepare(customer, _EXPORTS, 0)
        with running(folder, env) as process, ThreadPoolExecutor(_CLIENTS) as clients:
            wait_until_ready(process, env)
            redis_url = f"unix://{folder / 'data' / 'redis' / 'redis.sock'}"
            wait_until(lambda: count_listening(redis_url) == int(settings["WORKER_PROCESSES"]), "the workers to listen")
            time.sleep(_STARTED_AFTER_S)
            approving = [
                clients.submit(_approve, env["BIND"], customer.bearer, target_id, ids[first::_CLIENTS])
                for first in range(_CLIENTS)
            ]
            highest_mb = max(_samples_mb(process.pid))
            for each in approving:
                each.result()
    return highest_mb


def _samples_mb(pid: int) -> Iterator[float]:
    """Yield samples of the memory until every export is delivered."""
    until = time.monotonic() + _WITHIN_S
    while count_delivered() < _EXPORTS:
        assert time.monotonic() < until, f"Only {count_delivered()} exports were delivered within {_WITHIN_S:g} s."
        yield _sum_mb(pid)
        time.sleep(_SAMPLE_S)
    yield _sum_mb(pid)


def _sum_mb(pid: int) -> float:
    return sum(proportional_mb(each) for each in process_tree(pid))


def _approve(bind: str, bearer: dict[str, str], target_id: str, ids: Sequence[str]) -> None:
    """Approve exports one after the other over one connection."""
    client = http.client.HTTPConnection(bind, timeout=_WITHIN_S)
    headers, body = {**bearer, "Content-Type": "application/json"}, json.dumps({"target_id": target_id})
    for export_id in ids:
        client.request("POST", f"/api/ticket-exports/{export_id}/approve", body, headers)
        response = client.getresponse()
        response.read()
        assert response.status == 202, response.status
    client.close()
