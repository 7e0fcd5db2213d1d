"""The story of one delivery, top to bottom: check, sign, send, judge.

It runs on a thread of the pool and touches no database; what it returns is written by the drain. A delivery that cannot be
signed is not sent.
"""

import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, Protocol

from schemas.delivery import Attempted, Claim, Outcome
from schemas.errors import RiskRelayError
from schemas.version import VERSION
from storage import identifiers
from storage.targets import secret_context
from storage.vault import Vault
from worker.retries import Schedule, judge
from worker.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

USER_AGENT: Final = f"RiskRelay/{VERSION}"
#: 128 bits in hex, as the contract says.
_NONCE_BYTES: Final = 16
#: Opening a sealed secret costs more than signing with it; a rotated one has other bytes and is opened anew.
_OPEN_SECRETS: Final = 1024

_log: Final = logging.getLogger(__name__)


class Post(Protocol):
    """Sends one request within a deadline and says what it met; never raises for what the network does."""

    def __call__(self, url: str, headers: dict[str, str], body: bytes) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """How deliveries are made: the default secret, the schedule, and what time and chance are."""

    default_secret: str | None
    schedule: Schedule
    now: Callable[[], datetime]
    jitter: Callable[[], float] = lambda: random.uniform(-1, 1)  # noqa: S311 - spreads load, guards nothing


class Courier:
    """Makes deliveries for the claims it is given."""

    def __init__(self, post: Post, vault: Vault, terms: Terms) -> None:
        self._post = post
        self._terms = terms
        self._open = lru_cache(maxsize=_OPEN_SECRETS)(vault.open)

    def deliver(self, claim: Claim) -> Attempted:
        """Make one attempt and judge it; whatever happens, the claim comes back with a verdict."""
        started_at = self._terms.now()
        attempt_id = identifiers.new_id(identifiers.ATTEMPT, started_at)
        nonce = secrets.token_hex(_NONCE_BYTES)
        outcome = self._attempt(claim, attempt_id, started_at, nonce)
        now = self._terms.now()
        verdict = judge(outcome, claim.try_number, claim.schedule_began_at, now, self._terms.jitter(), self._terms.schedule)
        return Attempted(claim, attempt_id, started_at, nonce, outcome, verdict)

    def _attempt(self, claim: Claim, attempt_id: str, started_at: datetime, nonce: str) -> Outcome:
        if claim.try_number > len(self._terms.schedule.delays_s) + 1:
            # Every try was begun and none ended: this export takes its worker down with it.
            return Outcome(error="worker_lost")
        try:
            secret = self._secret(claim)
            if secret is None:
                return Outcome(error="no_secret")
            return self._post(claim.base_url, _headers(claim, attempt_id, started_at, nonce, secret), claim.body)
        except RiskRelayError as broken:
            _log.error("delivery not possible", extra={"export_id": claim.export_id, "error": type(broken).__name__})
            return Outcome(error="secret_unreadable")
        except Exception:  # noqa: BLE001 - a bug of ours must not lose the claim: it is judged like an answer that did not come
            _log.exception("delivery broke", extra={"export_id": claim.export_id})
            return Outcome(error="internal_error")

    def _secret(self, claim: Claim) -> str | None:
        if claim.secret_sealed is None:
            return self._terms.default_secret
        return self._open(claim.secret_sealed, secret_context(claim.target_id))


def _headers(claim: Claim, attempt_id: str, started_at: datetime, nonce: str, secret: str) -> dict[str, str]:
    timestamp = int(started_at.timestamp())
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        TIMESTAMP_HEADER: str(timestamp),
        NONCE_HEADER: nonce,
        SIGNATURE_HEADER: sign(secret.encode(), timestamp, nonce, claim.body),
        "Idempotency-Key": claim.export_id,
        "X-Request-Id": attempt_id,
    }
