"""Posts over real sockets: where they may go, what every kind of peer comes to, and that all of it ends in time."""

import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from schemas.delivery import Outcome
from schemas.target_url import TargetPolicy
from storage.name_lookup import Answer, LookupReason, NameLookup
from tests.fakes import FakeLookup, LoopbackServer, Peer, Request
from worker.http_client import MAX_ANSWER_BYTES, HttpClient

NAME: Final = "receiver.example.com"
HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "RiskRelay/test", "Idempotency-Key": "exp_1"}
BODY: Final = b'{"id":"exp_1"}'
OPEN: Final = TargetPolicy(
    allow_http=True, allowed_ports=((1, 65535),), allowed_networks=(ip_network("127.0.0.0/8"), ip_network("::1"))
)

#: The deadline of tests that reach it, and how much later a post may come back.
DEADLINE_S: Final = 0.25
SLACK_S: Final = 0.3


@contextmanager
def made_client(
    policy: TargetPolicy = OPEN,
    lookup: NameLookup | None = None,
    deadline_s: float = 5.0,
    connect_timeout_s: float = 5.0,
    verify: bool | str = True,
) -> Iterator[HttpClient]:
    client = HttpClient(policy, lookup or FakeLookup({NAME: ["127.0.0.1"]}), deadline_s, connect_timeout_s, 32, verify)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def client() -> Iterator[HttpClient]:
    with made_client() as made:
        yield made


@pytest.fixture
def hurried() -> Iterator[HttpClient]:
    """A client with a short deadline."""
    with made_client(deadline_s=DEADLINE_S) as made:
        yield made


def post(client: HttpClient, url: str, body: bytes = BODY) -> Outcome:
    return client.post(url, HEADERS, body)


def timed(client: HttpClient, url: str, body: bytes = BODY) -> tuple[Outcome, float]:
    began = time.monotonic()
    outcome = post(client, url, body)
    return outcome, time.monotonic() - began


def always(status: int = 200, body: bytes = b"{}", **headers: str) -> Callable[[Peer], None]:
    """Answer every request of a connection the same way."""

    def behave(peer: Peer) -> None:
        while peer.read():
            peer.answer(status, body, **headers)

    return behave


def once(*pieces: bytes) -> Callable[[Peer], None]:
    """Read one request, send `pieces`, hang up."""

    def behave(peer: Peer) -> None:
        peer.read()
        for piece in pieces:
            peer.send(piece)

    return behave


# ---------------------------------------------------------------- the deadline


def _drip_headers(peer: Peer) -> None:
    peer.read()
    peer.drip(b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 1000)


def _drip_status_line(peer: Peer) -> None:
    peer.read()
    peer.drip(b"HTTP/1.1 " + b"2" * 1000)


def _endless_continue(peer: Peer) -> None:
    peer.read()
    while True:
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 10)
        time.sleep(0.001)


def _say_nothing(peer: Peer) -> None:
    peer.wait()


def _read_and_say_nothing(peer: Peer) -> None:
    peer.read()
    peer.wait()


@pytest.mark.parametrize(
    "behave", [_drip_headers, _drip_status_line, _endless_continue, _say_nothing, _read_and_say_nothing]
)
def test_a_peer_that_never_ends_its_headers_is_left_at_the_deadline(
    hurried: HttpClient, behave: Callable[[Peer], None]
) -> None:
    with LoopbackServer(behave) as server:
        outcome, took_s = timed(hurried, server.url())
    assert (outcome.status, outcome.error) == (None, "deadline_exceeded")
    assert DEADLINE_S - 0.01 <= took_s <= DEADLINE_S + SLACK_S


def _drip_body_of(head: bytes) -> Callable[[Peer], None]:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.send(head)
        peer.drip(b"x" * 1000)

    return behave


DRIPPED_BODIES: Final = {
    "of a known length": b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n",
    "to the end of the connection": b"HTTP/1.1 201 Created\r\n\r\n",
    "on a connection to be closed": b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n",
    "by HTTP 1.0": b"HTTP/1.0 201 Created\r\n\r\n",
    "in one chunk": b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n",
    "as the size of a chunk": b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n",
    "as a trailer": b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
}


@pytest.mark.parametrize("head", DRIPPED_BODIES.values(), ids=list(DRIPPED_BODIES))
def test_a_dripped_body_ends_at_the_deadline_and_its_status_counts(hurried: HttpClient, head: bytes) -> None:
    with LoopbackServer(_drip_body_of(head)) as server:
        outcome, took_s = timed(hurried, server.url())
    assert (outcome.status, outcome.error) == (201, None)
    assert took_s <= DEADLINE_S + SLACK_S


def test_a_peer_that_reads_nothing_of_a_large_body_is_left_at_the_deadline() -> None:
    # A connect timeout below the deadline must not bound the sending.
    with LoopbackServer(_say_nothing) as server, made_client(deadline_s=DEADLINE_S, connect_timeout_s=0.1) as client:
        outcome, took_s = timed(client, server.url(), b"x" * 64 * 1024 * 1024)
    assert outcome.error == "deadline_exceeded"
    assert DEADLINE_S - 0.01 <= took_s <= DEADLINE_S + SLACK_S


def test_a_connection_that_is_used_again_is_watched_again(hurried: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.answer()
        _drip_headers(peer)

    with LoopbackServer(behave) as server:
        assert post(hurried, server.url()).status == 200
        outcome, took_s = timed(hurried, server.url())
        assert server.connections == 1
    assert outcome.error == "deadline_exceeded"
    assert took_s <= DEADLINE_S + SLACK_S


def test_the_end_of_one_post_does_not_hit_the_next_on_the_same_connection() -> None:
    def behave(peer: Peer) -> None:
        while peer.read():
            time.sleep(0.05)
            peer.answer()

    with LoopbackServer(behave) as server, made_client(deadline_s=0.2) as client:
        outcomes = [post(client, server.url()) for _ in range(10)]
        assert server.connections == 1
    assert [outcome.status for outcome in outcomes] == [200] * 10


def test_a_slow_name_server_is_left_at_the_deadline() -> None:
    hung = threading.Event()

    def resolve(*_: object, **__: object) -> Sequence[tuple[object, ...]]:
        hung.wait(10)
        return []

    with made_client(lookup=NameLookup(getaddrinfo=resolve), deadline_s=DEADLINE_S) as client:
        outcome, took_s = timed(client, f"http://{NAME}/hook")
    hung.set()
    assert outcome.error == "dns_timeout"
    assert took_s <= DEADLINE_S + SLACK_S


def test_what_a_slow_name_server_leaves_is_all_the_rest_may_take() -> None:
    class Slow(FakeLookup):
        def resolve(self, host: str, port: int, timeout_s: float) -> Answer:
            time.sleep(DEADLINE_S * 0.9)
            return super().resolve(host, port, timeout_s)

    slow = Slow({NAME: ["127.0.0.1"]})
    with LoopbackServer(_drip_headers) as server, made_client(lookup=slow, deadline_s=DEADLINE_S) as client:
        outcome, took_s = timed(client, server.url(NAME))
    assert outcome.error == "deadline_exceeded"
    assert took_s <= DEADLINE_S + SLACK_S


def test_a_lookup_that_overstays_leaves_nothing_to_dial() -> None:
    class Late(FakeLookup):
        def resolve(self, host: str, port: int, timeout_s: float) -> Answer:
            time.sleep(DEADLINE_S + 0.1)
            return super().resolve(host, port, timeout_s)

    late = Late({NAME: ["127.0.0.1"]})
    with LoopbackServer(always()) as server, made_client(lookup=late, deadline_s=DEADLINE_S) as client:
        assert post(client, server.url(NAME)).error == "deadline_exceeded"
        assert server.connections == 0


# ---------------------------------------------------------------- answers


def test_a_success_in_headers_is_delivered_whatever_becomes_of_its_body(client: HttpClient) -> None:
    cut_short = once(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"id": "T-1"}')
    with LoopbackServer(cut_short) as server:
        outcome = post(client, server.url())
    assert (outcome.status, outcome.error) == (200, None)


def test_a_request_is_sent_as_it_is_asked_for(client: HttpClient) -> None:
    seen: list[Request] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            seen.append(request)
            peer.answer(201, b'{"id": "T-1"}', Retry_After="7")

    with LoopbackServer(behave) as server:
        outcome = client.post(server.url(NAME, "/hook?a=b%20c"), {**HEADERS, "X-Service-Nonce": "ab"}, BODY)
        port = server.port
    [request] = seen
    assert request.line == "POST /hook?a=b%20c HTTP/1.1"
    assert request.body == BODY
    assert request.headers == {
        "host": f"{NAME}:{port}",
        "content-type": "application/json",
        "user-agent": "RiskRelay/test",
        "idempotency-key": "exp_1",
        "x-service-nonce": "ab",
        "accept-encoding": "identity",
        "content-length": str(len(BODY)),
    }
    assert (outcome.status, outcome.body, outcome.retry_after) == (201, b'{"id": "T-1"}', "7")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(client: HttpClient, status: int) -> None:
    with LoopbackServer(always()) as elsewhere, LoopbackServer(always(status, Location=elsewhere.url())) as server:
        outcome = post(client, server.url())
        assert elsewhere.connections == 0
    assert (outcome.status, outcome.error) == (status, None)


@pytest.mark.parametrize("status", [200, 302, 503])
@pytest.mark.parametrize("framing", [b"", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 1000000000\r\n"])
def test_an_endless_body_is_read_to_64_kib(client: HttpClient, status: int, framing: bytes) -> None:
    sent = [0]

    def behave(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 %d Told\r\nLocation: /next\r\n%s\r\n" % (status, framing))
        data = b"x" * 4096
        piece = b"1000\r\n" + data + b"\r\n" if b"chunked" in framing else data
        while sent[0] < 500_000_000:
            peer.send(piece)
            sent[0] += len(piece)

    with LoopbackServer(behave) as server:
        outcome, took_s = timed(client, server.url())
    assert (outcome.status, len(outcome.body)) == (status, MAX_ANSWER_BYTES)
    # What the kernel buffers on both sides of loopback was sent, but not read.
    assert sent[0] < 20_000_000
    assert took_s < 1


def test_a_compressed_body_is_not_inflated(client: HttpClient) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < MAX_ANSWER_BYTES
    with LoopbackServer(always(200, bomb, Content_Encoding="gzip")) as server:
        assert post(client, server.url()).body == bomb


# what the peer does with the connection after the request, the error
BROKEN: Final = {
    "hangs up": (once(), "connection_closed"),
    "hangs up in the status line": (once(b"HTTP/1.1 2"), "connection_closed"),
    "hangs up after the status line": (once(b"HTTP/1.1 200 OK\r\n"), "connection_closed"),
    "hangs up in a header": (once(b"HTTP/1.1 200 OK\r\nContent-Le"), "connection_closed"),
    "hangs up between headers": (once(b"HTTP/1.1 200 OK\r\nA: b\r\n"), "connection_closed"),
    "hangs up after a continue": (once(b"HTTP/1.1 100 Continue\r\n\r\n"), "connection_closed"),
    "talks nonsense": (once(b"SSH-2.0-OpenSSH_9.2\r\n"), "bad_answer"),
    "talks binary": (once(bytes(range(256)) * 10), "bad_answer"),
    "sends an impossible status": (once(b"HTTP/1.1 99999 OK\r\n\r\n"), "bad_answer"),
    "sends too many headers": (once(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 200, b"\r\n"), "bad_answer"),
    "sends an endless header": (once(b"HTTP/1.1 200 OK\r\nA: ", b"b" * 100_000, b"\r\n\r\n"), "bad_answer"),
    "sends an endless status line": (once(b"HTTP/1.1 200 ", b"b" * 100_000, b"\r\n\r\n"), "bad_answer"),
    "names two lengths": (once(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nab"), "bad_answer"),
}


@pytest.mark.parametrize(("behave", "error"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_answer_is_named(client: HttpClient, behave: Callable[[Peer], None], error: str) -> None:
    with LoopbackServer(behave) as server:
        outcome = post(client, server.url())
    assert (outcome.status, outcome.error) == (None, error)
    assert outcome.address == "127.0.0.1"


def test_a_reset_is_a_closed_connection(client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    with LoopbackServer(behave) as server:
        assert post(client, server.url()).error == "connection_closed"


def test_a_kept_connection_that_the_receiver_closed_meanwhile_costs_nothing(client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.answer()

    with LoopbackServer(behave) as server:
        for _ in range(3):
            assert post(client, server.url()).status == 200
            time.sleep(0.02)
        assert server.connections == 3


# ---------------------------------------------------------------- where it may go


def test_a_closed_port_is_refused(client: HttpClient) -> None:
    with LoopbackServer(always()) as server:
        url = server.url()
    outcome = post(client, url)
    assert (outcome.error, outcome.refused) == ("connect_refused", False)


@contextmanager
def silent_port(host: str) -> Iterator[int]:
    """Yield a port whose queue is full, so that the kernel lets further connections wait."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((host, 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        time.sleep(0.05)
        yield address[1]


def test_a_connect_that_takes_too_long_is_given_up() -> None:
    with silent_port("127.0.0.1") as port, made_client(connect_timeout_s=0.3) as client:
        outcome, took_s = timed(client, f"http://127.0.0.1:{port}/")
    assert outcome.error == "connect_timeout"
    assert 0.29 <= took_s < 0.3 + SLACK_S


def test_a_dead_address_leaves_time_for_the_next() -> None:
    lookup = FakeLookup({NAME: ["127.0.0.2", "127.0.0.1"]})
    with (
        silent_port("127.0.0.2") as port,
        LoopbackServer(always(), port=port) as server,
        made_client(lookup=lookup, connect_timeout_s=0.6) as client,
    ):
        outcome = post(client, server.url(NAME))
    assert (outcome.status, outcome.address) == (200, "127.0.0.1")


@pytest.mark.parametrize("reason", list(LookupReason))
def test_a_name_without_an_address_names_why(reason: LookupReason) -> None:
    with made_client(lookup=FakeLookup({NAME: reason})) as client:
        outcome = post(client, f"http://{NAME}/")
    assert (outcome.error, outcome.refused) == (reason.value, False)


# URL, what is refused; nothing of it may reach the network
REFUSED_URLS: Final = [
    ("ftp://receiver.example.com/", "scheme_not_allowed"),
    ("http://user:password@receiver.example.com/", "userinfo"),
    ("http://localhost/", "local_suffix"),
    ("http://0x7f000001/", "host_numeric"),
    ("http://169.254.169.254/", "address_metadata"),
    ("http://10.0.0.1/", "address_private"),
]


@pytest.mark.parametrize(("url", "reason"), REFUSED_URLS)
def test_a_url_that_the_policy_refuses_is_not_even_looked_up(url: str, reason: str) -> None:
    lookup = FakeLookup({NAME: ["127.0.0.1"]})
    with made_client(lookup=lookup) as client:
        outcome = post(client, url)
    assert (outcome.error, outcome.refused, outcome.address) == (reason, True, None)
    assert lookup.asked == []


# what the name resolves to, the verdict; 127.0.0.0/8 is open
MIXED: Final = [
    (["127.0.0.1", "10.0.0.1"], "address_private"),  # one bad answer refuses all
    (["10.0.0.1", "127.0.0.1"], "address_private"),
    (["127.0.0.1", "169.254.169.254"], "address_metadata"),
    (["127.0.0.1", "fe80::1"], "address_link_local"),
    (["::ffff:10.0.0.1"], "address_private"),
]


@pytest.mark.parametrize(("addresses", "reason"), MIXED)
def test_one_bad_address_refuses_the_whole_name(addresses: list[str], reason: str) -> None:
    with LoopbackServer(always()) as server, made_client(lookup=FakeLookup({NAME: addresses})) as client:
        outcome = post(client, server.url(NAME))
        assert server.connections == 0
    assert (outcome.error, outcome.refused) == (reason, True)
    assert outcome.address is None


def test_a_name_that_leads_to_loopback_is_refused_unless_it_is_opened() -> None:
    shut = TargetPolicy(allow_http=True, allowed_ports=((1, 65535),))
    with LoopbackServer(always()) as server, made_client(shut) as client:
        outcome = post(client, server.url(NAME))
        assert server.connections == 0
    assert (outcome.error, outcome.refused) == ("address_loopback", True)


class RebindingLookup(NameLookup):
    """Answers with another address each time it is asked."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.addresses = list(addresses)
        self.asked = 0

    def resolve(self, host: str, port: int, timeout_s: float) -> Answer:
        self.asked += 1
        return (ip_address(self.addresses.pop(0)),)


def test_a_name_is_asked_once_a_connection_and_the_answer_that_was_judged_is_dialled() -> None:
    lookup = RebindingLookup("127.0.0.2", "10.0.0.1")
    with LoopbackServer(always(), host="127.0.0.2") as server, made_client(lookup=lookup) as client:
        outcomes = [post(client, server.url(NAME)) for _ in range(3)]
        assert (server.connections, lookup.asked) == (1, 1)
    assert [(outcome.status, outcome.address) for outcome in outcomes] == [(200, "127.0.0.2")] * 3


def test_a_name_that_turned_bad_is_refused_when_it_is_dialled_again() -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.answer(Connection="close")

    lookup = RebindingLookup("127.0.0.1", "10.0.0.1")
    with LoopbackServer(behave) as server, made_client(lookup=lookup) as client:
        assert post(client, server.url(NAME)).status == 200
        assert post(client, server.url(NAME)).error == "address_private"
        assert server.connections == 1


def test_the_environment_sends_nothing_elsewhere_and_adds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Request] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            seen.append(request)
            peer.answer()

    (tmp_path / ".netrc").write_text(f"machine {NAME} login me password secret\ndefault login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with LoopbackServer(always()) as proxy, LoopbackServer(behave) as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "elsewhere.example.com")
        with made_client() as client:
            assert post(client, server.url(NAME)).status == 200
        assert proxy.connections == 0
    assert "authorization" not in seen[0].headers


# ---------------------------------------------------------------- TLS


def make_certificate(folder: Path, name: str = NAME, lasts: timedelta = timedelta(days=1)) -> tuple[ssl.SSLContext, str]:
    """Return a server's context with a self-signed certificate for `name`, and the path of that certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    until = datetime.now(UTC) + lasts
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - timedelta(days=30))
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    path = folder / "server.pem"
    path.write_bytes(
        pem + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    authority = folder / "authority.pem"
    authority.write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, str(authority)


def test_tls_names_the_host_of_the_url_whatever_address_is_dialled(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path)
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    with LoopbackServer(always(), context) as server, made_client(verify=authority) as client:
        outcomes = [post(client, server.url(NAME)) for _ in range(3)]
        assert server.connections == 1
    assert [(outcome.status, outcome.error) for outcome in outcomes] == [(200, None)] * 3
    assert asked == [NAME]
    timings = [outcome.timings for outcome in outcomes]
    assert timings[0].tls_ms is not None
    assert timings[1].tls_ms is None


# the certificate's name, how long it lasts, whether its maker is trusted
CERTIFICATES: Final = [
    ("other.example.com", timedelta(days=1), True),  # somebody else's
    (NAME, timedelta(days=-1), True),  # expired
    (NAME, timedelta(days=1), False),  # made by nobody we know
]


@pytest.mark.parametrize(("name", "lasts", "is_trusted"), CERTIFICATES)
def test_a_wrong_certificate_is_named_and_nothing_is_sent(
    tmp_path: Path, name: str, lasts: timedelta, is_trusted: bool
) -> None:
    context, authority = make_certificate(tmp_path, name, lasts)
    requests: list[Request | None] = []
    with (
        LoopbackServer(lambda peer: requests.append(peer.read()), context) as server,
        made_client(verify=authority if is_trusted else True) as client,
    ):
        outcome = post(client, server.url(NAME))
    assert (outcome.error, outcome.status) == ("tls_certificate", None)
    assert requests in ([], [None])


def test_a_bundle_named_by_the_environment_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, authority = make_certificate(tmp_path)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, authority)
    with LoopbackServer(always(), context) as server, made_client() as client:
        assert post(client, server.url(NAME)).error == "tls_certificate"


def test_a_peer_that_speaks_no_tls_is_named() -> None:
    with LoopbackServer(lambda peer: peer.answer(400)) as server, made_client() as client:
        outcome = post(client, f"https://{NAME}:{server.port}/")
    assert outcome.error == "tls_failed"


def _drip_handshake(peer: Peer) -> None:
    peer.drip(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc" + bytes(1000))


@pytest.mark.parametrize("behave", [_drip_handshake, _say_nothing])
def test_a_handshake_that_never_ends_is_left_at_the_deadline(behave: Callable[[Peer], None]) -> None:
    with LoopbackServer(behave) as server, made_client(deadline_s=DEADLINE_S, connect_timeout_s=0.1) as client:
        outcome, took_s = timed(client, f"https://{NAME}:{server.port}/")
    assert outcome.error == "deadline_exceeded"
    assert DEADLINE_S - 0.01 <= took_s <= DEADLINE_S + SLACK_S


@pytest.mark.parametrize("behave", [_drip_headers, _drip_body_of(DRIPPED_BODIES["on a connection to be closed"])])
def test_the_deadline_holds_over_tls_too(tmp_path: Path, behave: Callable[[Peer], None]) -> None:
    context, authority = make_certificate(tmp_path)
    with LoopbackServer(behave, context) as server, made_client(deadline_s=DEADLINE_S, verify=authority) as client:
        outcome, took_s = timed(client, server.url(NAME))
    assert outcome.error == "deadline_exceeded" or outcome.status == 201
    assert took_s <= DEADLINE_S + SLACK_S


# ---------------------------------------------------------------- connections, threads, descriptors


def test_connections_are_kept_and_one_post_takes_no_delayed_acknowledgement(client: HttpClient) -> None:
    with LoopbackServer(always()) as server:
        post(client, server.url())
        began = time.monotonic()
        for _ in range(20):
            assert post(client, server.url()).status == 200
        took_s = time.monotonic() - began
        assert server.connections == 1
    # Head and body in two packets without TCP_NODELAY: 40 ms each.
    assert took_s < 0.4


def test_the_parts_of_a_first_post_are_timed_and_those_of_a_second_are_not_repeated() -> None:
    class Slow(FakeLookup):
        def resolve(self, host: str, port: int, timeout_s: float) -> Answer:
            time.sleep(0.05)
            return super().resolve(host, port, timeout_s)

    def behave(peer: Peer) -> None:
        while peer.read():
            time.sleep(0.05)
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            time.sleep(0.05)
            peer.send(b"{}")

    with LoopbackServer(behave) as server, made_client(lookup=Slow({NAME: ["127.0.0.1"]})) as client:
        first, second = (post(client, server.url(NAME)).timings for _ in range(2))
    assert first.dns_ms is not None
    assert first.dns_ms >= 45
    assert first.connect_ms is not None
    assert first.tls_ms is None
    assert first.first_byte_ms is not None
    assert first.first_byte_ms >= first.dns_ms + first.connect_ms + 45
    assert first.first_byte_ms + 45 <= first.total_ms < 5000
    assert (second.dns_ms, second.connect_ms, second.tls_ms) == (None, None, None)
    assert second.first_byte_ms is not None
    assert second.first_byte_ms >= 45
    assert second.total_ms >= second.first_byte_ms + 45


def test_32_threads_share_a_client_and_each_gets_its_own_answer(client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        while request := peer.read():
            peer.answer(200, request.headers["idempotency-key"].encode() + request.body)

    def send(number: int) -> bool:
        key = f"exp_{number}"
        outcome = client.post(server.url(NAME), {**HEADERS, "Idempotency-Key": key}, str(number).encode())
        return outcome.body == f"{key}{number}".encode() and outcome.address == "127.0.0.1"

    with LoopbackServer(behave) as server, ThreadPoolExecutor(32) as pool:
        assert all(pool.map(send, range(1000)))
        assert server.connections <= 32


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_after_500_posts_of_every_kind(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path)
    plain: list[Callable[[Peer], None]] = [
        always(),
        always(503, Connection="close"),
        once(b"nonsense\r\n"),
        once(),
        _drip_headers,
        _drip_body_of(DRIPPED_BODIES["on a connection to be closed"]),
    ]
    with ExitStack() as stack:
        client = stack.enter_context(made_client(deadline_s=0.3, verify=authority))
        servers = [stack.enter_context(LoopbackServer(behave)) for behave in plain]
        urls = [server.url(NAME) for server in servers]
        secure = stack.enter_context(LoopbackServer(always(), context))
        urls += [secure.url(NAME), secure.url("other.example.com"), f"https://{NAME}:{servers[3].port}/", "http://10.0.0.1/"]
        pool = stack.enter_context(ThreadPoolExecutor(32))

        def send(number: int) -> str:
            outcome = post(client, urls[number % len(urls)])
            return outcome.error or str(outcome.status)

        list(pool.map(send, range(len(urls))))
        client.close()
        before = open_files()
        met = set(pool.map(send, range(500)))
        client.close()
        deadline = time.monotonic() + 5
        while open_files() > before + 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert open_files() <= before + 5
    assert {"200", "201", "503", "bad_answer", "connection_closed", "deadline_exceeded", "address_private"} <= met
