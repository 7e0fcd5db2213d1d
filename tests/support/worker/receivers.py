"""HTTP clients for tests, and the receivers and resolvers that they use."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runtime.dns_resolver import Addresses, DnsError, DnsFailure, DnsResolver
from schemas.exports.delivery import Outcome
from schemas.settings.egress import DIRECT, Egress
from schemas.url_policy.policy import TargetPolicy
from tests.support.fakes import FakeResolver, Peer
from worker.http.adapter import CONFIRMED_FOR_S, KEPT_IDLE_S
from worker.http.client import HttpClient

NAME: Final = "receiver.example.com"
HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "RiskRelay/test", "Idempotency-Key": "exp_1"}
BODY: Final = b'{"id":"exp_1"}'
OPEN: Final = TargetPolicy(
    allow_http=True, allowed_ports=((1, 65535),), allowed_networks=(ip_network("127.0.0.0/8"), ip_network("::1"))
)

#: The deadline in tests in which it expires, and how much later a post may return on a busy machine. Receivers in these
#: tests take longer than both.
DEADLINE_S: Final = 0.4
SLACK_S: Final = 4.0

#: Maximum wait for a receiver; receivers need milliseconds.
PATIENCE_S: Final = 10


@contextmanager
def made_client(
    policy: TargetPolicy = OPEN,
    resolver: DnsResolver | None = None,
    deadline_s: float = 5.0,
    connect_timeout_s: float = 5.0,
    verify: Literal[True] | str = True,
    confirmed_for_s: float = CONFIRMED_FOR_S,
    kept_idle_s: float = KEPT_IDLE_S,
    egress: Egress = DIRECT,
) -> Iterator[HttpClient]:
    known = resolver or FakeResolver({NAME: ["127.0.0.1"]})
    client = HttpClient(policy, known, deadline_s, connect_timeout_s, 32, verify, confirmed_for_s, kept_idle_s, egress)
    try:
        yield client
    finally:
        client.close()


def post(client: HttpClient, url: str, body: bytes = BODY) -> Outcome:
    return client.post(url, HEADERS, body)


def timed(client: HttpClient, url: str, body: bytes = BODY) -> tuple[Outcome, float]:
    began = time.monotonic()
    outcome = post(client, url, body)
    return outcome, time.monotonic() - began


@contextmanager
def silent_port(host: str) -> Iterator[int]:
    """Yield a port whose backlog is full, so that further connections are neither accepted nor rejected."""
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


def always(status: int = 200, body: bytes = b"{}", **headers: str) -> Callable[[Peer], None]:
    """Return a behavior that sends the same response to every request of a connection."""

    def behave(peer: Peer) -> None:
        while peer.read():
            peer.answer(status, body, **headers)

    return behave


def once(*pieces: bytes) -> Callable[[Peer], None]:
    """Return a behavior that reads one request, sends `pieces`, and closes the connection."""

    def behave(peer: Peer) -> None:
        peer.read()
        for piece in pieces:
            peer.send(piece)

    return behave


def until(is_so: Callable[[], bool]) -> bool:
    """Wait until `is_so()` is true; return False if it does not become true in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def drip_headers(peer: Peer) -> None:
    peer.read()
    peer.drip(b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 1000)


def drip_body_of(head: bytes) -> Callable[[Peer], None]:
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


def say_nothing(peer: Peer) -> None:
    peer.wait()


class RebindingResolver(DnsResolver):
    """Resolves a name to the next of `answers` each time, and then always to the last."""

    def __init__(self, *answers: list[str] | DnsFailure) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked = 0
        self._lock = threading.Lock()

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
        with self._lock:
            self.asked += 1
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, DnsFailure):
            raise DnsError(answer)
        return tuple(ip_address(address) for address in answer)


def make_certificate(
    folder: Path,
    name: str = NAME,
    lasts: timedelta = timedelta(days=1),
    begins: timedelta | None = None,
    alternative: str | None = None,
) -> tuple[ssl.SSLContext, str]:
    """Return a server's TLS context with a self-signed certificate for `name`, and the path of the certificate.

    `alternative` is the subject alternative name, by default `name`; with "" the certificate has none.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    until = datetime.now(UTC) + lasts
    since = until - timedelta(days=90) if begins is None else datetime.now(UTC) + begins
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    if alternative != "":
        named = x509.SubjectAlternativeName([alternative_name(alternative or name)])
        builder = builder.add_extension(named, critical=False)
    certificate = builder.sign(key, hashes.SHA256())
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


def alternative_name(name: str) -> x509.GeneralName:
    """Return `name` as a subject alternative name: an IP address or a DNS name."""
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
