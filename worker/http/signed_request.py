"""What every request to a receiver has in common: the secret that signs for its target, the headers, one POST.

A target's own secret wins over the default. What cannot be signed is not sent. Whatever happens comes back as an outcome.
"""

import logging
import secrets
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from schemas.base.errors import RiskRelayError
from schemas.exports.delivery import Outcome
from schemas.exports.response_excerpt import kept_answer, without_secret
from schemas.settings.parsers import LEAST_SECRET_BYTES
from schemas.version import VERSION
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

USER_AGENT: Final = f"RiskRelay/{VERSION}"
#: 128 bits in hex, as the contract says.
_NONCE_BYTES: Final = 16
#: Opening a sealed secret costs more than signing with it; a rotated one has other bytes and is opened anew.
_OPEN_SECRETS: Final = 1024

_log: Final = logging.getLogger(__name__)


class Post(Protocol):
    """Sends one request within a deadline and says what it met; never raises for what the network does."""

    def __call__(self, url: str, headers: dict[str, str], body: bytes) -> Outcome: ...


class Message(NamedTuple):
    """One request to a target: `key` is the same for every attempt, `id` and `nonce` are this one's alone."""

    id: str
    key: str
    target_id: str
    url: str
    secret_sealed: bytes | None
    body: bytes
    at: datetime
    nonce: str


class SignedPost:
    """Signs messages and posts them."""

    def __init__(self, post: Post, vault: Vault, default_secret: str | None) -> None:
        self._post = post
        self._default_secret = default_secret
        self._open = lru_cache(maxsize=_OPEN_SECRETS)(vault.open)

    def send(self, message: Message) -> Outcome:
        """Send one message and return what it met; never raises."""
        try:
            secret = self._secret(message)
            if secret is None:
                return Outcome(error="no_secret")
            outcome = self._post(message.url, signed_headers(message, secret), message.body)
        except RiskRelayError as broken:
            _log.error("delivery not possible", extra={**_named(message), "error": type(broken).__name__})
            return Outcome(error="secret_unreadable")
        except Exception:  # noqa: BLE001 - a bug of ours must not lose the message: it is judged like an answer that did not come
            _log.exception("delivery broke", extra=_named(message))
            return Outcome(error="internal_error")
        clean = without_secret(outcome.body, secret)
        # A secret of some letters, as could be given once, stands in any answer: what it says of the ticket has to last.
        is_short = len(secret.encode()) < LEAST_SECRET_BYTES
        return outcome._replace(body=outcome.body if is_short else clean, kept=_kept(clean, message))

    def _secret(self, message: Message) -> str | None:
        if message.secret_sealed is None:
            return self._default_secret
        return self._open(message.secret_sealed, secret_context(message.target_id))


def new_nonce() -> str:
    """Return a nonce for one message: 32 hex digits."""
    return secrets.token_hex(_NONCE_BYTES)


def signed_headers(message: Message, secret: str) -> dict[str, str]:
    """Return the headers of a message, signed with a secret that is not empty."""
    timestamp = int(message.at.timestamp())
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        TIMESTAMP_HEADER: str(timestamp),
        NONCE_HEADER: message.nonce,
        SIGNATURE_HEADER: sign(secret.encode(), timestamp, message.nonce, message.body),
        "Idempotency-Key": message.key,
        "X-Request-Id": message.id,
    }


def _kept(body: bytes, message: Message) -> str | None:
    try:
        return kept_answer(body)
    except Exception:  # noqa: BLE001 - a bug of ours in reading an answer must not make it one that never came
        _log.exception("answer not kept", extra=_named(message))
        return None


def _named(message: Message) -> dict[str, str]:
    return {"attempt_id": message.id, "target_id": message.target_id}
