"""The two statements of every keyed request: claim the key, and store the response beside it."""

from collections.abc import Sequence
from typing import Final

from storage.db.engine import execute

# An expired key is new again; in one statement, since every keyed request pays for it.
_CLAIM: Final = """
INSERT INTO idempotency_keys (principal, method, route, key, payload_sha256, created_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (principal, method, route, key) DO UPDATE SET
    payload_sha256 = excluded.payload_sha256, created_at = excluded.created_at,
    response_status = NULL, response_headers = NULL, response_body = NULL
WHERE idempotency_keys.created_at < ?"""
_STORE: Final = """
UPDATE idempotency_keys SET response_status = ?, response_headers = ?, response_body = ?
WHERE principal = ? AND method = ? AND route = ? AND key = ?"""


def claim(identity: Sequence[str], payload_sha256: str, now_ms: int, expired_before_ms: int) -> bool:
    """Claim the key of (principal, method, route, key) unless it is claimed and has not expired; return whether it was."""
    return bool(execute(_CLAIM, (*identity, payload_sha256, now_ms, expired_before_ms)))


def store(identity: Sequence[str], status: int, headers: str | None, body: str) -> None:
    """Store the response of a claimed key; `headers` are JSON."""
    execute(_STORE, (status, headers, body, *identity))
