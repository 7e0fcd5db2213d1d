"""Idempotency keys: the key, the work and the response commit together, so that a repeat finds all three or none."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from peewee import OperationalError

from schemas.base.errors import IdempotencyConflict, IdempotencyInProgress
from schemas.base.timestamps import to_ms
from storage.db.columns import JsonField
from storage.db.models import IdempotencyKeyRow
from storage.exports.idempotency_sql import claim, store

#: How long a natural key stands for a key that the client did not send.
NATURAL_KEY_TTL: Final = timedelta(days=1)
#: No client's key begins with it: those are ASCII.
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
    """Return the identity of a request without a key by what its payload is about; other differences do not count."""
    return KeyedRequest(principal, method, route, f"{_NATURAL}{natural_key}", natural_key)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was given the first time."""

    status: int
    headers: dict[str, str]
    body: str


def begin(request: KeyedRequest, now: datetime, ttl: timedelta) -> StoredResponse | None:
    """Claim the key in the caller's transaction; return the stored response if the work was done before.

    Raises IdempotencyConflict for another payload, IdempotencyInProgress when the first request takes too long.
    """
    return None if _claim(request, now, ttl) else recall(request, now, ttl)


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


def finish(request: KeyedRequest, response: StoredResponse) -> None:
    """Store the response beside the key, in the same transaction as the work."""
    store(_identity(request), response.status, _json.db_value(response.headers), response.body)


def _claim(request: KeyedRequest, now: datetime, ttl: timedelta) -> bool:
    try:
        return claim(_identity(request), request.payload_sha256, to_ms(now), to_ms(now - ttl))
    except OperationalError as failed:
        if getattr(failed.__cause__ or failed.__context__, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            raise IdempotencyInProgress from None
        raise


def _identity(request: KeyedRequest) -> tuple[str, str, str, str]:
    return request.principal, request.method, request.route, request.key
