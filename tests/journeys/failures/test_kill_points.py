"""A worker may die at any point of a delivery: nothing is lost, and only what may have arrived is sent once more."""

import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from storage.db.engine import execute, rows
from storage.exports import queries
from tests.support.database.databases import on_postgresql, on_sqlite
from tests.support.fakes import LoopbackServer, Peer
from tests.support.processes.workers import (
    CountingReceiver,
    FailingWorker,
    WorkerProcess,
    all_are,
    approved,
    delete_workers,
    is_exported,
    notify_workers,
    wait_until,
)
from tests.support.servers.redis_and_postgres import RedisServer

#: What is promised; the lease lapses 6 s after it was renewed last.
TAKEN_OVER_WITHIN_S: Final = 10.0

# the point, requests that arrived by then, requests in the end, attempts counted in the end
POINTS: Final = [
    ("before the claim", 0, 1, 1),
    ("claimed", 0, 1, 1),  # taken back with its transaction
    ("claim committed", 0, 1, 2),  # counted when claiming, so that an export that kills its workers comes to an end
    ("before the request", 0, 1, 2),
    ("request sent", 1, 2, 2),
    ("answered", 1, 2, 2),  # only the dead worker knew the answer
    ("before the result", 1, 2, 2),
    ("result written", 1, 2, 2),  # taken back with its transaction
    ("result committed", 1, 1, 1),
]


@pytest.fixture
def held() -> Iterator[CountingReceiver]:
    """A receiver that keeps its answers to itself until its gate is opened."""
    with CountingReceiver() as made:
        made.gate.clear()
        yield made


def shelve(*export_ids: str) -> None:
    """Let nobody claim these for now: the next one to die must not find what the last one left."""
    delete_workers()
    for export_id in export_ids:
        execute("UPDATE targets SET status = 'paused' WHERE id = (SELECT target_id FROM exports WHERE id = ?)", (export_id,))


def unshelve_all() -> None:
    execute("UPDATE targets SET status = 'active'")


def is_connecting_to(port: int) -> bool:
    """Return whether somebody on this machine waits for a connection to be accepted (SYN_SENT, 02)."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(fields[2].endswith(f":{port:04X}") and fields[3] == "02" for fields in lines)


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose listener accepts nobody: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port: int = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            yield port


def dies_connecting(worker: FailingWorker) -> tuple[str, int]:
    with deaf_port() as port:
        [export_id] = approved(f"http://127.0.0.1:{port}/hook")
        worker.go()
        wait_until(lambda: is_connecting_to(port))
        worker.kill()
    return export_id, port


def dies_of_two_signals_to_stop(worker: FailingWorker, held: CountingReceiver) -> str:
    [export_id] = approved(held.url())
    worker.go()
    wait_until(lambda: held.of(export_id))
    worker.signal(signal.SIGTERM)
    time.sleep(1.2)
    assert worker.process.poll() is None
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    return export_id


def dies_shaking_hands(worker: FailingWorker, port: int, greeted: threading.Event) -> str:
    [export_id] = approved(f"https://127.0.0.1:{port}/hook")
    worker.go()
    assert greeted.wait(15)
    worker.kill()
    return export_id


def test_what_a_worker_was_at_when_it_died_another_one_does(
    failing: Callable[..., FailingWorker], receiver: CountingReceiver
) -> None:
    with ExitStack() as stack:
        doomed = [failing("--at", point, WORKER_CONCURRENCY="1") for point, *_ in POINTS]
        for worker in (heir := failing(), *doomed):
            stack.enter_context(worker)
        ids = []
        for (point, arrived, *_), worker in zip(POINTS, doomed, strict=True):
            [export_id] = approved(receiver.url())
            ids.append(export_id)
            worker.go()
            assert worker.wait() == -signal.SIGKILL, point
            wait_until(lambda export_id=export_id, arrived=arrived: len(receiver.of(export_id)) == arrived)  # type: ignore[misc]  # mypy takes no default
            shelve(export_id)
        unshelve_all()
        heir.go()
        took_s = wait_until(all_are("exported"))
        assert took_s < TAKEN_OVER_WITHIN_S
    reported = [
        (point, len(receiver.of(each)), queries.get(each).attempts) for (point, *_), each in zip(POINTS, ids, strict=True)
    ]
    assert reported == [(point, requests, attempts) for point, _, requests, attempts in POINTS]
    for export_id in ids:
        assert len({request.body for request in receiver.of(export_id)}) == 1
    delivered = rows("SELECT export_id FROM attempts WHERE outcome = 'delivered'")
    assert Counter(each for (each,) in delivered) == dict.fromkeys(ids, 1)
    # What was taken back with its transaction is counted by nobody, and what was committed is not counted again.
    assert rows("SELECT SUM(delivered), SUM(failed) FROM delivery_hours") == [(len(ids), 0)]


@on_sqlite
def test_what_a_worker_waited_for_when_it_died_another_one_waits_for(
    failing: Callable[..., FailingWorker], held: CountingReceiver
) -> None:
    greeted = threading.Event()

    def hangs_up_once_greeted(peer: Peer) -> None:
        first = peer.connection.recv(1)
        if not greeted.is_set() and first:
            greeted.set()
            peer.wait()

    with ExitStack() as stack:
        doomed = [failing() for _ in range(3)]
        for worker in (heir := failing(), *doomed):
            stack.enter_context(worker)
        silent = stack.enter_context(LoopbackServer(hangs_up_once_greeted))
        stopped = dies_of_two_signals_to_stop(doomed[0], held)
        shelve(stopped)
        connecting, port = dies_connecting(doomed[1])
        shelve(connecting)
        shaking_hands = dies_shaking_hands(doomed[2], silent.port, greeted)
        unshelve_all()
        held.gate.set()
        reached = stack.enter_context(CountingReceiver(port))
        heir.go()
        took_s = wait_until(lambda: queries.get(shaking_hands).status == "retry_scheduled")
        took_s += wait_until(is_exported(connecting)) + wait_until(is_exported(stopped))
        assert took_s < TAKEN_OVER_WITHIN_S
    assert reached.keys == [connecting]
    assert held.keys == [stopped] * 2
    assert len({request.body for request in held.requests}) == 1
    assert [queries.get(each).attempts for each in (stopped, connecting, shaking_hands)] == [2, 2, 2]


@on_postgresql
def test_workers_replaced_one_by_one_under_load_deliver_everything_once(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    ids = approved(receiver.url(), 300)
    changes = {"WORKER_CONCURRENCY": "4"}
    with ExitStack() as stack:
        first, second = (stack.enter_context(start(**changes)) for _ in range(2))
        notify_workers(redis)
        for leaving in (first, second):
            stack.enter_context(start(**changes))
            leaving.signal(signal.SIGTERM)
            assert leaving.wait() == 0
        wait_until(all_are("exported"), 30)
    # None had to lapse first.
    assert rows("SELECT DISTINCT attempts FROM exports") == [(1,)]
    assert Counter(receiver.keys) == dict.fromkeys(ids, 1)
