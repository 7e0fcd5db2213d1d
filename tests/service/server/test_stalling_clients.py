"""Clients that stop within a request, send without end or do not read their responses, with a real service."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from storage.db.engine import close_database, connection, open_database
from tests.support.factories import SCANNER_SECRET, environment, issue, make_customer, postback
from tests.support.http.raw_http import EXPORTS, RESULTS
from tests.support.http.specification import COMPLIANCE
from tests.support.processes.gunicorn_process import Service, read_response

GOOD = json.dumps(postback(5)).encode()
HEAD = (
    f"POST {RESULTS} HTTP/1.1\r\nHost: x\r\nX-Scanner-Secret: {SCANNER_SECRET}\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(GOOD)}\r\n\r\n"
).encode()
PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
IMPATIENT = ("--worker-class", "tests.support.processes.short_timeouts.ShortTimeoutWorker", "--keep-alive", "1")


def installed(folder: Path, migrated_sqlite: Path) -> dict[str, str]:
    """Return the environment of an installation with one process."""
    (folder / "riskrelay.db").write_bytes(migrated_sqlite.read_bytes())
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    open_database(url)
    with connection():
        project_id = make_customer().project_id
    close_database()
    known = {
        "DATABASE_URL": url,
        "DEFAULT_PROJECT_ID": str(project_id),
        "WEB_PROCESSES": "1",
        "MAX_BODY_BYTES": str(64 * 1024),
    }
    return environment(folder, **known, DEPLOYMENT_MODE="cloud", STOREFRONT_WEBHOOK_SECRET="storefront-secret-for-tests")


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Service]:
    """A service with a timeout of one and a half seconds."""
    with Service(installed(tmp_path_factory.mktemp("impatient"), migrated_sqlite), *IMPATIENT) as running:
        yield running


def test_a_silent_client_is_disconnected(impatient: Service) -> None:
    with impatient.connect() as client:
        assert client.recv(1) == b""


def test_a_request_head_that_does_not_end_gets_a_timeout_response(impatient: Service) -> None:
    with impatient.connect() as client:
        client.sendall(HEAD[:40])
        answer = read_response(client)
        assert (answer.status, answer.json["error"]["code"]) == (408, "REQUEST_TIMEOUT")
        assert client.recv(1) == b""


def test_the_time_limit_of_a_request_head_is_not_extended_by_slow_bytes(impatient: Service) -> None:
    with impatient.connect() as client, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(read_response, client)
        for byte in HEAD:
            if answered.done():
                break
            client.sendall(bytes((byte,)))
            time.sleep(0.05)
        assert answered.result().status == 408


def test_a_request_body_that_does_not_end_gets_a_timeout_response(impatient: Service) -> None:
    for route in (RESULTS, COMPLIANCE):
        with impatient.connect() as client:
            client.sendall(HEAD.replace(RESULTS.encode(), route.encode()) + GOOD[:40])
            answer = read_response(client)
            assert (answer.status, answer.json["error"]["code"]) == (408, "REQUEST_TIMEOUT"), route
            assert client.recv(1) == b""


def test_a_body_on_a_slow_connection_is_waited_for(impatient: Service) -> None:
    """It takes longer than the timeout for a body that makes no progress."""
    piece = 16
    with impatient.connect() as client:
        client.sendall(HEAD)
        for begin in range(0, len(GOOD), piece):
            client.sendall(GOOD[begin : begin + piece])
            time.sleep(0.1)
        answer = read_response(client)
    assert len(GOOD) / piece * 0.1 > 1.5
    assert (answer.status, answer.json["findings"]) == (202, {"new": 1, "seen": 0, "fixed": 0, "reopened": 0})


def test_an_idle_client_is_disconnected(impatient: Service) -> None:
    with impatient.connect() as client:
        client.sendall(PROBE)
        assert read_response(client).status == 200
        assert client.recv(1) == b""


def test_a_body_shorter_than_its_declared_length_is_rejected_even_if_it_is_valid(impatient: Service) -> None:
    longer = HEAD.replace(b"Content-Length: %d" % len(GOOD), b"Content-Length: %d" % (len(GOOD) + 1))
    for body in (GOOD, b""):
        with impatient.connect() as client:
            client.sendall(longer + body)
            client.shutdown(socket.SHUT_WR)
            answer = read_response(client)
        assert (answer.status, answer.json["error"]["details"]["fields"][0]["code"]) == (422, "malformed_json")


def test_a_client_that_resets_its_connection_leaves_no_error_behind(impatient: Service) -> None:
    for sent in (b"", HEAD[:40], HEAD + GOOD[:40], HEAD + GOOD, PROBE * 50):
        client = impatient.connect()
        client.sendall(sent)
        # Without lingering, closing the socket resets the connection.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    assert impatient.request("GET", "/healthz").status == 200
    assert [line for line in impatient.log.read_text().splitlines() if '"level": "error"' in line] == []


#: Requests whose responses exceed any kernel buffer of a client that does not read: 60 of 140 KB.
UNREAD_REQUESTS = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 60


def test_clients_that_read_no_response_block_no_slot_that_others_need(tmp_path: Path, migrated_sqlite: Path) -> None:
    """The service does not wait for requests of these clients; no secret is needed for such requests."""
    few = {**installed(tmp_path, migrated_sqlite), "WEB_THREADS": "4"}
    with Service(few) as service, ExitStack() as connections:
        for _ in range(8):
            client = connections.enter_context(socket.socket())
            # Set before it connects, because the size is negotiated then.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", service.port))
            client.sendall(UNREAD_REQUESTS)
        assert service.request("GET", "/healthz", timeout_s=20).status == 200


# --- clients that send without end --------------------------------------------


class EndlessSender(threading.Thread):
    """Sends headers and then the same bytes over and over, until the service closes the connection."""

    def __init__(self, client: socket.socket, head: bytes, poured: bytes) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._head = head
        self._poured = poured * (65536 // len(poured))
        self.was_cut_off = threading.Event()

    def run(self) -> None:
        try:
            self._client.sendall(self._head)
            while True:
                self._client.sendall(self._poured)
        except OSError:
            self.was_cut_off.set()


CHUNKED = b"POST %b HTTP/1.1\r\nHost: x\r\nX-Platform-Hmac-Sha256: a\r\nTransfer-Encoding: chunked\r\n\r\n"
POURED = [
    # Nobody reads it: the rest of a rejected body used to be read to its end, but this one has no end.
    ("a body that nobody wants", CHUNKED % b"/nowhere", b"10\r\n0123456789abcdef\r\n"),
    ("a body of a stranger", CHUNKED % EXPORTS.encode(), b"10\r\n0123456789abcdef\r\n"),
    # Signed bodies are read before the sender is authenticated; a chunk of one byte costs as much as a large one.
    ("a signed body in the smallest chunks", CHUNKED % COMPLIANCE.encode(), b"1\r\n \r\n"),
    ("a length that no body has", b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b" "),
]


@pytest.mark.parametrize(("head", "poured"), [row[1:] for row in POURED], ids=[row[0] for row in POURED])
def test_a_client_that_sends_without_end_is_disconnected_and_does_not_delay_others(
    head: bytes, poured: bytes, impatient: Service
) -> None:
    """A process used to serve only that client until its parent replaced it."""
    with impatient.connect() as client:
        sender = EndlessSender(client, head, poured)
        sender.start()
        for _ in range(3):
            assert impatient.request("GET", "/healthz", timeout_s=10).status == 200
        assert sender.was_cut_off.wait(60)
        sender.join()


#: Issues whose processing took seconds without yielding.
EXPENSIVE: Final[dict[str, list[Mapping[str, Any]]]] = {
    "locations": [issue("a", location=f"{'.- ' * 660}a{number}") for number in range(480)],
    "compounds": [issue("a", location=f"{'a>' * 990}a{number}") for number in range(480)],
    "URLs": [issue("a", url=f"https://shop.example/?{'a&' * 950}{number}") for number in range(480)],
}


@pytest.mark.parametrize("issues", EXPENSIVE.values(), ids=EXPENSIVE)
def test_expensive_bodies_do_not_stall_other_clients(
    issues: list[Mapping[str, Any]], tmp_path: Path, migrated_sqlite: Path
) -> None:
    known = {**installed(tmp_path, migrated_sqlite), "MAX_BODY_BYTES": str(1024 * 1024)}
    with Service(known) as service, ThreadPoolExecutor(2) as clients:
        sent = [
            clients.submit(service.request, "POST", RESULTS, {"X-Scanner-Secret": SCANNER_SECRET}, postback(run, issues))
            for run in (5, 6)
        ]
        took_s = []
        while not all(each.done() for each in sent):
            began_at = time.monotonic()
            assert service.request("GET", "/healthz").status == 200
            took_s.append(time.monotonic() - began_at)
        assert [each.result().status for each in sent] == [202, 202]
    # On an idle machine, at most a third of a second; several seconds if the work does not yield.
    assert max(took_s) < 1.5
