"""Signs a message with its target's secrets and posts it.

A target's own secret takes precedence over the default secret, which only certain accounts use. A target's options may add
the signature of Standard Webhooks, another format of the body, and further headers. A message that cannot be signed is not
sent. Every result is an outcome, not an exception.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, reduce
from typing import Final, NamedTuple, TypeAlias

from runtime.account_shares import AccountId
from schemas.base.errors import RiskRelayError
from schemas.exports.delivery import Claim, Outcome
from schemas.exports.response_excerpt import response_excerpt, without_secret
from schemas.settings.parsers import MIN_SECRET_BYTES
from schemas.targets.delivery_options import DEFAULT_OPTIONS, DeliveryOptions
from schemas.targets.pings import PingJob
from schemas.targets.webhook_options import STANDARD_PREFIX, BodyFormat, Signature, credentials_of, standard_key
from schemas.version import USER_AGENT
from storage.exports.events.deliveries import EventJob
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.encrypted_columns import STANDARD_SECRET, TARGET_CERTIFICATE, TARGET_HEADERS
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from storage.targets.validations import ValidationJob
from worker.http.body_formats import formatted
from worker.http.signing import (
    NONCE_HEADER,
    SIGNATURE_HEADER,
    STANDARD_ID_HEADER,
    STANDARD_SIGNATURE_HEADER,
    STANDARD_TIMESTAMP_HEADER,
    TIMESTAMP_HEADER,
    sign,
    sign_standard,
)

#: 128 bits, in hex.
_NONCE_BYTES: Final = 16
#: How many decrypted secrets are cached: decrypting costs more than signing. A rotated secret has other bytes, so it is
#: decrypted again.
_OPEN_SECRETS: Final = 1024

#: The signature headers that a receipt shows.
_SIGNATURES: Final = (SIGNATURE_HEADER, STANDARD_SIGNATURE_HEADER)

_log: Final = logging.getLogger(__name__)


#: Sends one request within a deadline and returns its outcome; never raises for failures of the network. The arguments are
#: URL, headers, body, account, and the client certificate of the target with its key.
Post: TypeAlias = Callable[[str, dict[str, str], bytes, AccountId, str | None], Outcome]
#: A claimed export, event, ping or validation, with its target as the claim read it.
ClaimedTarget: TypeAlias = Claim | EventJob | PingJob | ValidationJob


class Message(NamedTuple):
    """One request to an account's target: `key` is the same for every attempt, `id` and `nonce` are unique to this one.

    `options` are the target's.
    """

    id: str
    key: str
    target_id: str
    url: str
    secret_sealed: bytes | None
    body: bytes
    at: datetime
    nonce: str
    account_id: AccountId = None
    options: DeliveryOptions = DEFAULT_OPTIONS


class _Request(NamedTuple):
    """A signed request, and every secret that a response could repeat."""

    headers: dict[str, str]
    body: bytes
    secrets: tuple[str, ...]
    certificate: str | None = None


class _MissingSecret(Exception):
    """A secret that signs for the target is missing; the argument is the error code."""


class SignedPost:
    """Signs messages and posts them."""

    def __init__(self, post: Post, vault: Vault, default_secret: DefaultSecret) -> None:
        self._post = post
        self._default_secret = default_secret
        self._open = lru_cache(maxsize=_OPEN_SECRETS)(vault.open)

    def send(self, message: Message) -> Outcome:
        """Send one message and return its outcome; never raises."""
        try:
            request = self._request(message)
            outcome = self._post(message.url, request.headers, request.body, message.account_id, request.certificate)
        except _MissingSecret as missing:
            return Outcome(error=str(missing))
        except RiskRelayError as broken:
            _log.error("message cannot be signed", extra={**_log_fields(message), "error": type(broken).__name__})
            return Outcome(error="secret_unreadable")
        except Exception:  # noqa: BLE001 - a bug of ours must not lose the message: it counts as a missing response
            _log.exception("sending failed", extra=_log_fields(message))
            return Outcome(error="internal_error")
        received = None if outcome.status is None else hashlib.sha256(outcome.body).hexdigest()
        short = [secret for secret in request.secrets if len(secret.encode()) < MIN_SECRET_BYTES]
        body = reduce(without_secret, [secret for secret in request.secrets if secret not in short], outcome.body)
        # A secret of a few letters occurs in any response by chance; removing it must not damage the ticket fields.
        clean = reduce(without_secret, short, body)
        return outcome._replace(
            body=body,
            kept=_excerpt(clean, message),
            signature=" ".join(request.headers[name] for name in _SIGNATURES if name in request.headers),
            body_sha256=hashlib.sha256(request.body).hexdigest(),
            response_sha256=received,
        )

    def _request(self, message: Message) -> _Request:
        if message.options is DEFAULT_OPTIONS:
            secret = self._secret(message)
            return _Request(signed_headers(message, secret), message.body, (secret,))
        options, target_id = message.options, message.target_id
        signature = Signature(options.signature)
        own: dict[str, str] = {}
        if options.headers_sealed is not None:
            own = json.loads(self._open(options.headers_sealed, TARGET_HEADERS.context(target_id)))
        all_secrets = tuple(part for value in own.values() for part in credentials_of(value) if part)
        body, described = formatted(message.body, BodyFormat(options.format))
        formed = message._replace(body=body)
        headers = {**own, **_plain_headers(formed), **described}
        if signature.is_service:
            secret = self._secret(message)
            headers |= _service_headers(formed, secret)
            all_secrets += (secret,)
        if signature.is_standard:
            standard = self._standard_secret(message)
            headers |= _standard_headers(formed, standard)
            all_secrets += (standard, standard.removeprefix(STANDARD_PREFIX))
        return _Request(headers, body, all_secrets, open_certificate(self._open, target_id, options))

    def _secret(self, message: Message) -> str:
        if message.secret_sealed is not None:
            return self._open(message.secret_sealed, secret_context(message.target_id))
        secret = self._default_secret.text_for(message.account_id)
        if secret is None:
            raise _MissingSecret("no_secret")
        return secret

    def _standard_secret(self, message: Message) -> str:
        sealed = message.options.standard_secret_sealed
        if sealed is None:
            raise _MissingSecret("no_standard_secret")
        return self._open(sealed, STANDARD_SECRET.context(message.target_id))


def open_certificate(open_sealed: Callable[[bytes, str], str], target_id: str, options: DeliveryOptions) -> str | None:
    """Return a target's own client certificate with its key; None if it has none. Raises WrongEncryptionKey."""
    sealed = options.certificate_sealed
    return None if sealed is None else open_sealed(sealed, TARGET_CERTIFICATE.context(target_id))


def message_to(receiver: ClaimedTarget, message_id: str, key: str, body: bytes, at: datetime, nonce: str) -> Message:
    """Return a message to the target of a claim."""
    target = receiver.target_id, receiver.base_url, receiver.secret_sealed
    return Message(message_id, key, *target, body, at, nonce, receiver.account_id, receiver.options)


def new_nonce() -> str:
    """Return a nonce for one message: 32 hex digits."""
    return secrets.token_hex(_NONCE_BYTES)


def signed_headers(message: Message, secret: str) -> dict[str, str]:
    """Return the headers of a message, signed with a secret that is not empty."""
    return _plain_headers(message) | _service_headers(message, secret)


def _plain_headers(message: Message) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "Idempotency-Key": message.key,
        "X-Request-Id": message.id,
    }


def _service_headers(message: Message, secret: str) -> dict[str, str]:
    timestamp = int(message.at.timestamp())
    return {
        TIMESTAMP_HEADER: str(timestamp),
        NONCE_HEADER: message.nonce,
        SIGNATURE_HEADER: sign(secret.encode(), timestamp, message.nonce, message.body),
    }


def _standard_headers(message: Message, secret: str) -> dict[str, str]:
    timestamp = int(message.at.timestamp())
    return {
        STANDARD_ID_HEADER: message.key,
        STANDARD_TIMESTAMP_HEADER: str(timestamp),
        STANDARD_SIGNATURE_HEADER: sign_standard(standard_key(secret) or b"", message.key, timestamp, message.body),
    }


def _excerpt(body: bytes, message: Message) -> str | None:
    try:
        return response_excerpt(body)
    except Exception:  # noqa: BLE001 - a bug of ours in reading a response must not count as a missing response
        _log.exception("response excerpt failed", extra=_log_fields(message))
        return None


def _log_fields(message: Message) -> dict[str, str]:
    return {"attempt_id": message.id, "target_id": message.target_id}
