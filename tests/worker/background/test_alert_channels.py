"""Alerts reach real servers: SMTP with STARTTLS or TLS, chats over https. With a wrong certificate nothing is sent."""

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from schemas.alerts.messages import message_body
from schemas.settings.alert_channels import AlertChannel
from schemas.settings.definitions import Settings
from tests.schemas.alerts.test_messages import alert
from tests.support.factories import NOW, make_settings
from tests.support.fakes import FakeResolver, LoopbackServer, Peer, ReceivedRequest
from tests.support.servers.authorities import CertificateAuthority
from tests.support.worker.receivers import NAME, OPEN, silent_port
from worker.background.alert_channels import AlertSender, ChannelResponse
from worker.composition import egress_of
from worker.http.client import HttpClient
from worker.http.signing import verify

#: A spelling of 127.0.0.1 that does not count as loopback, like the host of any mail server.
MAIL_HOST: Final = "127.1"
PASSWORD: Final = "p@ss/w:rd"
ENCODED: Final = "p%40ss%2Fw%3Ard"
SECRET: Final = "a secret of sixteen bytes"
MAIL: Final = {"ALERT_EMAIL_TO": "ops@example.com, eve@example.com", "ALERT_EMAIL_FROM": "relay@example.com"}


class MailBox:
    """Stores the messages that it receives; `signed_in` holds the user names."""

    def __init__(self) -> None:
        self.received: list[tuple[list[str], EmailMessage, bool]] = []
        self.signed_in: list[str] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's
        content = envelope.content if isinstance(envelope.content, bytes) else (envelope.content or "").encode()
        message = message_from_bytes(content, EmailMessage, policy=policy.SMTP)
        self.received.append((list(envelope.rcpt_tos), message, session.ssl is not None))
        return "250 kept"

    def authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, auth: Any) -> AuthResult:
        if isinstance(auth, LoginPassword) and auth.password == PASSWORD.encode():
            self.signed_in.append(auth.login.decode())
            return AuthResult(success=True)
        return AuthResult(success=False, handled=False)


@contextmanager
def mail_server(tls: ssl.SSLContext | None, *, starttls: bool) -> Iterator[tuple[MailBox, int]]:
    """Yield a real SMTP server on loopback and its port."""
    box, loop = MailBox(), asyncio.new_event_loop()
    options: dict[str, Any] = {"authenticator": box.authenticate, "auth_require_tls": starttls, "loop": loop}
    if starttls:
        options |= {"tls_context": tls, "require_starttls": True}
    accepted = loop.create_server(lambda: SMTP(box, **options), "127.0.0.1", 0, ssl=None if starttls else tls)
    server = loop.run_until_complete(accepted)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield box, server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        # Connections close in several steps, and nothing else runs the loop any more.
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


@contextmanager
def sender_of(folder: Path, changes: Mapping[str, str]) -> Iterator[AlertSender]:
    settings: Settings = make_settings(folder, changes)
    resolver = FakeResolver({NAME: ["127.0.0.1"]})
    client = HttpClient(OPEN, resolver, 5.0, 5.0, 1, egress=egress_of(settings))
    yield AlertSender(settings, client)
    client.close()


def sent(sender: AlertSender, channel: AlertChannel, name: str = "Shop tracker") -> ChannelResponse:
    return sender.send(channel, message_body("alm_1", [alert(name)], "https://relay.example.com/console", NOW), NOW)


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority("the company")


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_an_email_is_sent_over_tls_to_all_recipients(tmp_path: Path, authority: CertificateAuthority, scheme: str) -> None:
    with mail_server(authority.server(MAIL_HOST), starttls=scheme == "smtp") as (box, port):
        url = f"{scheme}://relay:{ENCODED}@{MAIL_HOST}:{port}"
        with sender_of(tmp_path, {"SMTP_URL": url, "TARGET_CA": authority.pem, **MAIL}) as sender:
            answer = sent(sender, AlertChannel.EMAIL, "Shop\r\nBcc: evil@example.com")
    assert answer == (True, "accepted")
    [(to, message, was_tls)] = box.received
    assert to == ["ops@example.com", "eve@example.com"]
    assert was_tls or scheme == "smtps"  # aiosmtpd records TLS only for STARTTLS
    assert box.signed_in == ["relay"]
    assert message["Subject"].strip() == "RiskRelay: Target fails: Shop Bcc: evil@example.com (tracker.example.com)"
    assert message["Bcc"] is None
    assert "Start the receiver" in message.get_content()


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
@pytest.mark.parametrize(("host", "is_known"), [("other.example.com", True), (MAIL_HOST, False)])
def test_nothing_is_sent_to_a_mail_server_with_a_wrong_certificate(
    tmp_path: Path, authority: CertificateAuthority, scheme: str, host: str, is_known: bool
) -> None:
    trusted = authority if is_known else CertificateAuthority("another company")
    with mail_server(authority.server(host), starttls=scheme == "smtp") as (box, port):
        url = f"{scheme}://relay:{ENCODED}@{MAIL_HOST}:{port}"
        with sender_of(tmp_path, {"SMTP_URL": url, "TARGET_CA": trusted.pem, **MAIL}) as sender:
            assert sent(sender, AlertChannel.EMAIL) == (False, "tls_certificate")
    assert (box.received, box.signed_in) == ([], [])


def test_a_server_without_starttls_gets_neither_password_nor_alert(tmp_path: Path) -> None:
    with (
        mail_server(None, starttls=False) as (box, port),
        sender_of(tmp_path, {"SMTP_URL": f"smtp://relay:{ENCODED}@{MAIL_HOST}:{port}", **MAIL}) as sender,
    ):
        answer = sent(sender, AlertChannel.EMAIL)
    assert answer == (False, "the server offers no STARTTLS or no supported authentication")
    assert (box.received, box.signed_in) == ([], [])


def test_a_mail_server_on_loopback_needs_no_tls(tmp_path: Path) -> None:
    with (
        mail_server(None, starttls=False) as (box, port),
        sender_of(tmp_path, {"SMTP_URL": f"smtp://127.0.0.1:{port}", **MAIL}) as sender,
    ):
        assert sent(sender, AlertChannel.EMAIL).is_sent
    assert [was_tls for _, _, was_tls in box.received] == [False]


def test_a_wrong_smtp_password_is_reported_without_the_password(tmp_path: Path, authority: CertificateAuthority) -> None:
    with mail_server(authority.server(MAIL_HOST), starttls=True) as (box, port):
        url = f"smtp://relay:wrong-{ENCODED}@{MAIL_HOST}:{port}"
        with sender_of(tmp_path, {"SMTP_URL": url, "TARGET_CA": authority.pem, **MAIL}) as sender:
            assert sent(sender, AlertChannel.EMAIL) == (False, "SMTPAuthenticationError 535")
    assert box.received == []


def test_a_silent_mail_server_is_given_up(tmp_path: Path) -> None:
    with silent_port("127.0.0.1") as port:
        changes = {"SMTP_URL": f"smtp://127.0.0.1:{port}", "DELIVERY_TIMEOUT_S": "0.3", **MAIL}
        with sender_of(tmp_path, changes) as sender:
            assert sent(sender, AlertChannel.EMAIL) == (False, "deadline_exceeded")


#: What each chat responds when it accepts a message, and when it refuses one.
RECORDED: Final = [
    (AlertChannel.SLACK, 200, b"ok", 403, b"invalid_token"),
    (AlertChannel.MATTERMOST, 200, b"ok", 400, b'{"id":"web.incoming_webhook.invalid.app_error","status_code":400}'),
    (AlertChannel.DISCORD, 204, b"", 404, b'{"message": "Unknown Webhook", "code": 10015}'),
    (AlertChannel.TEAMS, 202, b"", 401, b'{"error":{"code":"DirectApiAuthorizationRequired"}}'),
    (AlertChannel.WEBHOOK, 200, b"{}", 500, b""),
]


@contextmanager
def chat(
    tls: ssl.SSLContext, status: int, body: bytes, path: str = "/services/T0/B0/s3cr3t-token"
) -> Iterator[tuple[str, list[ReceivedRequest]]]:
    """Yield the URL of a webhook that responds as configured, and the requests that it received."""
    received: list[ReceivedRequest] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            received.append(request)
            peer.answer(status, body)

    with LoopbackServer(behave, tls) as server:
        yield server.url(NAME, path), received


def setting_of(channel: AlertChannel, url: str) -> dict[str, str]:
    secret = {"ALERT_WEBHOOK_SECRET": SECRET} if channel is AlertChannel.WEBHOOK else {}
    return {f"ALERT_{channel.value.upper()}_URL": url, **secret}


@pytest.mark.parametrize(("channel", "status", "said", "refusal", "reason"), RECORDED)
def test_a_chat_accepts_the_message_or_its_refusal_is_reported(
    tmp_path: Path,
    authority: CertificateAuthority,
    channel: AlertChannel,
    status: int,
    said: bytes,
    refusal: int,
    reason: bytes,
) -> None:
    tls = authority.server(NAME)
    with ExitStack() as stack:
        url, received = stack.enter_context(chat(tls, status, said))
        sender = stack.enter_context(sender_of(tmp_path, {**setting_of(channel, url), "TARGET_CA": authority.pem}))
        answer = sent(sender, channel)
    assert answer == (True, f"HTTP {status} {said.decode()}".strip())
    [request] = received
    assert request.headers["content-type"] == "application/json"
    assert "Target fails" in request.body.decode()
    assert isinstance(json.loads(request.body), dict)
    with ExitStack() as stack:
        url, received = stack.enter_context(chat(tls, refusal, reason))
        sender = stack.enter_context(sender_of(tmp_path, {**setting_of(channel, url), "TARGET_CA": authority.pem}))
        assert sent(sender, channel) == (False, f"HTTP {refusal} {reason.decode()}".strip())


def test_the_webhook_gets_the_record_signed_as_an_export(tmp_path: Path, authority: CertificateAuthority) -> None:
    with ExitStack() as stack:
        url, received = stack.enter_context(chat(authority.server(NAME), 200, b"{}"))
        changes = {**setting_of(AlertChannel.WEBHOOK, url), "TARGET_CA": authority.pem}
        sender = stack.enter_context(sender_of(tmp_path, changes))
        assert sent(sender, AlertChannel.WEBHOOK).is_sent
    [request] = received
    headers = request.headers
    assert verify(SECRET.encode(), headers, request.body, int(NOW.timestamp()), lambda _nonce: False).ok
    assert request.headers["idempotency-key"] == "alm_1"
    body = json.loads(request.body)
    assert (body["type"], body["id"], body["alerts"][0]["headline"]) == ("alert", "alm_1", "Target fails")


def test_a_response_that_repeats_the_url_does_not_reveal_it(tmp_path: Path, authority: CertificateAuthority) -> None:
    def behave(peer: Peer) -> None:
        while request := peer.read():
            path = request.line.split()[1]
            peer.answer(404, f"nothing at https://{request.headers['host']}{path}".encode())

    with LoopbackServer(behave, authority.server(NAME)) as server:
        url = server.url(NAME, "/services/T0/B0/s3cr3t-token")
        with sender_of(tmp_path, {**setting_of(AlertChannel.SLACK, url), "TARGET_CA": authority.pem}) as sender:
            assert sent(sender, AlertChannel.SLACK) == (False, "HTTP 404 nothing at [redacted]")


def test_a_chat_with_a_wrong_certificate_gets_nothing(tmp_path: Path, authority: CertificateAuthority) -> None:
    with ExitStack() as stack:
        url, received = stack.enter_context(chat(authority.server("other.example.com"), 200, b"ok"))
        changes = {**setting_of(AlertChannel.SLACK, url), "TARGET_CA": authority.pem}
        sender = stack.enter_context(sender_of(tmp_path, changes))
        assert sent(sender, AlertChannel.SLACK) == (False, "tls_certificate")
    assert received == []


def test_a_chat_on_a_private_address_needs_its_network_allowed(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, setting_of(AlertChannel.MATTERMOST, f"https://{NAME}/hooks/x"))
    client = HttpClient(settings.target_policy, FakeResolver({NAME: ["10.1.2.3"]}), 5.0, 5.0, 1)
    answer = sent(AlertSender(settings, client), AlertChannel.MATTERMOST)
    client.close()
    assert answer == (False, "address_private")
