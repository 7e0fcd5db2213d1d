"""The two statements of every keyed request: claim the keys, and store the responses beside them."""

from collections.abc import Sequence
from typing import Final

from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import column_types
from storage.db.models import IdempotencyKeyRow

# An expired key counts as new. One statement claims new and expired keys, because every keyed request runs it. "WHERE true"
# shows SQLite where the SELECT ends.
_CLAIM: Final = """
WITH r (key, payload_sha256) AS ({rows})
INSERT INTO idempotency_keys (principal, method, route, key, payload_sha256, created_at)
SELECT ?, ?, ?, key, payload_sha256, ? FROM r WHERE true
ON CONFLICT (principal, method, route, key) DO UPDATE SET
    payload_sha256 = excluded.payload_sha256, created_at = excluded.created_at,
    response_status = NULL, response_headers = NULL, response_body = NULL
WHERE idempotency_keys.created_at < ?
RETURNING key"""
_STORE: Final = """
WITH r (key, response_status, response_headers, response_body) AS ({rows})
UPDATE idempotency_keys
SET response_status = r.response_status, response_headers = r.response_headers, response_body = r.response_body
FROM r WHERE principal = ? AND method = ? AND route = ? AND idempotency_keys.key = r.key"""
_CLAIMED: Final = column_types(IdempotencyKeyRow, ("key", "payload_sha256"))
_STORED: Final = column_types(IdempotencyKeyRow, ("key", "response_status", "response_headers", "response_body"))

#: The principal, the method and the route of a key.
Scope = tuple[str, str, str]


def claim(scope: Scope, keys: Sequence[tuple[str, str]], now_ms: int, expired_before_ms: int) -> set[str]:
    """Claim distinct keys, each with the digest of its payload; return the keys that were free or had expired."""
    return {row[0] for row in rows_over(_CLAIM, _CLAIMED, keys, (*scope, now_ms, expired_before_ms))}


def store(scope: Scope, responses: Sequence[tuple[str, int, str | None, str]]) -> None:
    """Store the responses of claimed keys: a key, a status, headers as JSON, and a body each."""
    execute_over(_STORE, _STORED, responses, scope)
