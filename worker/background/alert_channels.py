"""Sends messages about alerts: email over SMTP with TLS, chats and a webhook with the HTTP client of deliveries.

The URLs of chats follow the rules of targets: https, TARGET_ALLOWED_NETWORKS, TARGET_ALLOWED_PORTS, TARGET_CA, the egress
proxy. The mail server is the operator's own, often on a private address, and speaks no HTTP: it is connected to directly.
No result and no log line contains a URL or the password.
"""

import json
import smtplib
import ssl
from collections.abc import Callable
from datetime import datetime
from email.message import EmailMessage
from typing import Any, Final, NamedTuple

from runtime.tls_context import client_context
from schemas.alerts import messages
from schemas.exports.delivery import Outcome
from schemas.exports.response_excerpt import without_secret
from schemas.settings.alert_channels import AlertChannel, SmtpServer
from schemas.settings.definitions import Settings
from schemas.trackers.text.neutral import cut, one_line
from schemas.version import USER_AGENT
from worker.http.client import HttpClient
from worker.http.signed_request import Message, new_nonce, signed_headers

#: The longest timeout of one SMTP step; a person may be waiting for the mail.
_MAX_STEP_S: Final = 20.0
#: How long a message is leased: longer than the slowest mail, a dozen SMTP steps that each take their whole timeout.
SEND_LEASE_S: Final = 300.0
#: Characters of a response that `alert test` shows: a chat names its error in a few words.
_MAX_RESPONSE: Final = 120
#: Our name in EHLO, the one that smtplib uses for hosts without a full name: to look up the name could take longer than to
#: send the mail.
_LOCAL_NAME: Final = "[127.0.0.1]"

#: The function that formats a message for each chat.
_FORMS: Final[dict[AlertChannel, Callable[[messages.AlertBody], messages.AlertBody]]] = {
    AlertChannel.SLACK: messages.slack,
    AlertChannel.MATTERMOST: messages.mattermost,
    AlertChannel.DISCORD: messages.discord,
    AlertChannel.TEAMS: messages.teams,
}


class ChannelResponse(NamedTuple):
    """Whether a channel accepted a message, and the text of its response."""

    is_sent: bool
    text: str


class AlertSender:
    """Sends to the channels that the settings name."""

    def __init__(self, settings: Settings, client: HttpClient) -> None:
        self._settings = settings
        self._client = client
        self._urls = settings.alert_urls

    def send(self, channel: AlertChannel, body: dict[str, Any], now: datetime) -> ChannelResponse:
        """Send a message to a channel; never raises for failures of the network."""
        if channel is AlertChannel.EMAIL:
            settings = self._settings
            message = messages.email(body, settings.alert_email_from, settings.alert_email_to, now)
            return send_email(settings, message)
        url = self._urls[channel]
        if channel is AlertChannel.WEBHOOK:
            content = _json(body)
            signed = Message(
                id=body["id"],
                key=body["id"],
                target_id="",
                url=url,
                secret_sealed=None,
                body=content,
                at=now,
                nonce=new_nonce(),
            )
            headers = signed_headers(signed, self._settings.alert_webhook_secret or "")
        else:
            content = _json(_FORMS[channel](body))
            headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
        return _channel_response(self._client.post(url, headers, content), url)


def send_email(settings: Settings, message: EmailMessage) -> ChannelResponse:
    """Send a message over the mail server of the settings; never raises for failures of the network."""
    server = settings.smtp_server
    if server is None:
        return ChannelResponse(is_sent=False, text="no SMTP_URL")
    try:
        with _connected(server, settings.target_ca, min(settings.delivery_timeout_s, _MAX_STEP_S)) as smtp:
            if server.username is not None:
                smtp.login(server.username, server.password or "")
            refused = smtp.send_message(message)
    except (smtplib.SMTPException, OSError) as failed:
        return ChannelResponse(is_sent=False, text=_smtp_failure(failed))
    return ChannelResponse(is_sent=True, text=f"accepted, except for {len(refused)} recipients" if refused else "accepted")


def _connected(server: SmtpServer, authorities: str, timeout_s: float) -> smtplib.SMTP:
    """Return a connection with TLS, or without it to this host. Raises SMTPException, OSError."""
    context = client_context(authorities)
    if server.is_tls:
        return smtplib.SMTP_SSL(server.host, server.port, _LOCAL_NAME, timeout=timeout_s, context=context)
    smtp = smtplib.SMTP(server.host, server.port, _LOCAL_NAME, timeout=timeout_s)
    try:
        if not server.is_loopback:
            smtp.starttls(context=context)
    except BaseException:
        smtp.close()
        raise
    return smtp


def _smtp_failure(failed: Exception) -> str:
    """Return the error without the server's text, which could repeat the message."""
    if isinstance(failed, ssl.SSLCertVerificationError):
        return "tls_certificate"
    if isinstance(failed, TimeoutError):
        return "deadline_exceeded"
    if isinstance(failed, smtplib.SMTPNotSupportedError):
        return "the server offers no STARTTLS or no supported authentication"
    if isinstance(failed, smtplib.SMTPResponseException):
        return f"{type(failed).__name__} {failed.smtp_code}"
    return type(failed).__name__


def _channel_response(outcome: Outcome, url: str) -> ChannelResponse:
    if outcome.status is None:
        return ChannelResponse(is_sent=False, text=outcome.error or "no_answer")
    said = one_line(without_secret(outcome.body, url).decode("utf-8", "replace"))
    return ChannelResponse(200 <= outcome.status < 300, cut(f"HTTP {outcome.status} {said}".strip(), _MAX_RESPONSE))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
