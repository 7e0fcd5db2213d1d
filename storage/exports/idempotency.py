"""Idempotency keys: the key, the work and the answer commit together, so that a repeat finds all three or none."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from peewee import OperationalError

from schemas.base.errors import IdempotencyConflict, IdempotencyInProgress
from schemas.base.timestamps import to_ms
from storage.db.columns import JsonField
from storage.db.engine import execute, rows

#: PostgreSQL's SQLSTATE for a lock that did not come in time: here, the first request with this key is still at work.
_LOCK_NOT_AVAILABLE: Final = "55P03"

#: A key whose time is over is new again; in one statement, as every keyed request pays for it.
_CLAIM: Final = """
INSERT INTO idempotency_keys (principal, method, route, key, payload_sha256, created_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (principal, method, route, key) DO UPDATE SET
    payload_sha256 = excluded.payload_sha256, created_at = excluded.created_at,
    response_status = NULL, response_headers = NULL, response_body = NULL
WHERE idempotency_keys.created_at < ?"""

_json: Final = JsonField()


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """What makes a keyed request itself: who, what, which key, and the digest of the payload."""

    principal: str
    method: str
    route: str
    key: str
    payload_sha256: str


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An answer as it was given the first time."""

    status: int
    headers: dict[str, str]
    body: str


def begin(request: KeyedRequest, now: datetime, ttl: timedelta) -> StoredResponse | None:
    """Claim the key within the caller's transaction; return the stored answer where the work was done before.

    Raises IdempotencyConflict for another payload, IdempotencyInProgress when the first request takes too long.
    """
    return None if _claim(request, now, ttl) else recall(request, now, ttl)


def recall(request: KeyedRequest, now: datetime, ttl: timedelta) -> StoredResponse | None:
    """Return the stored answer where the work was done before; claims nothing. Raises IdempotencyConflict."""
    found = rows(
        "SELECT payload_sha256, response_status, response_headers, response_body FROM idempotency_keys "
        "WHERE principal = ? AND method = ? AND route = ? AND key = ? AND created_at >= ?",
        (*_identity(request), to_ms(now - ttl)),
    )
    if not found:
        return None
    payload_sha256, status, headers, body = found[0]
    if payload_sha256 != request.payload_sha256:
        raise IdempotencyConflict
    return StoredResponse(status, _json.python_value(headers), body)


def finish(request: KeyedRequest, answer: StoredResponse) -> None:
    """Store the answer beside the key, within the same transaction as the work."""
    execute(
        "UPDATE idempotency_keys SET response_status = ?, response_headers = ?, response_body = ? "
        "WHERE principal = ? AND method = ? AND route = ? AND key = ?",
        (answer.status, _json.db_value(answer.headers), answer.body, *_identity(request)),
    )


def _claim(request: KeyedRequest, now: datetime, ttl: timedelta) -> bool:
    try:
        return bool(execute(_CLAIM, (*_identity(request), request.payload_sha256, to_ms(now), to_ms(now - ttl))))
    except OperationalError as failed:
        if getattr(failed.__cause__ or failed.__context__, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            raise IdempotencyInProgress from None
        raise


def _identity(request: KeyedRequest) -> tuple[str, str, str, str]:
    return request.principal, request.method, request.route, request.key
