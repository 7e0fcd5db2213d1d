"""The channels of alerts: a mail server, incoming webhooks of chat services, and a webhook of the operator's own.

Errors never quote a value: each of these URLs contains a password or is one.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from marshmallow import ValidationError

from schemas.base.email_address import is_email_address
from schemas.settings.parsers import HOW_TO_ENCODE, LOOPBACK, plain_web_address, server_address


class AlertKind(StrEnum):
    """The kinds of alerts."""

    TARGET = "target"
    EXPORTS = "exports"
    RULE = "rule"
    COMPLIANCE = "compliance"
    DISK = "disk"
    WORKER = "worker"
    BACKUP = "backup"
    WEEKLY = "weekly"


class AlertChannel(StrEnum):
    """A way to send alerts."""

    EMAIL = "email"
    SLACK = "slack"
    MATTERMOST = "mattermost"
    DISCORD = "discord"
    TEAMS = "teams"
    WEBHOOK = "webhook"


#: Default ports of mail servers: for clients that sign in with STARTTLS, and for TLS from the first byte.
_SMTP_PORTS: Final = {"smtp": 587, "smtps": 465}
_SMTP_FORM: Final = f"Use smtps://USER:PASSWORD@HOST:PORT, or smtp:// for a server with STARTTLS. {HOW_TO_ENCODE}"
#: smtplib encodes user and password as ASCII, and mail servers do not agree on another encoding.
_SMTP_ASCII: Final = (
    "The user or password has characters that are not ASCII. Use an account of the mail server without them."
)


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """A mail server. Without `is_tls`, STARTTLS is required, except on loopback, where it is used if offered."""

    host: str
    port: int
    is_tls: bool
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        return self.host in LOOPBACK


def parse_smtp(text: str) -> SmtpServer:
    """Return the mail server of a URL. Raises ValidationError."""
    parts = server_address(text, _SMTP_PORTS)
    if parts is None or not parts.hostname or bool(parts.username) != bool(parts.password):
        raise ValidationError(_SMTP_FORM)
    user, password = (unquote(parts.username), unquote(parts.password or "")) if parts.username else (None, None)
    if not f"{user}{password}".isascii():
        raise ValidationError(_SMTP_ASCII)
    return SmtpServer(parts.hostname, parts.port or _SMTP_PORTS[parts.scheme], parts.scheme == "smtps", user, password)


def parse_addresses(text: str) -> tuple[str, ...]:
    """Return comma-separated email addresses. Raises ValidationError."""
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    # smtplib writes addresses as ASCII.
    if not all(each.isascii() and is_email_address(each) for each in found):
        raise ValidationError("Use email addresses such as ops@example.com, comma-separated, without names.")
    return found


def parse_address(text: str) -> str:
    """Return one email address, or an empty text. Raises ValidationError."""
    found = parse_addresses(text)
    if len(found) > 1:
        raise ValidationError("Use one email address.")
    return found[0] if found else ""


def parse_webhook(text: str) -> str:
    """Return the https URL of an incoming webhook, or an empty text. Raises ValidationError."""
    parts = plain_web_address(text)
    if text and (parts is None or parts.scheme != "https"):
        raise ValidationError("Use the https:// URL of the incoming webhook, without user, password and fragment.")
    return text
