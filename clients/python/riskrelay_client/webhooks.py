"""Verifies deliveries in a receiver: signature, age, replay, content.

    event = webhooks.verify(request.headers, request.body, secret, nonces=nonces)

The body is the raw bytes, read before any parsing. An event's `id` is the same for every attempt of a delivery: store it in
a unique column next to the ticket, and respond with 2xx to one that is known.
"""

import base64
import hmac
import json
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from riskrelay_client.errors import RiskRelayError
from riskrelay_client.models import TargetPingEvent, TicketEventBody, TicketExportEvent

TOLERANCE_S: Final = 300.0  # allowed difference from the sender's clock

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
Secret = str | bytes
Event = TicketExportEvent | TicketEventBody | TargetPingEvent

_TIMESTAMP: Final = re.compile("[0-9]{1,15}")
_NONCE: Final = re.compile("[0-9A-Fa-f]{32}")
_MESSAGE_ID: Final = re.compile("[!-~]{1,200}")
_TICKET_EVENTS: Final = frozenset({"ticket.updated", "ticket.fixed", "ticket.reopened", "ticket.redact"})


class WebhookError(RiskRelayError):
    """A request that a receiver must refuse, with `status` and a JSON body with `code`."""

    status = 400
    code = ""


class InvalidSignature(WebhookError):
    """The request is not authentic, too old, from the future or a replay."""

    status = 401
    code = "WEBHOOK_SIGNATURE_INVALID"


class InvalidContent(WebhookError):
    """The request is authentic, but its body is no event of a known type."""

    status = 422
    code = "WEBHOOK_VALIDATION_FAILED"


class NonceStore(Protocol):
    """Stores nonces for at least twice `tolerance_s`, by default ten minutes, for all processes of a receiver."""

    def is_new(self, nonce: str, now: float) -> bool:
        """Store a nonce and return whether it was unknown, in one step; `now` is in Unix seconds."""


class MemoryNonces:
    """Nonces in the memory of one process, for `seconds`; beyond `most`, the oldest are dropped."""

    def __init__(self, seconds: float = 2 * TOLERANCE_S, most: int = 100_000) -> None:
        self.seconds = seconds
        self._most = most
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_new(self, nonce: str, now: float) -> bool:
        """Store a nonce and return whether it was unknown."""
        with self._lock:
            while self._seen and self._seen[next(iter(self._seen))] < now - self.seconds:
                del self._seen[next(iter(self._seen))]
            if nonce in self._seen:
                return False
            if len(self._seen) >= self._most:
                del self._seen[next(iter(self._seen))]
            self._seen[nonce] = now
            return True


def verify(
    headers: Headers,
    body: bytes,
    secret: Secret | Sequence[Secret],
    *,
    signature: Literal["service", "standard-webhooks"] = "service",
    nonces: NonceStore | None = None,
    tolerance_s: float = TOLERANCE_S,
    now: float | None = None,
) -> Event:
    """Verify a delivery and return its event; for targets with the format `ticket`.

    `secret` is one, or several during a rotation. `signature` says which one to verify, as the target's setting does.
    `nonces` detects replays of the service's signature, and must store them for twice `tolerance_s`. `now` is in Unix
    seconds. Raises InvalidSignature, InvalidContent, and ValueError for MemoryNonces that store them for less.
    """
    verify_signature(headers, body, secret, signature=signature, nonces=nonces, tolerance_s=tolerance_s, now=now)
    return parse(body)


def verify_signature(
    headers: Headers,
    body: bytes,
    secret: Secret | Sequence[Secret],
    *,
    signature: Literal["service", "standard-webhooks"] = "service",
    nonces: NonceStore | None = None,
    tolerance_s: float = TOLERANCE_S,
    now: float | None = None,
) -> None:
    """Verify signature, age and nonce only, whatever the format of the body; raises what `verify` does."""
    secrets = [secret] if isinstance(secret, str | bytes) else [*secret]
    keys = [each.encode() if isinstance(each, str) else each for each in secrets]
    if not keys or not all(keys):
        raise ValueError("An empty secret would accept everybody's signature.")
    # A request may arrive `tolerance_s` before its timestamp, and its replay as long after it.
    if signature == "service" and isinstance(nonces, MemoryNonces) and nonces.seconds < 2 * tolerance_s:
        raise ValueError("MemoryNonces must keep nonces for twice tolerance_s: use MemoryNonces(seconds=2 * tolerance_s).")
    at = time.time() if now is None else now
    check = _check_service if signature == "service" else _check_standard
    nonce = check(_Headers(headers), body, keys, at, tolerance_s)
    # Last, so that forged requests cannot fill the memory.
    if nonce is not None and nonces is not None and not nonces.is_new(nonce, at):
        raise InvalidSignature("the nonce was used before")


def parse(body: bytes) -> Event:
    """Parse a verified body in the format `ticket`; raises InvalidContent."""
    try:
        event: Any = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise InvalidContent("the body is not JSON") from None
    if not (isinstance(event, dict) and isinstance(event.get("id"), str) and _is_known(event)):
        raise InvalidContent("the body is not an event of a known type")
    known: Event = event  # type: ignore[assignment]  # its type was checked, members may be added
    return known


def _is_known(event: Mapping[str, Any]) -> bool:
    match event:
        case {"type": "target.ping"} | {"type": "ticket.export", "ticket": {"title": str()}}:
            return True
        case {"type": str(kind), "export": {"id": str()}, "change": dict()}:
            return kind in _TICKET_EVENTS
    return False


class _Headers:
    """Request headers. Only a header that occurs once is used: two programs may use different values of a repeated one."""

    def __init__(self, headers: Headers) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in _pairs(headers):
            self._values.setdefault(name.lower(), []).append(value)

    def one(self, name: str, form: re.Pattern[str] | None = None) -> str:
        """Return the value of a header; raises InvalidSignature."""
        values = self._values.get(name, [])
        if len(values) != 1 or (form is not None and not form.fullmatch(values[0])):
            raise InvalidSignature(f"the header {name} is missing, repeated or malformed")
        return values[0]


def _pairs(headers: Any) -> Iterable[tuple[str, str]]:
    """Return the pairs of a mapping, of a framework's headers, or of a list."""
    pairs: Iterable[tuple[str, str]] = headers.items() if hasattr(headers, "items") else headers
    return pairs


def _check_service(headers: _Headers, body: bytes, keys: Sequence[bytes], now: float, tolerance_s: float) -> str:
    """Check the service's signature and return its nonce."""
    timestamp = headers.one("x-service-timestamp", _TIMESTAMP)
    # Without the forms of both, signed bytes could be moved between timestamp, nonce and body.
    nonce = headers.one("x-service-nonce", _NONCE)
    _check_age(timestamp, now, tolerance_s)
    message = f"{timestamp}.{nonce}.".encode() + body
    expected = [f"sha256={hmac.new(key, message, 'sha256').hexdigest()}" for key in keys]
    _check_equal([headers.one("x-service-signature")], expected)
    return nonce


def _check_standard(headers: _Headers, body: bytes, keys: Sequence[bytes], now: float, tolerance_s: float) -> None:
    """Check the signature of Standard Webhooks; its id is that of the event, for which a repeat is no replay."""
    timestamp = headers.one("webhook-timestamp", _TIMESTAMP)
    message_id = headers.one("webhook-id", _MESSAGE_ID)
    _check_age(timestamp, now, tolerance_s)
    message = f"{message_id}.{timestamp}.".encode() + body
    decoded = [base64.b64decode(key.removeprefix(b"whsec_"), validate=True) for key in keys]
    if not all(decoded):
        raise ValueError("The secret of Standard Webhooks is `whsec_` and the base64 of its bytes.")
    expected = ["v1," + base64.b64encode(hmac.digest(key, message, "sha256")).decode() for key in decoded]
    _check_equal(headers.one("webhook-signature").split(" "), expected)


def _check_age(timestamp: str, now: float, tolerance_s: float) -> None:
    if abs(now - int(timestamp)) > tolerance_s:
        raise InvalidSignature("the timestamp is too old or in the future")


def _check_equal(given: Sequence[str], expected: Sequence[str]) -> None:
    # All are compared, so that the time does not depend on which one matches.
    equal = [hmac.compare_digest(each.encode(errors="replace"), wanted.encode()) for each in given for wanted in expected]
    if not any(equal):
        raise InvalidSignature("the signature is wrong")
