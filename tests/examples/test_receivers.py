"""The example receivers, each language's: the test vectors, real deliveries by the real worker, and senders of another kind.

What a worker brings about is begun for all of them at once and looked at afterwards: most of it is waiting.
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

from bin.commands.trigger import trigger
from runtime.clock import utc_now
from schemas.exports.record import Export
from storage.db.engine import close_database, connection, open_database, rows
from storage.exports import transitions
from storage.secrets.vault import Vault
from storage.targets import pings, targets
from tests.examples.receiver_processes import LANGUAGES, VECTORS, Language, Programs, ReceiverProcess, run
from tests.support.factories import ENCRYPTION_KEY, WEBHOOK_SECRET, Customer, make_approved, make_customer, make_target
from tests.support.fakes import LoopbackServer, Peer, Request
from tests.support.runtimes import runtime
from tests.support.servers import RedisServer
from tests.support.workers import WorkerProcess, notify_workers, wait_until
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

#: The first compilation of Go's standard library takes a minute of both processors.
pytestmark = pytest.mark.timeout(400)

#: The receivers know both of these, as while the first takes the place of the second.
NEW_SECRET: Final = "the successor: é"
SECRETS: Final = (NEW_SECRET, WEBHOOK_SECRET)
STRANGE_SECRET: Final = "of another receiver"
#: Longer than any receiver takes, whatever else the machine does.
PATIENCE_S: Final = 60.0
#: More than any receiver reads.
HUGE: Final = 5 * 1024 * 1024

_numbers: Final = itertools.count(1)


@pytest.fixture(scope="module", params=LANGUAGES, ids=lambda language: language.name)
def language(request: pytest.FixtureRequest) -> Language:
    """One of the languages, if it is here."""
    found: Language = request.param
    runtime(found.command)
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """What every language's receiver is built into."""
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def receivers(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ReceiverProcess]]:
    """A receiver in every language that is here, and one each that lets a request a minute through: `php`, `php limited`."""
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
            receiver.wait_until_it_listens()
        yield made


# --- the vectors


def test_every_vector_is_answered_as_it_says(language: Language, programs: Programs) -> None:
    told = run([*programs.of(language), "--vectors", str(VECTORS)])
    count = len(json.loads(VECTORS.read_bytes())["vectors"])
    assert (told.returncode, told.stdout, told.stderr) == (0, f"{count} passed, 0 failed\n", "")


def test_a_vector_that_is_answered_otherwise_is_named(language: Language, programs: Programs, tmp_path: Path) -> None:
    [good, *others] = json.loads(VECTORS.read_bytes())["vectors"][:4]
    changed = {**good, "expect": {"status": 401, "code": "WEBHOOK_SIGNATURE_INVALID", "ticket": False}}
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps({"vectors": [changed, *others]}))
    told = run([*programs.of(language), "--vectors", str(path)])
    assert (told.returncode, told.stdout) == (1, "failed: good\n3 passed, 1 failed\n")


def test_a_receiver_without_a_secret_says_so(language: Language, programs: Programs) -> None:
    told = run(programs.of(language))
    assert told.returncode == 2
    assert "WEBHOOK_SECRET" in told.stdout + told.stderr


def test_a_secret_that_the_locale_hides_stops_the_start_of_java(programs: Programs) -> None:
    """The other languages take the bytes as they are."""
    [java] = [each for each in LANGUAGES if each.name == "java"]
    runtime(java.command)
    told = run(programs.of(java), WEBHOOK_SECRET=NEW_SECRET, LC_ALL="C")
    assert told.returncode == 2
    assert "LC_ALL=C.UTF-8" in told.stderr


# --- deliveries


class LosingRelay(LoopbackServer):
    """Passes requests on to a receiver and hangs up in place of its first answer; keeps the tickets that it heard of."""

    def __init__(self, receiver: ReceiverProcess) -> None:
        self.tickets: list[str] = []
        self._receiver = receiver
        super().__init__(self._pass_on)

    def _pass_on(self, peer: Peer) -> None:
        while request := peer.read():
            status, body = passed_on(request, self._receiver)
            self.tickets.append(json.loads(body)["id"])
            if len(self.tickets) == 1:
                return
            peer.answer(status, body)


def passed_on(request: Request, receiver: ReceiverProcess) -> tuple[int, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=PATIENCE_S)
    try:
        client.request("POST", "/", request.body, request.headers)
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


@dataclass(frozen=True, slots=True)
class Story:
    """What was asked of a worker for one receiver: ids of exports and of a ping, and the relay that lost an answer."""

    plain: list[str]
    signed_with_new: str
    signed_strangely: str
    answer_lost: str
    limited: list[str]
    ping: str
    relay: LosingRelay

    @property
    def is_over(self) -> bool:
        """Whether everything has come out as it will."""
        ended = [*self.plain, self.signed_with_new, self.signed_strangely, self.answer_lost]
        return (
            all(transitions.get(export_id).status in ("exported", "failed") for export_id in ended)
            and all(transitions.get(export_id).last_attempt for export_id in self.limited)
            and pings.get(self.ping).is_over
        )


def begun(customer: Customer, receiver: ReceiverProcess, limited: ReceiverProcess, relay: LosingRelay) -> Story:
    """Approve what the story of one receiver is made of, and ask for its ping."""
    now = utc_now()
    plain, new, strange = (make_target(customer, receiver.url) for _ in range(3))
    vault = Vault([b64decode(ENCRYPTION_KEY)])
    targets.set_secret(new.id, NEW_SECRET, vault, now)
    targets.set_secret(strange.id, STRANGE_SECRET, vault, now)
    lossy, slow = make_target(customer, relay.url()), make_target(customer, limited.url)
    return Story(
        plain=[make_approved(customer, plain.id, now) for _ in range(3)],
        signed_with_new=make_approved(customer, new.id, now),
        signed_strangely=make_approved(customer, strange.id, now),
        answer_lost=make_approved(customer, lossy.id, now),
        limited=[make_approved(customer, slow.id, now) for _ in range(2)],
        ping=pings.request(plain.id, customer.account_id, now, "user:test"),
        relay=relay,
    )


@pytest.fixture(scope="module")
def stories(
    receivers: dict[str, ReceiverProcess],
    migrated_sqlite: Path,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Story]]:
    """The story of each receiver, when it is over. The database is SQLite: receivers cannot tell."""
    folder = tmp_path_factory.mktemp("installation")
    shutil.copyfile(migrated_sqlite, folder / "riskrelay.db")
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    redis_server.flush()
    open_database(url)
    with ExitStack() as stack:
        stack.callback(close_database)
        stack.enter_context(connection())
        customer = make_customer()
        told = {
            name: begun(customer, receiver, receivers[f"{name} limited"], stack.enter_context(LosingRelay(receiver)))
            for name, receiver in receivers.items()
            if f"{name} limited" in receivers
        }
        with WorkerProcess(folder, url, redis_server.url, RETRY_SCHEDULE="1,1,1,1"):
            notify_workers(redis_server)
            wait_until(lambda: all(story.is_over for story in told.values()), PATIENCE_S)
        yield told


@pytest.fixture
def story(language: Language, stories: dict[str, Story]) -> Story:
    """The story of one language's receiver."""
    return stories[language.name]


def outcome(export_id: str) -> tuple[str, str | None, int | None]:
    """Return where an export is, its receiver's code, and the status of its last answer."""
    export = transitions.get(export_id)
    assert export.last_attempt is not None
    return export.status.value, export.last_attempt.error_code, export.last_attempt.response_status


def test_a_delivery_becomes_a_ticket_that_the_export_tells_of(story: Story) -> None:
    for export_id in (*story.plain, story.signed_with_new):
        assert outcome(export_id) == ("exported", None, 200)
        export = transitions.get(export_id)
        assert export.provider_ticket_url == f"https://tracker.example/{export.provider_ticket_id}"


def test_every_delivery_has_a_ticket_of_its_own(story: Story) -> None:
    delivered: list[Export] = [transitions.get(each) for each in (*story.plain, story.signed_with_new, story.answer_lost)]
    assert len({export.provider_ticket_id for export in delivered}) == 5


def test_a_delivery_whose_answer_was_lost_comes_again_and_makes_no_second_ticket(story: Story) -> None:
    assert outcome(story.answer_lost) == ("exported", None, 200)
    assert transitions.get(story.answer_lost).attempts == 2
    first, again = story.relay.tickets
    assert first == again == transitions.get(story.answer_lost).provider_ticket_id


def test_a_delivery_under_another_secret_fails_by_the_receivers_code(story: Story) -> None:
    export = transitions.get(story.signed_strangely)
    assert outcome(export.id) == ("failed", "WEBHOOK_SIGNATURE_INVALID", 401)
    assert export.provider_ticket_id is None


def test_over_the_limit_a_delivery_waits_as_long_as_it_is_told_to(story: Story) -> None:
    first, second = sorted(story.limited, key=lambda export_id: transitions.get(export_id).status)
    assert outcome(first) == ("exported", None, 200)
    assert outcome(second) == ("retry_scheduled", "WEBHOOK_RATE_LIMITED", 429)
    [(told_s, waits_ms)] = rows(
        "SELECT a.retry_after_s, e.due_at - a.started_at FROM exports e, attempts a WHERE a.export_id = e.id AND e.id = ?",
        (second,),
    )
    assert 1 <= told_s <= 60
    assert waits_ms >= 1000 * told_s


def test_a_ping_is_answered_and_makes_no_ticket(story: Story) -> None:
    result = pings.get(story.ping).result
    assert result is not None
    assert (result.delivered, result.response_status, result.error_code) == (True, 200, None)


# --- other senders


@pytest.fixture
def receiver(language: Language, receivers: dict[str, ReceiverProcess]) -> ReceiverProcess:
    """One language's receiver."""
    return receivers[language.name]


def signed(body: bytes, at: int | None = None) -> dict[str, str]:
    """Return the headers of a good request, with a nonce of its own."""
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


def exchanged(receiver: ReceiverProcess, *pieces: bytes) -> bytes:
    """Send bytes and read what comes until the receiver hangs up; it may do so early, and then what came before is lost."""
    answer = b""
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=PATIENCE_S) as wire:
        try:
            for piece in pieces:
                wire.sendall(piece)
            while more := wire.recv(65536):
                answer += more
        except ConnectionError:
            return answer
    return answer


def event(title: Any = "By hand") -> bytes:
    return json.dumps({"type": "ticket.export", "ticket": {"title": title}}).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(maxsplit=2)[1])


def is_well(receiver: ReceiverProcess) -> bool:
    """Tell whether a good request is still answered well."""
    return status_of(exchanged(receiver, head(event()), event())) == 200


def test_a_request_of_a_stranger_is_refused(receiver: ReceiverProcess) -> None:
    bare = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    answer = exchanged(receiver, bare)
    assert status_of(answer) == 401
    assert b"WEBHOOK_SIGNATURE_INVALID" in answer


@pytest.mark.parametrize("name", [TIMESTAMP_HEADER, NONCE_HEADER, SIGNATURE_HEADER])
def test_a_header_that_is_there_twice_is_refused(receiver: ReceiverProcess, name: str) -> None:
    doubled = f"{name}: {signed(event())[name]}"
    assert status_of(exchanged(receiver, head(event(), doubled), event())) == 401


def test_a_request_that_was_recorded_is_refused(receiver: ReceiverProcess) -> None:
    recorded = head(event()) + event()
    assert [status_of(exchanged(receiver, recorded)) for _ in range(2)] == [200, 401]


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
        # what this receiver does not know it must not say to have
        b'{"type": "ticket.closed", "ticket": {"title": "From a later version"}}',
    ],
)
def test_a_signed_body_that_is_no_ticket_is_invalid(receiver: ReceiverProcess, body: bytes) -> None:
    answer = exchanged(receiver, head(body), body)
    assert status_of(answer) == 422
    assert b"WEBHOOK_VALIDATION_FAILED" in answer


@pytest.mark.parametrize("title", ['\\ " / \b\f\n\r\t', "é \u200b 👟", "\x01", ""])
def test_a_title_may_be_any_text(receiver: ReceiverProcess, title: str) -> None:
    for is_ascii in (True, False):
        body = json.dumps({"ticket": {"title": title}, "type": "ticket.export"}, ensure_ascii=is_ascii).encode()
        assert status_of(exchanged(receiver, head(body), body)) == 200


def test_a_huge_body_is_refused_and_forgotten(receiver: ReceiverProcess) -> None:
    body = b" " * HUGE
    answer = exchanged(receiver, head(body), body)
    # A receiver that hangs up on what it does not read may take its answer with it.
    assert answer == b"" or status_of(answer) == 413
    assert is_well(receiver)


def test_who_sends_half_a_body_holds_nobody_up(receiver: ReceiverProcess) -> None:
    half = head(event(), length=len(event()))
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=PATIENCE_S) as dawdling:
        dawdling.sendall(half + event()[:10])
        assert is_well(receiver)
        dawdling.sendall(event()[10:])
        assert status_of(dawdling.recv(65536)) == 200


def test_who_hangs_up_in_the_middle_is_forgotten(receiver: ReceiverProcess) -> None:
    for length in (1, 10, 2000):
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=PATIENCE_S) as leaving:
            leaving.sendall(head(event(), length=length + len(event())) + event()[:length])
    assert is_well(receiver)


@pytest.mark.parametrize(
    "pieces",
    [
        (head(b"x" * 99), b"x" * 10),
        (head(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"), b"zz\r\n"),
    ],
    ids=["half a body", "no chunk"],
)
def test_what_never_comes_whole_is_never_accepted(receiver: ReceiverProcess, pieces: tuple[bytes, ...]) -> None:
    """A server of its own accord says 200 where the program says nothing."""
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=PATIENCE_S) as wire:
        wire.sendall(b"".join(pieces))
        wire.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: wire.recv(65536), b""))
    assert answer == b"" or status_of(answer) >= 400
    assert is_well(receiver)


def test_no_key_makes_a_receiver_forget_what_it_has_seen(receiver: ReceiverProcess) -> None:
    recorded = head(event()) + event()
    assert status_of(exchanged(receiver, recorded)) == 200
    odd = head(event()).replace(b"exp_by_hand", b"\xff\xfe")
    assert status_of(exchanged(receiver, odd, event())) in (200, 422)
    assert status_of(exchanged(receiver, recorded)) == 401


def test_whatever_is_no_post_is_refused(receiver: ReceiverProcess) -> None:
    assert status_of(exchanged(receiver, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) == 405
    assert b" 200 " not in exchanged(receiver, b"no HTTP at all\r\n\r\n")
    assert is_well(receiver)


def test_copies_at_the_same_moment_make_one_ticket(receiver: ReceiverProcess) -> None:
    """Of one request only one copy passes; one delivery, sent again and again under new nonces, has one ticket."""
    copy = head(event()) + event()
    with ThreadPoolExecutor(8) as pool:
        copies = list(pool.map(lambda _: status_of(exchanged(receiver, copy)), range(8)))
        repeats = list(pool.map(lambda _: exchanged(receiver, head(event()) + event()), range(8)))
    assert sorted(copies) == [200] + 7 * [401]
    tickets = {answer.partition(b"tracker.example/")[2].split(b'"')[0] for answer in repeats}
    assert len(tickets) == 1
    assert tickets != {b""}


def test_a_check_of_every_outcome_finds_nothing_wrong(
    receiver: ReceiverProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEBHOOK_SECRET", WEBHOOK_SECRET)
    told = CliRunner().invoke(trigger, ["--all", "--to", receiver.url])
    assert (told.exit_code, "wrong" in told.stdout.split()) == (0, False), told.output


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
