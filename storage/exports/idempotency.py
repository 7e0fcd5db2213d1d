"""Idempotency keys: key, work and response commit together, so that a repeated request finds all three or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from peewee import OperationalError

from schemas.base.errors import IdempotencyConflict, IdempotencyInProgress
from schemas.base.timestamps import to_ms
from storage.db.columns import JsonField
from storage.db.engine import sqlstate_of
from storage.db.models import IdempotencyKeyRow
from storage.exports import idempotency_sql

#: How long a natural key replaces a key that the client did not send.
NATURAL_KEY_TTL: Final = timedelta(days=1)
#: The prefix of natural keys. Clients' keys are ASCII, so none begins with it.
_NATURAL: Final = "≡"
#: PostgreSQL's SQLSTATE for a lock timeout: here, the first request with this key is still running.
_LOCK_NOT_AVAILABLE: Final = "55P03"


_json: Final = JsonField()


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """The identity of a keyed request: principal, method, route, key; and the digest of its payload."""

    principal: str
    method: str
    route: str
    key: str
    payload_sha256: str


def naturally_keyed(principal: str, method: str, route: str, natural_key: str) -> KeyedRequest:
    """Return the identity of a request without a key, by the subject of its payload; other differences are ignored."""
    return KeyedRequest(principal, method, route, f"{_NATURAL}{natural_key}", natural_key)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response to the first request."""

    status: int
    headers: dict[str, str]
    body: str


def begin(request: KeyedRequest, now: datetime, ttl: timedelta) -> StoredResponse | None:
    """Claim the key in the caller's transaction; return the stored response if the work was done before.

    Raises IdempotencyConflict for another payload, and IdempotencyInProgress if the first request takes too long.
    """
    while not claim_all([request], now, ttl):
        # If an erasure has changed the key meanwhile, or the removal of its user has deleted it, the key is free again.
        if (before := recall(request, now, ttl)) is not None:
            return before
    return None


def claim_all(requests: Sequence[KeyedRequest], now: datetime, ttl: timedelta) -> set[KeyedRequest]:
    """Claim distinct keys of one principal, method and route in the caller's transaction; return the requests with new keys.

    Raises IdempotencyInProgress if the first request of a key takes too long.
    """
    if not requests:
        return set()
    keys = sorted((each.key, each.payload_sha256) for each in requests)
    try:
        claimed = idempotency_sql.claim(_of(requests[0]), keys, to_ms(now), to_ms(now - ttl))
    except OperationalError as failed:
        if sqlstate_of(failed) == _LOCK_NOT_AVAILABLE:
            raise IdempotencyInProgress from None
        raise
    return {each for each in requests if each.key in claimed}


def recall(request: KeyedRequest, now: datetime, ttl: timedelta) -> StoredResponse | None:
    """Return the stored response if the work was done before; claims nothing. Raises IdempotencyConflict."""
    k = IdempotencyKeyRow
    same = (k.principal == request.principal, k.method == request.method, k.route == request.route, k.key == request.key)
    row = k.select().where(*same, k.created_at >= now - ttl).first()
    if row is None:
        return None
    if row.payload_sha256 != request.payload_sha256:
        raise IdempotencyConflict
    return StoredResponse(row.response_status, row.response_headers, row.response_body)


def finish_all(responses: Sequence[tuple[KeyedRequest, StoredResponse]]) -> None:
    """Store the responses of one principal, method and route beside their keys, in the transaction of the work."""
    if responses:
        values = [(each.key, new.status, _json.db_value(new.headers), new.body) for each, new in responses]
        idempotency_sql.store(_of(responses[0][0]), values)


def _of(request: KeyedRequest) -> tuple[str, str, str]:
    return request.principal, request.method, request.route
