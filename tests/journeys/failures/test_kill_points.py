"""A worker can die at any point of a delivery: nothing is lost, and only requests that may have arrived are repeated."""

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

#: The documented time. A lease expires 6 s after its last renewal.
TAKEN_OVER_WITHIN_S: Final = 10.0

# the point, the requests that have arrived at this point, all requests at the end, all counted attempts at the end
POINTS: Final = [
    ("before the claim", 0, 1, 1),
    ("claimed", 0, 1, 1),  # taken back with its transaction
    ("claim committed", 0, 1, 2),  # counted with the claim, so that an export that kills its workers fails at some time
    ("before the request", 0, 1, 2),
    ("request sent", 1, 2, 2),
    ("answered", 1, 2, 2),  # only the dead worker had the response
    ("before the result", 1, 2, 2),
    ("result written", 1, 2, 2),  # taken back with its transaction
    ("result committed", 1, 1, 1),
]


@pytest.fixture
def held() -> Iterator[CountingReceiver]:
    """A receiver that does not respond until its gate is opened."""
    with CountingReceiver() as made:
        made.gate.clear()
        yield made


def postpone(*export_ids: str) -> None:
    """Pause the exports' targets, so that the next worker to die does not claim what the last one left."""
    delete_workers()
    for export_id in export_ids:
        execute("UPDATE targets SET status = 'paused' WHERE id = (SELECT target_id FROM exports WHERE id = ?)", (export_id,))


def resume_all() -> None:
    execute("UPDATE targets SET status = 'active'")


def is_connecting_to(port: int) -> bool:
    """Return whether a process on this machine waits for a connection to this port (state 02, SYN_SENT)."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(fields[2].endswith(f":{port:04X}") and fields[3] == "02" for fields in lines)


@contextmanager
def port_with_full_backlog() -> Iterator[int]:
    """Yield a port that accepts no connection, because its backlog is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port: int = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            yield port


def killed_while_connecting(worker: FailingWorker) -> tuple[str, int]:
    with port_with_full_backlog() as port:
        [export_id] = approved(f"http://127.0.0.1:{port}/hook")
        worker.go()
        wait_until(lambda: is_connecting_to(port))
        worker.kill()
    return export_id, port


def stopped_by_a_second_signal(worker: FailingWorker, held: CountingReceiver) -> str:
    [export_id] = approved(held.url())
    worker.go()
    wait_until(lambda: held.of(export_id))
    worker.signal(signal.SIGTERM)
    time.sleep(1.2)
    assert worker.process.poll() is None
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    return export_id


def killed_during_tls_handshake(worker: FailingWorker, port: int, handshake_began: threading.Event) -> str:
    [export_id] = approved(f"https://127.0.0.1:{port}/hook")
    worker.go()
    assert handshake_began.wait(15)
    worker.kill()
    return export_id


def test_another_worker_completes_deliveries_of_workers_killed_at_any_point(
    failing: Callable[..., FailingWorker], receiver: CountingReceiver
) -> None:
    with ExitStack() as stack:
        killed_workers = [failing("--at", point, WORKER_CONCURRENCY="1") for point, *_ in POINTS]
        for worker in (successor := failing(), *killed_workers):
            stack.enter_context(worker)
        ids = []
        for (point, arrived, *_), worker in zip(POINTS, killed_workers, strict=True):
            [export_id] = approved(receiver.url())
            ids.append(export_id)
            worker.go()
            assert worker.wait() == -signal.SIGKILL, point
            wait_until(lambda export_id=export_id, arrived=arrived: len(receiver.of(export_id)) == arrived)  # type: ignore[misc]  # mypy takes no default
            postpone(export_id)
        resume_all()
        successor.go()
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
    # Results that were rolled back are not counted, and committed results are not counted again.
    assert rows("SELECT SUM(delivered), SUM(failed) FROM delivery_hours") == [(len(ids), 0)]


@on_sqlite
def test_another_worker_completes_deliveries_of_workers_killed_while_waiting_for_the_network(
    failing: Callable[..., FailingWorker], held: CountingReceiver
) -> None:
    handshake_began = threading.Event()

    def hang_in_first_handshake(peer: Peer) -> None:
        first = peer.connection.recv(1)
        if not handshake_began.is_set() and first:
            handshake_began.set()
            peer.wait()

    with ExitStack() as stack:
        killed_workers = [failing() for _ in range(3)]
        for worker in (successor := failing(), *killed_workers):
            stack.enter_context(worker)
        silent = stack.enter_context(LoopbackServer(hang_in_first_handshake))
        stopped = stopped_by_a_second_signal(killed_workers[0], held)
        postpone(stopped)
        connecting, port = killed_while_connecting(killed_workers[1])
        postpone(connecting)
        shaking_hands = killed_during_tls_handshake(killed_workers[2], silent.port, handshake_began)
        resume_all()
        held.gate.set()
        reached = stack.enter_context(CountingReceiver(port))
        successor.go()
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
    # No claim had to expire first.
    assert rows("SELECT DISTINCT attempts FROM exports") == [(1,)]
    assert Counter(receiver.keys) == dict.fromkeys(ids, 1)
