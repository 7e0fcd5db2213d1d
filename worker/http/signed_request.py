"""Signs a message with its target's secret and posts it.

A target's own secret takes precedence over the default, which serves certain accounts only. A message that cannot be signed
is not sent. Every result is an outcome, not an exception.
"""

import logging
import secrets
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from runtime.account_shares import AccountId
from schemas.base.errors import RiskRelayError
from schemas.exports.delivery import Outcome
from schemas.exports.response_excerpt import kept_answer, without_secret
from schemas.settings.parsers import LEAST_SECRET_BYTES
from schemas.version import VERSION
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

USER_AGENT: Final = f"RiskRelay/{VERSION}"
#: 128 bits, in hex.
_NONCE_BYTES: Final = 16
#: Decrypting a secret costs more than signing with it; a rotated one has other bytes and is decrypted again.
_OPEN_SECRETS: Final = 1024

_log: Final = logging.getLogger(__name__)


class Post(Protocol):
    """Sends one request within a deadline and returns its outcome; never raises for what the network does."""

    def __call__(self, url: str, headers: dict[str, str], body: bytes, account_id: AccountId) -> Outcome: ...


class Message(NamedTuple):
    """One request to an account's target: `key` is the same for every attempt, `id` and `nonce` are unique to this one."""

    id: str
    key: str
    target_id: str
    url: str
    secret_sealed: bytes | None
    body: bytes
    at: datetime
    nonce: str
    account_id: AccountId = None


class SignedPost:
    """Signs messages and posts them."""

    def __init__(self, post: Post, vault: Vault, default_secret: DefaultSecret) -> None:
        self._post = post
        self._default_secret = default_secret
        self._open = lru_cache(maxsize=_OPEN_SECRETS)(vault.open)

    def send(self, message: Message) -> Outcome:
        """Send one message and return its outcome; never raises."""
        try:
            secret = self._secret(message)
            if secret is None:
                return Outcome(error="no_secret")
            outcome = self._post(message.url, signed_headers(message, secret), message.body, message.account_id)
        except RiskRelayError as broken:
            _log.error("message cannot be signed", extra={**_named(message), "error": type(broken).__name__})
            return Outcome(error="secret_unreadable")
        except Exception:  # noqa: BLE001 - a bug of ours must not lose the message: it counts as a missing response
            _log.exception("sending failed", extra=_named(message))
            return Outcome(error="internal_error")
        clean = without_secret(outcome.body, secret)
        # A secret of a few letters, as older versions allowed, occurs in any response: its ticket fields must survive.
        is_short = len(secret.encode()) < LEAST_SECRET_BYTES
        return outcome._replace(body=outcome.body if is_short else clean, kept=_kept(clean, message))

    def _secret(self, message: Message) -> str | None:
        if message.secret_sealed is None:
            return self._default_secret.text_for(message.account_id)
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
    except Exception:  # noqa: BLE001 - a bug of ours in reading a response must not count as a missing response
        _log.exception("response excerpt failed", extra=_named(message))
        return None


def _named(message: Message) -> dict[str, str]:
    return {"attempt_id": message.id, "target_id": message.target_id}
