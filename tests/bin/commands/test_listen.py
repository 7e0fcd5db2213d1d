"""The development receiver: in this process for its responses, as a subprocess for its output."""

import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from bin.__main__ import riskrelay
from bin.commands.tools.listen import listen
from bin.receiver_kit import saved_requests
from bin.receiver_kit.receiver import MAX_BODY_BYTES, FaultInjection, LocalReceiver, Received
from schemas.base.ticket_event_types import TicketEventType
from schemas.base.timestamps import format_rfc3339
from schemas.exports.tickets.ticket import Source, Ticket, delivery_body
from schemas.exports.tickets.ticket_events import EventTicket, TicketChange, event_body
from schemas.targets.pings import PingJob, ping_body
from schemas.targets.webhook_options import BodyFormat
from tests.support.processes.terminals import Terminal
from worker.http.body_formats import formatted
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, SignatureVerdict, sign

ROOT = Path(__file__).parents[3]
SECRET = b"a secret for tests: \xc3\xa9"
NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)

_numbers = itertools.count(1)


def body_of(title: str = "Image without alt text", export_id: str = "exp_1") -> bytes:
    event = {"id": export_id, "type": "ticket.export", "export": {"id": export_id}, "ticket": {"title": title}}
    return json.dumps(event).encode()


def deliver(
    url: str,
    body: bytes | None = None,
    *,
    secret: bytes = SECRET,
    at: int | None = None,
    session: requests.Session | None = None,
    **headers: str | None,
) -> requests.Response:
    """Post one signed attempt; keywords replace headers (underscores for dashes), None omits one."""
    body = body_of() if body is None else body
    at = int(NOW.timestamp()) if at is None else at
    nonce = f"{next(_numbers):032x}"
    sent: dict[str, str | None] = {
        "Content-Type": "application/json",
        TIMESTAMP_HEADER: str(at),
        NONCE_HEADER: nonce,
        SIGNATURE_HEADER: sign(secret, at, nonce, body),
        "Idempotency-Key": "exp_1",
        "X-Request-Id": "att_1",
    }
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    given = {name: value for name, value in sent.items() if value is not None}
    return (session or requests).post(url, data=body, headers=given, timeout=10, allow_redirects=False)


@pytest.fixture
def start() -> Iterator[Callable[..., LocalReceiver]]:
    """Start receivers whose clock is fixed at NOW; all are stopped after the test."""
    started: list[LocalReceiver] = []

    def starter(**options: Any) -> LocalReceiver:
        started.append(LocalReceiver([SECRET], lambda: NOW, **options).start())
        return started[-1]

    yield starter
    for receiver in started:
        receiver.stop()


# ── responses ──────────────────────────────────────────────────────────────


def test_a_signed_delivery_creates_a_ticket(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    answer = deliver(receiver.url)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == {"ticket_id": "DEV-1", "url": receiver.url + "tickets/DEV-1"}
    (received,) = receiver.received
    assert received.at == NOW
    assert received.verdict is SignatureVerdict.OK
    assert received.body == body_of()
    assert (received.export_id, received.request_id, received.kind) == ("exp_1", "att_1", "ticket.export")
    assert received.title == "Image without alt text"
    assert not received.repeat


def test_a_delivery_signed_with_another_secret_is_refused(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    answer = deliver(receiver.url, secret=b"other")
    assert (answer.status_code, answer.json()) == (401, {"code": "WEBHOOK_SIGNATURE_INVALID"})
    assert receiver.received[0].verdict is SignatureVerdict.SIGNATURE_WRONG
    assert receiver.received[0].title == "Image without alt text"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({SIGNATURE_HEADER.replace("-", "_"): None}, SignatureVerdict.SIGNATURE_MISSING),
        ({NONCE_HEADER.replace("-", "_"): "\xe9"}, SignatureVerdict.NONCE_MALFORMED),  # a byte outside ASCII
        ({TIMESTAMP_HEADER.replace("-", "_"): "soon"}, SignatureVerdict.TIMESTAMP_MALFORMED),
        ({"at": int(NOW.timestamp()) - 301}, SignatureVerdict.TIMESTAMP_STALE),
        ({"at": int(NOW.timestamp()) + 301}, SignatureVerdict.TIMESTAMP_FUTURE),
    ],
)
def test_the_invalid_part_of_a_signature_is_recorded(
    start: Callable[..., LocalReceiver], change: dict[str, Any], verdict: SignatureVerdict
) -> None:
    receiver = start()
    assert deliver(receiver.url, **change).status_code == 401
    assert receiver.received[0].verdict is verdict


def test_a_repeated_header_is_refused_on_the_wire(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n" + f"{SIGNATURE_HEADER}: a\r\n" * 2 + "\r\n"
    assert raw(receiver, head.encode() + b"{}").startswith(b"HTTP/1.1 401 ")
    assert receiver.received[0].verdict is SignatureVerdict.SIGNATURE_REPEATED


def test_a_nonce_is_accepted_once(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    at, body = int(NOW.timestamp()), body_of()
    fixed: dict[str, Any] = {
        NONCE_HEADER.replace("-", "_"): "a" * 32,
        SIGNATURE_HEADER.replace("-", "_"): sign(SECRET, at, "a" * 32, body),
    }
    assert [deliver(receiver.url, body, **fixed).status_code for _ in range(2)] == [200, 401]
    assert receiver.received[1].verdict is SignatureVerdict.NONCE_REPLAYED


@pytest.mark.parametrize("body", [b"", b"[]", b'"text"', b"{", b"\xff", b"[" * 200_000])
def test_a_body_other_than_a_json_object_gets_422(start: Callable[..., LocalReceiver], body: bytes) -> None:
    answer = deliver(start().url, body)
    assert (answer.status_code, answer.json()) == (422, {"code": "WEBHOOK_VALIDATION_FAILED"})


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"export": 1, "ticket": [], "id": 7}',
        b'{"type": "ticket.export", "ticket": {"title": null}}',
        b'{"type": ["ticket.export"], "ticket": "title"}',
    ],
)
def test_an_object_without_a_ticket_gets_422_and_is_recorded_without_a_title(
    start: Callable[..., LocalReceiver], body: bytes
) -> None:
    receiver = start()
    answer = deliver(receiver.url, body)
    assert (answer.status_code, answer.json()) == (422, {"code": "WEBHOOK_VALIDATION_FAILED"})
    (received,) = receiver.received
    assert (received.verdict, received.title, received.export_id) == (SignatureVerdict.OK, None, None)


def test_an_event_of_an_unknown_type_is_recorded_and_gets_422(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    body = body_of().replace(b"ticket.export", b"ticket.closed")
    assert deliver(receiver.url, body).status_code == 422
    assert (receiver.received[0].verdict, receiver.received[0].kind) == (SignatureVerdict.OK, "ticket.closed")


def test_a_repeated_key_gets_the_same_ticket_and_is_marked(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    answers = [deliver(receiver.url).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert deliver(receiver.url, Idempotency_Key="exp_2").json()["ticket_id"] == "DEV-2"
    assert [received.repeat for received in receiver.received] == [False, True, False]


def test_a_key_of_a_rejected_request_is_not_a_repeat(start: Callable[..., LocalReceiver]) -> None:
    receiver = start(faults=FaultInjection((503,)))
    statuses = [deliver(receiver.url, secret=secret).status_code for secret in (SECRET, b"other", SECRET)]
    assert statuses == [503, 401, 200]
    assert [received.repeat for received in receiver.received] == [False, False, False]


def test_without_a_key_every_delivery_creates_a_ticket(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    tickets = [deliver(receiver.url, Idempotency_Key=None).json()["ticket_id"] for _ in range(2)]
    assert tickets == ["DEV-1", "DEV-2"]


def test_a_receiver_without_a_secret_is_refused() -> None:
    for secrets in ([], [b""], [SECRET, b""]):
        with pytest.raises(ValueError, match="needs a non-empty secret"):
            LocalReceiver(secrets, lambda: NOW)


# ── fault injection ──────────────────────────────────────────────────


def test_failures_are_sent_in_order_before_normal_responses(start: Callable[..., LocalReceiver]) -> None:
    url = start(faults=FaultInjection((503, 429, 500, 404), retry_after_s=7)).url
    answers = [deliver(url) for _ in range(5)]
    assert [(answer.status_code, answer.headers.get("Retry-After")) for answer in answers] == [
        (503, "7"),
        (429, "7"),
        (500, None),  # only 429 and 503 ask for a wait
        (404, None),
        (200, None),
    ]
    assert answers[1].json() == {"code": "WEBHOOK_RATE_LIMITED"}


def test_retry_after_is_omitted_by_default(start: Callable[..., LocalReceiver]) -> None:
    assert "Retry-After" not in deliver(start(faults=FaultInjection((503,))).url).headers


@pytest.mark.parametrize("status", [302, 304])
def test_after_a_redirect_the_connection_still_works(start: Callable[..., LocalReceiver], status: int) -> None:
    receiver = start(faults=FaultInjection((status,)))
    with requests.Session() as session:
        answer = deliver(receiver.url, session=session)
        assert (answer.status_code, answer.headers["Location"]) == (status, receiver.url + "elsewhere")
        assert deliver(receiver.url, session=session).status_code == 200


def test_a_delay_applies_to_the_response_only(start: Callable[..., LocalReceiver]) -> None:
    receiver = start(faults=FaultInjection(delay_s=0.3))
    began = time.monotonic()
    assert deliver(receiver.url).status_code == 200
    assert time.monotonic() - began >= 0.3


def test_a_dropped_response_still_creates_a_ticket_and_its_key_is_a_repeat(start: Callable[..., LocalReceiver]) -> None:
    receiver = start(faults=FaultInjection((503,), drops=2))
    assert deliver(receiver.url).status_code == 503
    for _ in range(2):
        with pytest.raises(requests.ConnectionError):
            deliver(receiver.url)
    assert deliver(receiver.url).json()["ticket_id"] == "DEV-1"
    assert [(each.is_dropped, each.repeat) for each in receiver.received] == [
        (False, False),  # failures come first
        (True, False),
        (True, True),
        (False, True),
    ]


def test_a_test_event_is_accepted_and_creates_no_ticket(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    ping = b'{"type": "target.ping", "id": "png_1"}'
    assert deliver(receiver.url, ping, Idempotency_Key="png_1").json() == {"status": "pong"}
    assert deliver(receiver.url).json()["ticket_id"] == "DEV-1"


def event_of(kind: TicketEventType, export_id: str = "exp_1") -> bytes:
    title = None if kind is TicketEventType.REDACT else "Image without alt text"
    ticket = EventTicket(export_id, "tgt_1", Source("finding", "fnd_1"), title, "sha256:0", "DEV-1")
    return event_body("evt_1", kind, ticket, TicketChange(1, 2, 3), format_rfc3339(NOW))


@pytest.mark.parametrize("body_format", list(BodyFormat))
def test_an_event_changes_a_known_ticket_and_is_ignored_otherwise(
    start: Callable[..., LocalReceiver], body_format: BodyFormat
) -> None:
    receiver = start()
    body = formatted(event_of(TicketEventType.FIXED), body_format).body
    assert deliver(receiver.url, body, Idempotency_Key="evt_1").json() == {"status": "ignored"}
    deliver(receiver.url)
    answers = [deliver(receiver.url, body, Idempotency_Key="evt_1") for _ in range(2)]
    assert [(each.status_code, each.json()) for each in answers] == [(200, {"status": "closed"})] * 2
    assert [each.repeat for each in receiver.received] == [False, False, False, True]
    last = receiver.received[-1]
    assert (last.kind, last.export_id, last.title) == ("ticket.fixed", "exp_1", "Image without alt text")
    assert last.change == {"places_added": 1, "places_fixed": 2, "places_open": 3}
    assert deliver(receiver.url, Idempotency_Key="exp_2").json()["ticket_id"] == "DEV-2"


def test_a_redact_event_erases_only_the_content_of_its_ticket(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    deliver(receiver.url)
    deliver(receiver.url, body_of("Another", "exp_2"), Idempotency_Key="exp_2")
    deliver(receiver.url, event_of(TicketEventType.UPDATED), Idempotency_Key="evt_0")
    redact = event_of(TicketEventType.REDACT)
    assert deliver(receiver.url, redact, secret=b"other").status_code == 401
    assert receiver.received[0].title == "Image without alt text"
    assert deliver(receiver.url, redact, Idempotency_Key="evt_1").json() == {"status": "erased"}
    assert [each.title for each in receiver.received] == [None, "Another", None, None, None]
    assert [each.body for each in receiver.received] == [b"", body_of("Another", "exp_2"), b"", b"", redact]
    assert deliver(receiver.url).json()["ticket_id"] == "DEV-1"


@pytest.mark.parametrize("left_out", ["change", "export"])
def test_an_event_without_a_change_or_an_export_gets_422(start: Callable[..., LocalReceiver], left_out: str) -> None:
    event = {name: value for name, value in json.loads(event_of(TicketEventType.FIXED)).items() if name != left_out}
    answer = deliver(start().url, json.dumps(event).encode())
    assert (answer.status_code, answer.json()) == (422, {"code": "WEBHOOK_VALIDATION_FAILED"})


@pytest.mark.parametrize("body_format", list(BodyFormat))
def test_tickets_and_test_events_are_read_in_every_format(
    start: Callable[..., LocalReceiver], body_format: BodyFormat
) -> None:
    receiver = start()
    source, ticket = Source("finding", "fnd_1"), Ticket("An image has no alt text", "", "low", None, (), {"rule": "alt"})
    bodies = (
        delivery_body("exp_1", "tgt_1", source, ticket.record(), format_rfc3339(NOW)),
        ping_body(PingJob("png_1", NOW, "tgt_1", 1, "Tracker", "https://tracker.example.com/", None)),
    )
    answers = [deliver(receiver.url, formatted(body, body_format).body) for body in bodies]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [(each.kind, each.export_id, each.title) for each in receiver.received] == [
        ("ticket.export", "exp_1", "An image has no alt text"),
        ("target.ping", "png_1", None),
    ]


@pytest.mark.parametrize(
    "value",
    [
        {"specversion": "1.0", "data": "ticket"},
        {"runs": []},
        {"runs": [{"properties": {"riskrelay": {"type": "ticket.export"}}, "tool": {"driver": {"rules": [{}]}}}]},
    ],
)
def test_an_envelope_without_a_ticket_gets_422(start: Callable[..., LocalReceiver], value: object) -> None:
    assert deliver(start().url, json.dumps(value).encode()).status_code == 422


def test_stopping_does_not_wait_for_a_delay(start: Callable[..., LocalReceiver]) -> None:
    arrived: queue.Queue[Received] = queue.Queue()
    receiver = start(faults=FaultInjection(delay_s=60), on_received=arrived.put)
    failures: list[Exception] = []

    def send() -> None:
        try:
            deliver(receiver.url)
        except requests.ConnectionError as error:
            failures.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    assert arrived.get(timeout=10).response.status == 200
    began = time.monotonic()
    receiver.stop()
    sender.join(10)
    assert time.monotonic() - began < 5
    assert len(failures) == 1


# ── the wire ───────────────────────────────────────────────────────────────


def raw(receiver: LocalReceiver, request: bytes) -> bytes:
    """Send bytes, close the sending half, and read until the receiver closes the connection."""
    host, port = receiver.url.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_one_connection_carries_many_deliveries_without_a_pause(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    with requests.Session() as session:
        began = time.monotonic()
        assert {deliver(receiver.url, session=session).status_code for _ in range(50)} == {200}
        took_s = time.monotonic() - began
        pools = session.get_adapter(receiver.url).poolmanager.pools  # type: ignore[attr-defined]  # attribute of HTTPAdapter, its actual class
        assert [pools[key].num_connections for key in pools.keys()] == [1]  # noqa: SIM118 - no plain dict
    assert took_s < 1.5  # a response in two packets takes 40 ms each


@pytest.mark.parametrize(
    "length",
    # The fourth one is a digit for isdigit(), but not for int().
    [None, "-1", "two", "\u00b2", str(MAX_BODY_BYTES + 1), "9" * 5000],
)
def test_a_body_of_unknown_or_enormous_length_is_refused_without_being_read(
    start: Callable[..., LocalReceiver], length: str | None
) -> None:
    receiver = start()
    head = "POST / HTTP/1.1\r\nHost: x\r\n" + (f"Content-Length: {length}\r\n" if length else "") + "\r\n"
    answer = raw(receiver, head.encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Connection: close" in answer
    assert receiver.received == []


def test_an_incomplete_body_is_not_recorded(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    assert raw(receiver, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{}") == b""
    assert receiver.received == []


def test_only_post_is_allowed(start: Callable[..., LocalReceiver]) -> None:
    answer = requests.get(start().url, timeout=10)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


def test_requests_of_many_concurrent_senders_are_all_received(start: Callable[..., LocalReceiver]) -> None:
    reported: list[Received] = []
    receiver = start(on_received=reported.append)
    senders = [
        threading.Thread(target=deliver, args=(receiver.url,), kwargs={"Idempotency_Key": f"exp_{number}"})
        for number in range(20)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(20)
    assert len({received.idempotency_key for received in receiver.received}) == 20
    assert reported == receiver.received
    assert receiver.count == 20


def test_a_stopped_receiver_closes_its_connections_and_frees_its_port(start: Callable[..., LocalReceiver]) -> None:
    receiver = start()
    with requests.Session() as session:  # a kept-alive connection must not outlive it
        deliver(receiver.url, session=session)
        receiver.stop()
        receiver.stop()
        with pytest.raises(requests.ConnectionError):
            deliver(receiver.url, session=session)
    port = int(receiver.url.rstrip("/").rpartition(":")[2])
    again = start(port=port)
    assert deliver(again.url).status_code == 200


# ── the command ────────────────────────────────────────────────────────────


class Listening:
    """`listen` as a subprocess in an empty folder, with the secret in its environment."""

    def __init__(self, folder: Path, *arguments: str, secret: bytes | None = SECRET, stdin: bytes = b"") -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WEBHOOK_SECRET")}
        if secret is not None:
            environment["WEBHOOK_SECRET"] = secret.decode()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from bin.commands.tools.listen import listen; listen()", *arguments],
            cwd=folder,
            env=environment | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(stdin)
        self.process.stdin.close()
        self.process.stdin = None

    def url(self, *, on_stderr: bool = False) -> str:
        """Wait for the first line, and return the address in it."""
        stream = self.process.stderr if on_stderr else self.process.stdout
        assert stream is not None
        line = stream.readline().decode()
        assert line.startswith("Listening on http://127.0.0.1:")
        assert line.endswith("/ (Ctrl-C to stop)\n")
        return line.split()[2]

    def finish(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Stop it with a signal, or wait until it exits; return exit code, standard output and error."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Listening]]:
    started: list[Listening] = []

    def runner(*arguments: str, **options: Any) -> Listening:
        started.append(Listening(tmp_path, *arguments, **options))
        return started[-1]

    yield runner
    for listening in started:
        if listening.process.poll() is None:
            listening.process.kill()
            listening.process.communicate()


def now() -> int:
    return int(time.time())


def test_listen_prints_a_block_for_each_request_and_stops_on_ctrl_c(run: Callable[..., Listening]) -> None:
    listening = run("--port", "0", "--fail", "503", "--times", "2", "--fail", "429", "--retry-after", "5")
    url = listening.url()
    statuses = [deliver(url, at=now()).status_code for _ in range(5)]
    deliver(url, at=now(), secret=b"other")
    assert statuses == [503, 503, 429, 429, 200]
    code, out, err = listening.finish(signal.SIGINT)
    assert code == 0
    assert out.count("  request    att_1\n  export     exp_1\n  title      Image without alt text\n") == 6
    assert out.count("  signature  ok\n") == 5
    assert out.count(", Retry-After 5\n") == 4
    assert "  response   200 DEV-1\n" in out
    assert out.count("(repeat: ") == 1
    assert "  signature  signature wrong: signed with another secret" in out
    assert "Stopped after 6 requests." in err
    assert SECRET.decode() not in out + err


def test_listen_prints_the_expected_event_type_after_an_unknown_one(run: Callable[..., Listening]) -> None:
    listening = run("--port", "0", "--fail", "503")
    url = listening.url()
    unknown = body_of().replace(b"ticket.export", b"ticket.closed")
    assert [deliver(url, body, at=now()).status_code for body in (unknown, unknown, body_of())] == [503, 422, 200]
    _, out, _ = listening.finish(signal.SIGINT)
    assert out.count("expected a ticket.export") == 1
    assert "  response   422 WEBHOOK_VALIDATION_FAILED: expected a ticket.export" in out


def test_listen_prints_and_saves_events(run: Callable[..., Listening], tmp_path: Path) -> None:
    listening = run("--port", "0", "--save", "kept")
    url = listening.url()
    deliver(url, at=now())
    deliver(url, event_of(TicketEventType.REOPENED), at=now(), Idempotency_Key="evt_1")
    _, out, _ = listening.finish(signal.SIGINT)
    assert "ticket.reopened" in out
    assert "  places     1 added, 2 fixed, 3 open\n" in out
    assert "  response   200 open\n" in out
    saved = [saved_requests.read(path) for path in sorted((tmp_path / "kept").iterdir())]
    assert [each.body for each in saved] == [body_of(), event_of(TicketEventType.REOPENED)]


def test_json_prints_one_line_per_request_on_standard_output_and_nothing_else(run: Callable[..., Listening]) -> None:
    listening = run("--port", "0", "--json", "--fail", "429", "--retry-after", "1")
    url = listening.url(on_stderr=True)
    for _ in range(2):
        deliver(url, at=now())
    code, out, err = listening.finish(signal.SIGTERM)
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0
    assert (first["status"], first["retry_after"], first["signature"]) == (429, 1, "ok")
    assert (second["status"], second["retry_after"], second["repeat"]) == (200, None, False)
    assert second["answer"]["ticket_id"] == "DEV-1"
    assert (second["export_id"], second["request_id"], second["type"]) == ("exp_1", "att_1", "ticket.export")
    assert SECRET.decode() not in out + err


def test_a_wrong_signature_is_diagnosed(run: Callable[..., Listening]) -> None:
    listening = run("--port", "0")
    url, body = listening.url(), json.dumps({"id": "exp_1", "type": "ticket.export"}, indent=1).encode()
    at, nonce = now(), "b" * 32
    compact = json.dumps(json.loads(body), separators=(",", ":")).encode()
    for signature in (sign(SECRET, at, nonce, compact), sign(SECRET + b"\n", at, nonce, body), "sha256=" + "0" * 64):
        changed: dict[str, Any] = {NONCE_HEADER.replace("-", "_"): nonce, SIGNATURE_HEADER.replace("-", "_"): signature}
        assert deliver(url, body, at=at, **changed).status_code == 401
    _, out, err = listening.finish(signal.SIGTERM)
    assert [line for line in out.splitlines() if line.startswith("  diagnosis")] == [
        "  diagnosis  matches the body re-serialized compact: sign and verify the raw bytes, not re-serialized JSON",
        "  diagnosis  matches the secret with a trailing newline: compare the two secrets byte for byte",
    ]
    assert SECRET.decode() not in out + err


def test_requests_are_saved_byte_for_byte_and_readable_by_their_owner_only(
    run: Callable[..., Listening], tmp_path: Path
) -> None:
    folder = tmp_path / "kept" / "requests"
    listening = run("--port", "0", "--save", str(folder), "--json", "--drop", "1")
    url = listening.url(on_stderr=True)
    with pytest.raises(requests.ConnectionError):
        deliver(url, body_of("Größe"), at=now())
    deliver(url, b"\xff\r\n\r\nno JSON", at=now(), Idempotency_Key="../../etc/x")
    _, out, err = listening.finish(signal.SIGTERM)
    first, second = (json.loads(line) for line in out.splitlines())
    paths = sorted(folder.iterdir())
    assert [str(path) for path in paths] == [first["saved"], second["saved"]]
    assert (first["status"], first["answer"], second["status"]) == (None, None, 422)
    assert [path.name.partition("-")[2] for path in paths] == ["exp_1.http", "etcx.http"]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    head, _, body = paths[1].read_bytes().partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"POST / HTTP/1.1", b"\xff\r\n\r\nno JSON")
    assert b"\r\nX-Request-Id: att_1\r\n" in head
    assert SECRET not in paths[0].read_bytes() + out.encode() + err.encode()


def test_a_folder_that_cannot_be_written_is_reported_and_the_response_is_sent(
    run: Callable[..., Listening], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    listening = run("--port", "0", "--save", str(tmp_path / "file" / "folder"))
    assert deliver(listening.url(), at=now()).status_code == 200
    _, out, err = listening.finish(signal.SIGTERM)
    assert "  response   200 DEV-1\n" in out
    assert f"Cannot save the request in {tmp_path}/file/folder: Not a directory." in err


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=["colours", "none"])
def test_a_typed_secret_is_not_echoed_and_colours_follow_no_color(tmp_path: Path, variables: dict[str, str]) -> None:
    terminal = Terminal(tmp_path, "listen", "--port", "0", "--secret-stdin", **variables)
    terminal.read_until("Secret: ")
    terminal.type(SECRET.decode() + "\n")
    url = terminal.read_until("/ (Ctrl-C to stop)").split()[-4]
    assert deliver(url, at=now()).status_code == 200
    terminal.read_until("DEV-1")
    terminal.process.send_signal(signal.SIGTERM)
    shown = terminal.read_until("Stopped after 1 requests.")
    assert terminal.end() == 0
    assert ("\x1b[32mok\x1b[0m" in shown) == (not variables)
    assert ("\x1b[" in shown) == (not variables)
    assert SECRET.decode() not in shown


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"", b"\nanother line\n"])
def test_the_secret_can_come_from_standard_input(run: Callable[..., Listening], ending: bytes) -> None:
    listening = run("--port", "0", "--secret-stdin", secret=b"not this one", stdin=SECRET + ending)
    assert deliver(listening.url(), at=now()).status_code == 200


def test_only_the_newline_is_stripped_from_the_secret(run: Callable[..., Listening]) -> None:
    listening = run("--port", "0", "--secret-stdin", secret=None, stdin=b" spaced \n")
    url = listening.url()
    assert deliver(url, at=now(), secret=b" spaced ").status_code == 200
    assert deliver(url, at=now(), secret=b"spaced").status_code == 401


def test_control_characters_in_a_request_are_not_printed(run: Callable[..., Listening]) -> None:
    listening = run("--port", "0")
    url = listening.url()
    titles = ["\x1b[2Jgone\r\nsignature  ok", "\ud800 half", "x" * 5000]
    assert [deliver(url, body_of(title), at=now()).status_code for title in titles] == [200, 200, 200]
    _, out, _ = listening.finish(signal.SIGTERM)
    assert "  title      \\u001b[2Jgone\\u000d\\u000asignature  ok\n" in out
    assert "  title      \\ud800 half\n" in out
    assert max(map(len, out.splitlines())) < 250


@pytest.mark.parametrize("arguments", [[], ["--secret-stdin"]])
def test_without_a_secret_the_command_reports_an_error_and_does_not_listen(
    run: Callable[..., Listening], arguments: list[str]
) -> None:
    code, out, err = run("--port", "0", *arguments, secret=None, stdin=b"\n").finish()
    assert (code, out) == (1, "")
    assert "WEBHOOK_SECRET" in err
    assert "--secret-stdin" in err


def test_a_port_in_use_is_reported_in_one_line(run: Callable[..., Listening], start: Callable[..., LocalReceiver]) -> None:
    port = start().url.rstrip("/").rpartition(":")[2]
    code, out, err = run("--port", port).finish()
    assert (code, out) == (1, "")
    cause = f"Cannot listen on 127.0.0.1 port {port}: Address already in use."
    assert err == f"riskrelay: {cause} Choose another with --port.\n"


def test_invalid_settings_are_reported_with_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_PROCESSES", "many")
    result = CliRunner().invoke(listen, ["--port", "0"])
    assert result.exit_code == 2
    assert "WEB_PROCESSES" in result.output


@pytest.mark.parametrize(
    "arguments", [["--fail", "200"], ["--fail", "600"], ["--times", "0"], ["--port", "65536"], ["--delay", "-1"]]
)
def test_invalid_options_are_wrong_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(listen, arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output


def test_the_help_shows_an_example_and_the_exit_codes() -> None:
    lines = [line.strip() for line in CliRunner().invoke(riskrelay, ["listen", "--help"]).output.splitlines()]
    assert "riskrelay listen --port 9000 --fail 503 --times 2 --retry-after 5" in lines
    assert lines[lines.index("Exit codes:") + 1].startswith("0  stopped")
