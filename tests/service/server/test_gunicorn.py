"""Tests that need real HTTP: real processes and sockets, slow clients, wrong body lengths, and shutdown."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from storage.db.engine import close_database, connection, open_database
from tests.support.factories import SCANNER_SECRET, Customer, environment, issue, make_customer, postback
from tests.support.http.raw_http import CANARY, EXPORTS, RESULTS, SAFE_HEADERS, TARGETS
from tests.support.processes.gunicorn_process import RawResponse, Service, read_response
from tests.support.processes.workers import wait_until

LIMIT_BYTES = 16 * 1024
SCANNER = {"X-Scanner-Secret": SCANNER_SECRET}
#: The number of statements that wait for a lock held by a test.
WAITING = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture
def served_customer(database_url: str) -> Customer:
    """A customer in the database that the service will use."""
    return customer_in(database_url)


def customer_in(url: str) -> Customer:
    open_database(url)
    with connection():
        customer = make_customer()
    close_database()
    return customer


def settings(folder: Path, database_url: str, customer: Customer, **changes: str) -> dict[str, str]:
    return environment(
        folder,
        DATABASE_URL=database_url,
        DEFAULT_PROJECT_ID=str(customer.project_id),
        MAX_BODY_BYTES=str(LIMIT_BYTES),
        WEB_PROCESSES="2",
        **changes,
    )


@pytest.fixture(scope="module")
def service_folder(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Path:
    """The folder of the module's service, with its database."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "riskrelay.db").write_bytes(migrated_sqlite.read_bytes())
    return folder


@pytest.fixture(scope="module")
def customer(service_folder: Path) -> Customer:
    """A customer of the module's service."""
    return customer_in(f"sqlite:///{service_folder / 'riskrelay.db'}")


@pytest.fixture(scope="module")
def service(service_folder: Path, customer: Customer) -> Iterator[Service]:
    """One service on SQLite for the tests that do not stop it."""
    (service_folder / "home").mkdir()
    secret = {"SCANNER_SHARED_SECRET": "grün-€-secret", "HOME": str(service_folder / "home")}
    url = f"sqlite:///{service_folder / 'riskrelay.db'}"
    with Service({**settings(service_folder, url, customer), **secret}) as running:
        yield running


#: The configured secret as bytes on the wire.
WIRE_SECRET = "grün-€-secret".encode()


def raw(method: bytes, path: bytes, *lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((method + b" " + path + b" HTTP/1.1", b"Host: x", *lines, b"", body))


def posted(*lines: bytes, body: bytes = b"", secret: bytes = WIRE_SECRET) -> bytes:
    typed = (b"X-Scanner-Secret: " + secret, b"Content-Type: application/json")
    return raw(b"POST", RESULTS.encode(), *typed, *lines, body=body)


def sized(body: bytes) -> bytes:
    return posted(b"Content-Length: %d" % len(body), body=body)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end
    return posted(b"Transfer-Encoding: chunked", body=body)


def code_of(answer: RawResponse) -> tuple[int, str]:
    return answer.status, answer.json["error"]["code"]


GOOD = json.dumps(postback(5)).encode()
HUGE = b" " * (LIMIT_BYTES + 1)


def test_a_secret_beyond_ascii_is_compared_as_bytes(service: Service) -> None:
    assert service.exchange(sized(GOOD)).status == 202
    latin = posted(b"Content-Length: %d" % len(GOOD), body=GOOD, secret="grün".encode("latin-1"))
    assert code_of(service.exchange(latin)) == (401, "UNAUTHORIZED")


def test_a_repeated_secret_header_is_refused(service: Service) -> None:
    twice = posted(b"X-Scanner-Secret: " + WIRE_SECRET, b"Content-Length: %d" % len(GOOD), body=GOOD)
    assert code_of(service.exchange(twice)) == (401, "UNAUTHORIZED")


def test_a_chunked_body_is_read(service: Service) -> None:
    assert service.exchange(chunked(GOOD[:100], GOOD[100:])).status == 202
    assert service.exchange(chunked(*(GOOD[at : at + 1] for at in range(len(GOOD))))).status == 202


def test_a_body_without_length_that_is_not_chunked_is_empty(service: Service) -> None:
    answer = service.exchange(posted())
    assert code_of(answer) == (422, "VALIDATION_FAILED")


#: A body and the expected response.
BODIES = [
    ("too large by its length", sized(HUGE), (413, "PAYLOAD_TOO_LARGE")),
    ("too large, and only the length came", posted(b"Content-Length: 9999999999"), (413, "PAYLOAD_TOO_LARGE")),
    ("too large in one chunk", chunked(HUGE), (413, "PAYLOAD_TOO_LARGE")),
    ("too large in many chunks", chunked(*[b" " * 1000] * 20), (413, "PAYLOAD_TOO_LARGE")),
    ("too large in chunks that never end", chunked(*[b" " * 1000] * 20, end=b""), (413, "PAYLOAD_TOO_LARGE")),
    ("as large as may be", sized(GOOD + b" " * (LIMIT_BYTES - len(GOOD))), None),
    ("as large as may be, chunked", chunked(GOOD, b" " * (LIMIT_BYTES - len(GOOD))), None),
    ("chunked and empty", chunked(), (422, "VALIDATION_FAILED")),
    (
        "with a chunk size that is none",
        posted(b"Transfer-Encoding: chunked", body=CANARY.encode() + b"\r\n{}"),
        (422, "VALIDATION_FAILED"),
    ),
]


@pytest.mark.parametrize(("sent", "reported"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_body_limits_apply_while_a_body_arrives(sent: bytes, reported: tuple[int, str] | None, service: Service) -> None:
    answer = service.exchange(sent)
    if reported is None:
        assert answer.status == 202
        return
    assert code_of(answer) == reported
    assert {name: answer.headers.get(name) for name in SAFE_HEADERS} == SAFE_HEADERS
    assert CANARY.encode() not in answer.content


def test_an_incomplete_body_is_the_senders_error(service: Service) -> None:
    for begun in (posted(b"Content-Length: 500", body=GOOD[:100]), chunked(GOOD[:100], end=b"ff\r\n")):
        with service.connect() as connection_:
            connection_.sendall(begun)
            connection_.shutdown(socket.SHUT_WR)
            assert code_of(read_response(connection_)) == (422, "VALIDATION_FAILED")


def test_the_size_is_checked_before_authentication(service: Service) -> None:
    length = b"Content-Length: %d" % len(HUGE)
    assert code_of(service.exchange(raw(b"POST", TARGETS.encode(), length, body=HUGE))) == (413, "PAYLOAD_TOO_LARGE")


STRANGE_PATHS = [b"/%zz", b"/%ff%fe", b"/%00", b"/api/../etc", b"//api", b"/api/%2e%2e/x", b"/?%zz=%ff&&="]


@pytest.mark.parametrize("path", STRANGE_PATHS)
def test_an_invalid_path_is_not_found(path: bytes, service: Service) -> None:
    answer = service.exchange(raw(b"GET", path))
    assert code_of(answer) == (404, "NOT_FOUND")
    assert {name: answer.headers.get(name) for name in SAFE_HEADERS} == SAFE_HEADERS


NO_HTTP = [
    CANARY.encode() + b"\r\n\r\n",
    raw(b"GET", b"/", CANARY.encode() + b" : a space before the colon"),
    raw(b"GET", b"/", b"X-A: " + CANARY.encode() * 1000),
    raw(b"GET", b"/gr\xfcn" + CANARY.encode()),
    raw(b"GET", b"/" + CANARY.encode() * 1000),
]


@pytest.mark.parametrize("sent", NO_HTTP)
def test_invalid_http_gets_the_common_error_body_without_the_submitted_bytes(sent: bytes, service: Service) -> None:
    answer = service.exchange(sent)
    assert 400 <= answer.status < 500
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json["error"]) == {"code", "message", "details", "request_id"}
    assert CANARY not in json.dumps(answer.json)
    assert CANARY not in service.log.read_text()


def test_the_health_routes_accept_head(service: Service) -> None:
    for path in ("/healthz", "/readyz"):
        answer = service.request("HEAD", path)
        assert (answer.status, answer.content) == (200, b"")


def test_the_access_log_has_routes_and_stays_valid_json(service: Service) -> None:
    service.request("GET", f"/healthz?token={CANARY}", {"X-Request-Id": "a-probe"})
    service.request("GET", f"{EXPORTS}/{CANARY}", {"X-Request-Id": "a-poll"})
    deadline = time.monotonic() + 5
    while "a-poll" not in service.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    record = {line["request_id"]: line.get("route") for line in lines if line["logger"] == "riskrelay.access"}
    assert (record["a-probe"], record["a-poll"]) == ("/healthz", f"{EXPORTS}/{{export_id}}")
    assert CANARY not in service.log.read_text()
    assert [line for line in lines if line["level"] == "error"] == []


def test_gunicorn_opens_no_control_socket_in_the_home_folder(service: Service) -> None:
    listening = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    home = str(service.log.parent)
    assert [path for path in listening if path.startswith(home)] == []
    assert list((service.log.parent / "home").rglob("*")) == []


# --- slow clients -------------------------------------------------------------

#: The number of each kind; twice as many send a body slowly, which is more than the database connections of both processes.
SLOW_CLIENTS = 40
DRIPS = 3


def drip(connections: list[socket.socket], byte: bytes) -> None:
    for each in connections:
        each.sendall(byte)


def test_slow_clients_do_not_delay_other_requests(service: Service) -> None:
    heads = [service.connect() for _ in range(SLOW_CLIENTS)]
    bodies = [service.connect() for _ in range(SLOW_CLIENTS * 2)]
    try:
        drip(heads, b"POST " + RESULTS.encode() + b" HTTP/1.1\r\nX-Slow: ")
        drip(bodies, posted(b"Content-Length: %d" % len(GOOD)))
        for _ in range(DRIPS):
            drip(heads, b"a")
            drip(bodies, b" ")
            assert service.exchange(sized(GOOD)).status == 202
            assert service.request("GET", "/readyz").json["checks"]["database"] == "ok"
            time.sleep(0.1)
        # The slow clients are served too, once their requests are complete.
        drip(bodies, b"{" + b" " * (len(GOOD) - DRIPS - 2) + b"}")
        assert {read_response(each).status for each in bodies} == {422}
    finally:
        for each in (*heads, *bodies):
            each.close()


# --- concurrent requests with one key, and shutdown ---------------------------


def test_twenty_concurrent_requests_with_one_key_do_the_work_once(
    database_url: str, served_customer: Customer, tmp_path: Path
) -> None:
    headers = {**SCANNER, "Idempotency-Key": "the same"}
    body = postback(5, issues=[issue(f"rule-{number}") for number in range(30)])
    with Service(settings(tmp_path, database_url, served_customer)) as service, ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: service.request("POST", RESULTS, headers, body), range(20)))

    first = [answer for answer in answers if "idempotency-replayed" not in answer.headers]
    assert {answer.status for answer in answers} == {202}
    assert len(first) == 1
    assert {answer.content for answer in answers} == {first[0].content}
    assert stored(database_url) == {"findings": 30, "exports": 30, "idempotency_keys": 1, "attempts": 0}


def stored(url: str) -> dict[str, int]:
    """Count rows with a separate connection."""
    tables = ("findings", "exports", "idempotency_keys", "attempts")
    return {table: int(asked(url, f"SELECT COUNT(*) FROM {table}")[0][0]) for table in tables}  # noqa: S608 - our own table names


def asked(url: str, statement: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        reader = sqlite3.connect(url.removeprefix("sqlite:///"))
        try:
            return reader.execute(statement).fetchall()
        finally:
            reader.close()
    with psycopg.connect(url) as connection_:
        return connection_.execute(statement.encode()).fetchall()


RUNS = range(1, 25)
KILLS = 3


def test_a_killed_process_leaves_no_partial_writes(database_url: str, served_customer: Customer, tmp_path: Path) -> None:
    """Processes are killed repeatedly while clients post; afterwards, every key is either complete or unknown."""
    with Service(settings(tmp_path, database_url, served_customer)) as service, ThreadPoolExecutor(8) as pool:
        posts = [pool.submit(post_until_answered, service, number) for number in RUNS]
        for _ in range(KILLS):
            time.sleep(0.1)
            os.kill(service.workers[0], signal.SIGKILL)
        answers = [post.result() for post in posts]
        again = [post_until_answered(service, number) for number in RUNS]

    assert [answer.content for answer in again] == [answer.content for answer in answers]
    assert stored(database_url) == {"findings": 240, "exports": 240, "idempotency_keys": 24, "attempts": 0}
    assert asked(database_url, "SELECT COUNT(*) FROM idempotency_keys WHERE response_body IS NULL") == [(0,)]
    unmatched = "SELECT COUNT(*) FROM findings f LEFT JOIN exports e ON e.source_id = f.id WHERE e.id IS NULL"
    assert asked(database_url, unmatched) == [(0,)]


def test_a_process_killed_inside_its_transaction_stores_nothing(postgres_url: str, tmp_path: Path) -> None:
    """A lock held by the test stops the request after its key and findings are written, but before any export is."""
    customer = customer_in(postgres_url)
    headers = {**SCANNER, "Idempotency-Key": "run-1"}
    with (
        Service(settings(tmp_path, postgres_url, customer)) as service,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(postgres_url) as holder,
    ):
        holder.execute("LOCK TABLE exports IN ACCESS EXCLUSIVE MODE")
        posted_once = pool.submit(service.request, "POST", RESULTS, headers, ten_issues(1))
        wait_until(lambda: asked(postgres_url, WAITING) != [(0,)])
        for pid in service.workers:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises((OSError, http.client.HTTPException)):
            posted_once.result()
        holder.rollback()
        again = post_until_answered(service, 1)

    assert "idempotency-replayed" not in again.headers
    assert again.json["findings"] == {"new": 10, "seen": 0, "fixed": 0, "reopened": 0}
    assert stored(postgres_url) == {"findings": 10, "exports": 10, "idempotency_keys": 1, "attempts": 0}


def post_until_answered(service: Service, number: int) -> RawResponse:
    """Post ten issues of a run with a key, and retry until there is a response.

    Wait as long as a response may take: an abandoned request would still be executed, and the next response would be a
    replay.
    """
    headers = {**SCANNER, "Idempotency-Key": f"run-{number}"}
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = service.request("POST", RESULTS, headers, ten_issues(number))
            if answer.status == 202:
                return answer
        except (OSError, http.client.HTTPException):
            pass
        assert time.monotonic() < deadline, "never answered"
        time.sleep(0.02)


def ten_issues(number: int) -> dict[str, Any]:
    return postback(number, issues=[issue(f"rule-{number}-{each}") for each in range(10)])


def test_a_request_in_flight_is_finished_at_sigterm(sqlite_url: str, tmp_path: Path) -> None:
    with Service(settings(tmp_path, sqlite_url, customer_in(sqlite_url))) as service, service.connect() as connection_:
        sent = posted(b"Content-Length: %d" % len(GOOD), secret=SCANNER_SECRET.encode())
        connection_.sendall(sent + GOOD[:50])
        time.sleep(0.3)
        service.terminate()
        wait_until(lambda: not listens(service))
        connection_.sendall(GOOD[50:])
        answer = read_response(connection_)
        connection_.close()
        code = service.exit_code()

    assert (answer.status, answer.json["status"]) == (202, "accepted")
    assert code == 0
    assert stored(sqlite_url)["exports"] == 1


def test_a_client_that_keeps_its_connection_does_not_hold_up_the_stop(sqlite_url: str, tmp_path: Path) -> None:
    with Service(settings(tmp_path, sqlite_url, customer_in(sqlite_url))) as service, service.connect() as connection_:
        connection_.sendall(raw(b"GET", b"/healthz"))
        assert read_response(connection_).status == 200
        asked_at = time.monotonic()
        service.terminate()
        assert service.exit_code() == 0
        # gunicorn's own worker would wait for the whole graceful timeout of 15 s.
        assert time.monotonic() - asked_at < 10


def test_two_idempotency_keys_of_a_change_are_refused_and_change_nothing(service: Service, customer: Customer) -> None:
    target = {"provider_key": "generic_webhook", "base_url": "https://8.8.8.8/", "name": "Tracker"}
    created = service.request("POST", TARGETS, customer.bearer, target)
    assert created.status == 201, created.json
    path = f"{TARGETS}/{created.json['id']}".encode()
    bearer = *(f"{name}: {value}".encode() for name, value in customer.bearer.items()), b"Content-Type: application/json"
    keys, body = (b"Idempotency-Key: one", b"Idempotency-Key: two"), b'{"name": "Renamed"}'
    with service.connect() as connection_:
        for given, answer in ((keys, (422, "Tracker")), (keys[:1], (200, "Renamed"))):
            connection_.sendall(raw(b"PATCH", path, *bearer, *given, b"Content-Length: %d" % len(body), body=body))
            status = read_response(connection_).status
            kept = service.request("GET", path.decode(), headers=customer.bearer)
            assert (status, kept.json["name"]) == answer


def test_connections_that_were_busy_at_the_limit_are_closed_later_for_new_ones(postgres_url: str, tmp_path: Path) -> None:
    """All wait for a lock held by the test, so none can be disconnected; after their responses, they keep their slots."""
    customer, places = customer_in(postgres_url), 3
    poll_request = raw(b"GET", EXPORTS.encode(), *(f"{name}: {value}".encode() for name, value in customer.bearer.items()))
    small = {**settings(tmp_path, postgres_url, customer), "WEB_PROCESSES": "1", "WEB_THREADS": str(places)}
    with Service(small) as service, ExitStack() as kept, psycopg.connect(postgres_url) as holder:
        holder.execute("LOCK TABLE exports IN ACCESS EXCLUSIVE MODE")
        clients = []
        for number in range(places):
            clients.append(kept.enter_context(service.connect()))
            clients[-1].sendall(poll_request)
            wait_until(partial(_waiting, postgres_url, number + 1))
        holder.rollback()
        assert [read_response(client).status for client in clients] == [200] * places
        assert service.request("GET", "/healthz", timeout_s=20).status == 200


def _waiting(url: str, count: int) -> bool:
    return asked(url, WAITING) == [(count,)]


def listens(service: Service) -> bool:
    try:
        service.connect().close()
    except OSError:
        return False
    return True


def test_a_client_that_sends_without_pause_does_not_delay_others(migrated_sqlite: Path, tmp_path: Path) -> None:
    (tmp_path / "riskrelay.db").write_bytes(migrated_sqlite.read_bytes())
    url = f"sqlite:///{tmp_path / 'riskrelay.db'}"
    with (
        Service(environment(tmp_path, DATABASE_URL=url, WEB_PROCESSES="1")) as running,
        socket.create_connection(("127.0.0.1", running.port)) as greedy,
        ThreadPoolExecutor(1) as pool,
    ):
        answered = ResponseCounter(greedy)
        done = pool.submit(answered.read, REQUEST_COUNT)
        greedy.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * REQUEST_COUNT)
        while not answered.count:
            time.sleep(0.001)
        assert running.request("GET", "/healthz").status == 200
        assert answered.count < REQUEST_COUNT / 2
        done.result()


#: More requests than are answered while another client connects and sends one.
REQUEST_COUNT = 4000


class ResponseCounter:
    """Counts the responses that arrive on a connection."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self.count = 0

    def read(self, count: int) -> None:
        """Read until `count` responses have arrived."""
        rest = b""
        while self.count < count:
            *heads, rest = (rest + self._client.recv(65536)).split(b"HTTP/1.1 200 OK\r\n")
            self.count += len(heads)


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_arrives_while_the_application_loads_ends_the_service_at_once(
    asked: signal.Signals, tmp_path: Path, sqlite_url: str
) -> None:
    # The application sends the signal to its own process while it is being loaded.
    module = tmp_path / "stopping.py"
    module.write_text(f"import os\nos.kill(os.getpid(), {int(asked)})\nfrom service.wsgi import app\n")
    command = [sys.executable, "-P", "-m", "service.server", "--config", "python:service.server.gunicorn_config"]
    own = environment(tmp_path, DATABASE_URL=sqlite_url, PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    began = time.monotonic()
    ended = subprocess.run([*command, "--bind", "127.0.0.1:0", "stopping:app"], env=own, check=False, timeout=60)
    assert (ended.returncode, time.monotonic() - began < 15) == (0, True)


#: The configuration of a service whose processes take a minute to start; the code in `at_first` runs at the start of each.
SLOW_TO_START = """
import os, signal, time
from pathlib import Path
from service.server import gunicorn_config
from service.server.gunicorn_config import *

def post_fork(server, worker):
    {at_first}
    gunicorn_config.post_fork(server, worker)
    Path("{folder}", f"{{os.getpid()}}.starting").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_processes_that_are_still_starting_do_not_hold_up_the_stop(
    asked: signal.Signals, tmp_path: Path, sqlite_url: str
) -> None:
    with slow_to_start(tmp_path, sqlite_url, "pass") as service:
        wait_until(lambda: len([*tmp_path.glob("*.starting")]) == 2)
        began = time.monotonic()
        service.send_signal(asked)
        # gunicorn would wait for the graceful timeout of 15 s.
        assert (service.wait(60), time.monotonic() - began < 10) == (0, True)


def test_a_signal_at_the_very_start_of_a_process_ends_it(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "asked").mkdir()
    at_first = f'Path("{tmp_path}/asked", str(os.getpid())).touch(); os.kill(os.getpid(), signal.SIGTERM)'
    with slow_to_start(tmp_path, sqlite_url, at_first) as service:
        # Each process is replaced by another.
        wait_until(lambda: len([*(tmp_path / "asked").iterdir()]) > 2)
        service.terminate()
        assert service.wait(60) == 0
    assert [*tmp_path.glob("*.starting")] == []


@contextmanager
def slow_to_start(folder: Path, database_url: str, at_first: str) -> Iterator[subprocess.Popen[bytes]]:
    config = folder / "slow_to_start.py"
    config.write_text(SLOW_TO_START.format(folder=folder, at_first=at_first))
    command = [sys.executable, "-P", "-m", "service.server", "--config", str(config), "--bind", "127.0.0.1:0"]
    own = environment(folder, DATABASE_URL=database_url, WEB_PROCESSES="2", PYTHONPATH=str(Path.cwd()))
    with subprocess.Popen([*command, "service.wsgi:app"], env=own) as service:
        try:
            yield service
        finally:
            service.kill()
