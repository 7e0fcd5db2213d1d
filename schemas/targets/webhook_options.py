"""How requests to a webhook are signed, in which form they carry the ticket, and the headers that a target adds to them."""

import binascii
import re
from base64 import b64decode
from enum import StrEnum
from typing import Final


class Signature(StrEnum):
    """Which headers sign a request: our own `X-Service-*`, those of Standard Webhooks, or both."""

    SERVICE = "service"
    STANDARD = "standard-webhooks"
    BOTH = "both"

    @property
    def is_service(self) -> bool:
        """Whether requests have `X-Service-Signature`."""
        return self is not Signature.STANDARD

    @property
    def is_standard(self) -> bool:
        """Whether requests have `webhook-signature`."""
        return self is not Signature.SERVICE


class BodyFormat(StrEnum):
    """The form in which a request carries the ticket."""

    TICKET = "ticket"
    #: One JSON object with the event's attributes and the ticket.
    CLOUDEVENTS = "cloudevents"
    #: The ticket unchanged, with the event's attributes as headers.
    CLOUDEVENTS_BINARY = "cloudevents-binary"
    SARIF = "sarif"


#: The most headers that a target adds: authentication needs one or two.
MAX_HEADERS: Final = 4
MAX_HEADER_NAME: Final = 64
#: What receivers commonly accept as one header line; a longer text is a mistake, such as a key file.
MAX_HEADER_VALUE: Final = 4096

#: A token of RFC 9110.
_NAME: Final = re.compile(rf"[A-Za-z0-9!#$%&'*+.^_`|~-]{{1,{MAX_HEADER_NAME}}}")
#: ASCII only: receivers read other characters in different encodings.
_VALUE: Final = re.compile(rf"[!-~](?:[ -~]{{0,{MAX_HEADER_VALUE - 2}}}[!-~])?")

#: Headers that are set for every request, or by HTTP itself for one connection: only some receivers would read a second
#: value.
_RESERVED: Final = frozenset(
    {
        *("accept-encoding", "connection", "date", "expect", "host", "http2-settings", "idempotency-key", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade", "user-agent", "x-request-id"),
    }
)
_RESERVED_PREFIXES: Final = ("ce-", "content-", "proxy-", "webhook-", "x-service-")

#: The prefix of a secret of Standard Webhooks.
STANDARD_PREFIX: Final = "whsec_"
#: Bytes of a decoded secret, as the specification bounds them.
STANDARD_SECRET_BYTES: Final = range(24, 64 + 1)


def header_name_fault(name: str) -> str | None:
    """Return the error code of a header name that a target may not add, or None."""
    if not _NAME.fullmatch(name):
        return "invalid_header_name"
    folded = name.lower()
    return "header_reserved" if folded in _RESERVED or folded.startswith(_RESERVED_PREFIXES) else None


def header_value_fault(value: str) -> str | None:
    """Return the error code of a text that is no header value, or None."""
    return None if _VALUE.fullmatch(value) else "invalid_header_value"


def standard_key(secret: str) -> bytes | None:
    """Return the key of a Standard Webhooks secret, `whsec_` and base64 of 24 to 64 bytes; None for any other text."""
    if not secret.startswith(STANDARD_PREFIX):
        return None
    try:
        key = b64decode(secret.removeprefix(STANDARD_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) in STANDARD_SECRET_BYTES else None


def credentials_of(value: str) -> tuple[str, ...]:
    """Return the secret parts of a header's value: the value, the part after a scheme, the pair and password of Basic."""
    scheme, _, credentials = value.partition(" ")
    if not credentials:
        return (value,)
    if scheme.lower() != "basic":
        return (value, credentials)
    try:
        pair = b64decode(credentials).decode()
    except ValueError:
        return (value, credentials)
    return (value, credentials, pair, pair.partition(":")[2])
