"""The example receivers of each language: test vectors, deliveries by a real worker, and invalid requests.

The deliveries to all receivers run at the same time, because most of their duration is waiting.
"""

import http.client
import itertools
import json
import shutil
import socket
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from bin.commands.tools.trigger import trigger
from runtime.clock import utc_now
from schemas.exports.record import Export
from storage.db.engine import close_database, connection, open_database, rows
from storage.exports import queries
from storage.secrets.vault import Vault
from storage.targets import pings, targets
from tests.examples.receiver_processes import LANGUAGES, VECTORS, Language, Programs, ReceiverProcess, run
from tests.support.factories import ENCRYPTION_KEY, WEBHOOK_SECRET, Customer, make_approved, make_customer, make_target
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.processes.workers import WorkerProcess, notify_workers, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.servers.runtimes import runtime
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

#: The first compilation of Go's standard library takes a minute of both processors.
pytestmark = pytest.mark.timeout(400)

#: The receivers accept both secrets, as during a rotation.
NEW_SECRET: Final = "the successor: é"
SECRETS: Final = (NEW_SECRET, WEBHOOK_SECRET)
OTHER_SECRET: Final = "of another receiver"
#: Generous for a busy machine.
TIMEOUT_S: Final = 60.0
#: More than the receivers' limit.
HUGE: Final = 5 * 1024 * 1024

_numbers: Final = itertools.count(1)


@pytest.fixture(scope="module", params=LANGUAGES, ids=lambda language: language.name)
def language(request: pytest.FixtureRequest) -> Language:
    """A language; skips the test if it is not installed."""
    found: Language = request.param
    runtime(found.command)
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The built receivers."""
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def receivers(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ReceiverProcess]]:
    """A receiver per installed language, and one limited to a request per minute: `php`, `php limited`."""
    folder = tmp_path_factory.mktemp("receivers")
    here = [language for language in LANGUAGES if language.is_here]
    with ThreadPoolExecutor() as pool:
        list(pool.map(programs.of, here))
    with ExitStack() as stack:
        made = {}
        for language in here:
            program = programs.of(language)
            made[language.name] = ReceiverProcess(language, program, folder, SECRETS)
            made[f"{language.name} limited"] = ReceiverProcess(language, program, folder, SECRETS, rate=1)
        for receiver in made.values():
            stack.callback(receiver.kill)
        for receiver in made.values():
            receiver.wait_until_listening()
        yield made


# --- test vectors


def test_every_vector_gets_the_expected_response(language: Language, programs: Programs) -> None:
    done = run([*programs.of(language), "--vectors", str(VECTORS)])
    count = len(json.loads(VECTORS.read_bytes())["vectors"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{count} passed, 0 failed\n", "")


def test_a_vector_with_another_response_is_reported(language: Language, programs: Programs, tmp_path: Path) -> None:
    [good, *others] = json.loads(VECTORS.read_bytes())["vectors"][:4]
    changed = {**good, "expect": {"status": 401, "code": "WEBHOOK_SIGNATURE_INVALID", "ticket": False}}
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps({"vectors": [changed, *others]}))
    done = run([*programs.of(language), "--vectors", str(path)])
    assert (done.returncode, done.stdout) == (1, "failed: good\n3 passed, 1 failed\n")


@pytest.mark.parametrize("after", [{"status": "open", "texts": 2}, {"status": "closed", "texts": 1}, None])
def test_a_vector_with_other_resulting_tickets_is_reported(
    language: Language, programs: Programs, tmp_path: Path, after: dict[str, Any] | None
) -> None:
    """The vectors detect a receiver that accepts an event and does not apply it."""
    [fixed] = [each for each in json.loads(VECTORS.read_bytes())["vectors"] if each["name"] == "event: fixed"]
    [export_id] = fixed["after"]
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps({"vectors": [fixed, {**fixed, "after": {export_id: after} if after else {}}]}))
    done = run([*programs.of(language), "--vectors", str(path)])
    assert (done.returncode, done.stdout) == (1, "failed: event: fixed\n1 passed, 1 failed\n")


def test_a_receiver_without_a_secret_exits_with_2(language: Language, programs: Programs) -> None:
    done = run(programs.of(language))
    assert done.returncode == 2
    assert "WEBHOOK_SECRET" in done.stdout + done.stderr


def test_java_exits_with_2_if_the_locale_cannot_decode_the_secret(programs: Programs) -> None:
    """Other languages use the bytes unchanged."""
    [java] = [each for each in LANGUAGES if each.name == "java"]
    runtime(java.command)
    done = run(programs.of(java), WEBHOOK_SECRET=NEW_SECRET, LC_ALL="C")
    assert done.returncode == 2
    assert "LC_ALL=C.UTF-8" in done.stderr


# --- deliveries


class LosingRelay(LoopbackServer):
    """Forwards requests to a receiver, drops its first response, and collects the ticket ids of all responses."""

    def __init__(self, receiver: ReceiverProcess) -> None:
        self.tickets: list[str] = []
        self._receiver = receiver
        super().__init__(self._forward)

    def _forward(self, peer: Peer) -> None:
        while request := peer.read():
            status, body = forward(request, self._receiver)
            self.tickets.append(json.loads(body)["id"])
            if len(self.tickets) == 1:
                return
            peer.answer(status, body)


def forward(request: ReceivedRequest, receiver: ReceiverProcess) -> tuple[int, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=TIMEOUT_S)
    try:
        client.request("POST", "/", request.body, request.headers)
        response = client.getresponse()
        return response.status, response.read()
    finally:
        client.close()


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The deliveries to one receiver: ids of exports and of a ping, and the relay that drops a response."""

    plain: list[str]
    signed_with_new: str
    signed_with_other: str
    response_lost: str
    limited: list[str]
    ping: str
    relay: LosingRelay

    @property
    def is_over(self) -> bool:
        """Whether all results are final."""
        finished = [*self.plain, self.signed_with_new, self.signed_with_other, self.response_lost]
        return (
            all(queries.get(export_id).status in ("exported", "failed") for export_id in finished)
            and all(queries.get(export_id).last_attempt for export_id in self.limited)
            and pings.get(self.ping).is_over
        )


def start_deliveries(
    customer: Customer, receiver: ReceiverProcess, limited: ReceiverProcess, relay: LosingRelay
) -> Deliveries:
    """Approve the exports for one receiver and request its ping."""
    now = utc_now()
    plain, new, other = (make_target(customer, receiver.url) for _ in range(3))
    vault = Vault([b64decode(ENCRYPTION_KEY)])
    targets.set_secret(new.id, NEW_SECRET, vault, now)
    targets.set_secret(other.id, OTHER_SECRET, vault, now)
    lossy, slow = make_target(customer, relay.url()), make_target(customer, limited.url)
    return Deliveries(
        plain=[make_approved(customer, plain.id, now) for _ in range(3)],
        signed_with_new=make_approved(customer, new.id, now),
        signed_with_other=make_approved(customer, other.id, now),
        response_lost=make_approved(customer, lossy.id, now),
        limited=[make_approved(customer, slow.id, now) for _ in range(2)],
        ping=pings.request(plain.id, customer.account_id, now, "user:test"),
        relay=relay,
    )


@pytest.fixture(scope="module")
def all_deliveries(
    receivers: dict[str, ReceiverProcess],
    migrated_sqlite: Path,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Deliveries]]:
    """The finished deliveries to each receiver, on SQLite only: the database makes no difference to receivers."""
    folder = tmp_path_factory.mktemp("installation")
    shutil.copyfile(migrated_sqlite, folder / "riskrelay.db")
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    redis_server.flush()
    open_database(url)
    with ExitStack() as stack:
        stack.callback(close_database)
        stack.enter_context(connection())
        customer = make_customer()
        deliveries = {
            name: start_deliveries(
                customer, receiver, receivers[f"{name} limited"], stack.enter_context(LosingRelay(receiver))
            )
            for name, receiver in receivers.items()
            if f"{name} limited" in receivers
        }
        with WorkerProcess(folder, url, redis_server.url, RETRY_SCHEDULE="1,1,1,1"):
            notify_workers(redis_server)
            wait_until(lambda: all(each.is_over for each in deliveries.values()), TIMEOUT_S)
        yield deliveries


@pytest.fixture
def deliveries(language: Language, all_deliveries: dict[str, Deliveries]) -> Deliveries:
    """The deliveries to the receiver of one language."""
    return all_deliveries[language.name]


def outcome(export_id: str) -> tuple[str, str | None, int | None]:
    """Return the status of an export, and the code and status of its last response."""
    export = queries.get(export_id)
    assert export.last_attempt is not None
    return export.status.value, export.last_attempt.error_code, export.last_attempt.response_status


def test_a_delivery_creates_a_ticket_that_the_export_records(deliveries: Deliveries) -> None:
    for export_id in (*deliveries.plain, deliveries.signed_with_new):
        assert outcome(export_id) == ("exported", None, 200)
        export = queries.get(export_id)
        assert export.provider_ticket_url == f"https://tracker.example/{export.provider_ticket_id}"


def test_every_delivery_creates_its_own_ticket(deliveries: Deliveries) -> None:
    delivered: list[Export] = [
        queries.get(each) for each in (*deliveries.plain, deliveries.signed_with_new, deliveries.response_lost)
    ]
    assert len({export.provider_ticket_id for export in delivered}) == 5


def test_a_delivery_with_a_lost_response_is_repeated_and_creates_no_second_ticket(deliveries: Deliveries) -> None:
    assert outcome(deliveries.response_lost) == ("exported", None, 200)
    assert queries.get(deliveries.response_lost).attempts == 2
    first, again = deliveries.relay.tickets
    assert first == again == queries.get(deliveries.response_lost).provider_ticket_id


def test_a_delivery_with_another_secret_fails_with_the_receivers_code(deliveries: Deliveries) -> None:
    export = queries.get(deliveries.signed_with_other)
    assert outcome(export.id) == ("failed", "WEBHOOK_SIGNATURE_INVALID", 401)
    assert export.provider_ticket_id is None


def test_a_delivery_over_the_rate_limit_waits_for_retry_after(deliveries: Deliveries) -> None:
    first, second = sorted(deliveries.limited, key=lambda export_id: queries.get(export_id).status)
    assert outcome(first) == ("exported", None, 200)
    assert outcome(second) == ("retry_scheduled", "WEBHOOK_RATE_LIMITED", 429)
    [(retry_after_s, waits_ms)] = rows(
        "SELECT a.retry_after_s, e.due_at - a.started_at FROM exports e, attempts a WHERE a.export_id = e.id AND e.id = ?",
        (second,),
    )
    assert 1 <= retry_after_s <= 60
    assert waits_ms >= 1000 * retry_after_s


def test_a_ping_is_accepted_and_creates_no_ticket(deliveries: Deliveries) -> None:
    result = pings.get(deliveries.ping).result
    assert result is not None
    assert (result.delivered, result.response_status, result.error_code) == (True, 200, None)


# --- invalid requests


@pytest.fixture
def receiver(language: Language, receivers: dict[str, ReceiverProcess]) -> ReceiverProcess:
    """The receiver of one language."""
    return receivers[language.name]


def signed(body: bytes, at: int | None = None) -> dict[str, str]:
    """Return the headers of a valid request with a new nonce."""
    at, nonce = at or int(time.time()), f"{next(_numbers):032x}"
    return {
        TIMESTAMP_HEADER: str(at),
        NONCE_HEADER: nonce,
        SIGNATURE_HEADER: sign(NEW_SECRET.encode(), at, nonce, body),
        "Idempotency-Key": "exp_by_hand",
        "Content-Type": "application/json",
    }


def head(body: bytes, *further: str, length: int | None = None) -> bytes:
    lines = [f"{name}: {value}" for name, value in signed(body).items()]
    size = len(body) if length is None else length
    return "\r\n".join(
        ["POST / HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {size}", *lines, *further, "", ""]
    ).encode()


def exchange(receiver: ReceiverProcess, *pieces: bytes) -> bytes:
    """Send bytes and return the response until the receiver closes; an early close may lose the response."""
    response = b""
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=TIMEOUT_S) as wire:
        try:
            for piece in pieces:
                wire.sendall(piece)
            while more := wire.recv(65536):
                response += more
        except ConnectionError:
            return response
    return response


def event(title: Any = "By hand") -> bytes:
    return json.dumps({"type": "ticket.export", "ticket": {"title": title}}).encode()


def status_of(response: bytes) -> int:
    return int(response.split(maxsplit=2)[1])


def is_healthy(receiver: ReceiverProcess) -> bool:
    """Return whether a valid request still gets a 200."""
    return status_of(exchange(receiver, head(event()), event())) == 200


def test_an_unsigned_request_is_rejected(receiver: ReceiverProcess) -> None:
    bare = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    response = exchange(receiver, bare)
    assert status_of(response) == 401
    assert b"WEBHOOK_SIGNATURE_INVALID" in response


@pytest.mark.parametrize("name", [TIMESTAMP_HEADER, NONCE_HEADER, SIGNATURE_HEADER])
def test_a_repeated_header_is_rejected(receiver: ReceiverProcess, name: str) -> None:
    doubled = f"{name}: {signed(event())[name]}"
    assert status_of(exchange(receiver, head(event(), doubled), event())) == 401


def test_a_replayed_request_is_rejected(receiver: ReceiverProcess) -> None:
    recorded = head(event()) + event()
    assert [status_of(exchange(receiver, recorded)) for _ in range(2)] == [200, 401]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b"[" * 50_000,
        b'{"type": "ticket.export"}',
        b'{"type": "ticket.export", "ticket": []}',
        event(title=7),
        # a receiver must not accept a type it does not know
        b'{"type": "ticket.closed", "ticket": {"title": "From a later version"}}',
    ],
)
def test_a_signed_body_without_a_ticket_is_invalid(receiver: ReceiverProcess, body: bytes) -> None:
    response = exchange(receiver, head(body), body)
    assert status_of(response) == 422
    assert b"WEBHOOK_VALIDATION_FAILED" in response


@pytest.mark.parametrize("title", ['\\ " / \b\f\n\r\t', "é \u200b 👟", "\x01", ""])
def test_a_title_may_be_any_text(receiver: ReceiverProcess, title: str) -> None:
    for is_ascii in (True, False):
        body = json.dumps({"ticket": {"title": title}, "type": "ticket.export"}, ensure_ascii=is_ascii).encode()
        assert status_of(exchange(receiver, head(body), body)) == 200


def ticket_event(name: str, export_id: str) -> bytes:
    change = {"places_added": 0, "places_fixed": 2, "places_open": 0, "places": []}
    ticket = {"title": None if name == "redact" else "By hand", "digest": "sha256:0"}
    return json.dumps({"type": f"ticket.{name}", "export": {"id": export_id}, "ticket": ticket, "change": change}).encode()


def send(receiver: ReceiverProcess, body: bytes, key: str) -> tuple[int, dict[str, str]]:
    response = exchange(receiver, head(body).replace(b"exp_by_hand", key.encode()), body)
    content = response.partition(b"\r\n\r\n")[2]
    found: dict[str, str] = json.loads(content[content.index(b"{") : content.rindex(b"}") + 1])
    return status_of(response), found


def test_a_ticket_keeps_its_id_through_its_events(receiver: ReceiverProcess) -> None:
    key = f"exp_{next(_numbers)}"
    status, created = send(receiver, event(), key)
    assert status == 200
    for number, name in enumerate(("updated", "fixed", "fixed", "reopened", "redact")):
        assert send(receiver, ticket_event(name, key), f"evt_{key}_{number % 4}") == (200, {})
    assert send(receiver, event(), key) == (200, created)  # a late repeat creates no ticket
    assert send(receiver, ticket_event("fixed", "exp_unknown"), f"evt_{key}_9") == (200, {})


def test_php_erases_the_content_of_a_redacted_ticket_from_its_file(receivers: dict[str, ReceiverProcess]) -> None:
    """The other languages keep their tickets in memory."""
    runtime("php")
    receiver, key, state = receivers["php"], f"exp_{next(_numbers)}", receivers["php"].log.with_suffix(".json")
    send(receiver, event("About Anna"), key)
    assert "About Anna" in state.read_text()
    assert state.stat().st_mode & 0o077 == 0
    assert send(receiver, ticket_event("redact", key), f"evt_{key}") == (200, {})
    assert "About Anna" not in state.read_text()
    assert json.loads(state.read_text())["tickets"][key]["erased_by"] == f"evt_{key}"


def test_a_huge_body_is_rejected(receiver: ReceiverProcess) -> None:
    body = b" " * HUGE
    response = exchange(receiver, head(body), body)
    # A receiver that closes the connection early may lose its response.
    assert response == b"" or status_of(response) == 413
    assert is_healthy(receiver)


def test_an_incomplete_body_does_not_delay_other_requests(receiver: ReceiverProcess) -> None:
    half = head(event(), length=len(event()))
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=TIMEOUT_S) as slow:
        slow.sendall(half + event()[:10])
        assert is_healthy(receiver)
        slow.sendall(event()[10:])
        assert status_of(slow.recv(65536)) == 200


def test_the_receiver_works_after_a_connection_closed_within_a_body(receiver: ReceiverProcess) -> None:
    for length in (1, 10, 2000):
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=TIMEOUT_S) as closing:
            closing.sendall(head(event(), length=length + len(event())) + event()[:length])
    assert is_healthy(receiver)


@pytest.mark.parametrize(
    "pieces",
    [(head(b"x" * 99), b"x" * 10), (head(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"), b"zz\r\n")],
    ids=["half a body", "no chunk"],
)
def test_an_incomplete_request_is_never_accepted(receiver: ReceiverProcess, pieces: tuple[bytes, ...]) -> None:
    """Some servers respond with 200 if the program sends no response."""
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=TIMEOUT_S) as wire:
        wire.sendall(b"".join(pieces))
        wire.shutdown(socket.SHUT_WR)
        response = b"".join(iter(lambda: wire.recv(65536), b""))
    assert response == b"" or status_of(response) >= 400
    assert is_healthy(receiver)


def test_an_invalid_key_does_not_clear_the_nonces(receiver: ReceiverProcess) -> None:
    recorded = head(event()) + event()
    assert status_of(exchange(receiver, recorded)) == 200
    odd = head(event()).replace(b"exp_by_hand", b"\xff\xfe")
    assert status_of(exchange(receiver, odd, event())) in (200, 422)
    assert status_of(exchange(receiver, recorded)) == 401


def test_requests_other_than_post_are_rejected(receiver: ReceiverProcess) -> None:
    assert status_of(exchange(receiver, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) == 405
    assert b" 200 " not in exchange(receiver, b"no HTTP at all\r\n\r\n")
    assert is_healthy(receiver)


def test_concurrent_copies_of_a_request_create_one_ticket(receiver: ReceiverProcess) -> None:
    """Only one copy of a request is accepted; a delivery repeated with new nonces creates one ticket."""
    copy = head(event()) + event()
    with ThreadPoolExecutor(8) as pool:
        copies = list(pool.map(lambda _: status_of(exchange(receiver, copy)), range(8)))
        repeats = list(pool.map(lambda _: exchange(receiver, head(event()) + event()), range(8)))
    assert sorted(copies) == [200] + 7 * [401]
    tickets = {response.partition(b"tracker.example/")[2].split(b'"')[0] for response in repeats}
    assert len(tickets) == 1
    assert tickets != {b""}


def test_every_case_of_trigger_all_succeeds(receiver: ReceiverProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", WEBHOOK_SECRET)
    done = CliRunner().invoke(trigger, ["--all", "--to", receiver.url])
    assert (done.exit_code, "wrong" in done.stdout.split()) == (0, False), done.output


def test_a_python_program_can_import_the_receivers_verify(tmp_path: Path) -> None:
    body, at, nonce = event(), 1_700_000_000, "0" * 32
    (tmp_path / "own.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(VECTORS.parent / 'receivers')!r})\n"
        "from receiver import verify\n"
        f"headers = {{'x-service-timestamp': '{at}', 'x-service-nonce': '{nonce}',\n"
        f"           'x-service-signature': {sign(b's', at, nonce, body)!r}}}\n"
        f"print([verify([secret], headers, {body!r}, {at}, lambda nonce: False) for secret in (b's', b't')])\n"
    )
    assert run([sys.executable, "-I", str(tmp_path / "own.py")]).stdout == "[True, False]\n"
