"""One delivery as a job of a task queue: read the due export, sign and send it, record an attempt and the status.

Written for speed: raw SQL, requests prepared once and sent through the adapter, connections to database and receiver kept
for the life of the process. It records the same attempt and status as the product, with the same durability; it omits the
audit log, the claim with its lease, the address guard and the evaluation of responses. It imports only the signature
from the product, so that it runs in a task queue's separate environment.
"""

import functools
import os
import secrets
import socket
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import requests
from requests.adapters import HTTPAdapter

from bench.handwritten.stores import PostgresStore, SqliteStore, SqlStore, open_store
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

_DATABASE_URL: Final = os.environ["DATABASE_URL"]
_SECRET: Final = os.environ["WEBHOOK_SECRET"].encode()
_WORKER: Final = f"peer:{socket.gethostname()}"
_TIMEOUT_S: Final = 15
#: At least the number of threads of any peer.
_CONNECTIONS: Final = 64

_READ: Final = """
SELECT e.body, t.base_url, e.attempts FROM exports e JOIN targets t ON t.id = e.target_id
WHERE e.id = ? AND e.status = 'approved' AND t.status = 'active'"""
_MOVE: Final = """
UPDATE exports SET status = 'exported', due_at = NULL, attempts = ?, version = version + 1, finished_at = ?,
    last_attempt_at = ?, last_response_status = ?, last_duration_ms = ? WHERE id = ? AND status = 'approved'"""
_ATTEMPT: Final = """
INSERT INTO attempts (id, export_id, number, started_at, outcome, response_status, address, dns_ms, connect_ms, tls_ms,
    first_byte_ms, total_ms, nonce, worker) VALUES (?, ?, ?, ?, 'delivered', ?, '127.0.0.1', 0, 0, NULL, ?, ?, ?, ?)"""

#: Threads that wait for this lock wake as soon as it is free; in SQLite's own wait they would sleep and poll.
_sqlite_lock: Final = threading.Lock()
_thread_state: Final = threading.local()
_adapter: Final = HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS)


def deliver(export_id: str) -> None:
    """Deliver one export. Raises AssertionError if the receiver rejects it or another worker has delivered it."""
    store = _store()
    due = store.row(_READ, (export_id,))
    assert due is not None, "Not due."
    body, url, attempts = bytes(due[0]), due[1], due[2]
    attempt_id, nonce, started_ms = f"att_{secrets.token_hex(13)}", secrets.token_hex(16), _now_ms()
    response = _adapter.send(_request(url, body, export_id, attempt_id, nonce), timeout=_TIMEOUT_S)
    response.close()
    assert response.ok, response.status_code
    now_ms = _now_ms()
    with _write_lock(store), store.transaction() as execute:
        elapsed_ms = now_ms - started_ms
        moved = (attempts + 1, now_ms, started_ms, response.status_code, elapsed_ms, export_id)
        assert execute(_MOVE, moved).rowcount == 1, "Another worker delivered it."
        attempt = (
            attempt_id,
            export_id,
            attempts + 1,
            started_ms,
            response.status_code,
            elapsed_ms,
            elapsed_ms,
            nonce,
            _WORKER,
        )
        execute(_ATTEMPT, attempt)


def _request(url: str, body: bytes, export_id: str, attempt_id: str, nonce: str) -> requests.PreparedRequest:
    request = _prepared(url).copy()
    timestamp = int(time.time())
    request.headers[TIMESTAMP_HEADER] = str(timestamp)
    request.headers[NONCE_HEADER] = nonce
    request.headers[SIGNATURE_HEADER] = sign(_SECRET, timestamp, nonce, body)
    request.headers["Idempotency-Key"] = export_id
    request.headers["X-Request-Id"] = attempt_id
    request.headers["Content-Length"] = str(len(body))
    request.body = body
    return request


@functools.cache
def _prepared(url: str) -> requests.PreparedRequest:
    return requests.Request("POST", url, headers={"Content-Type": "application/json"}).prepare()


def _store() -> SqlStore:
    """Return the thread's store on SQLite, or the process's store on PostgreSQL."""
    if not _DATABASE_URL.startswith("sqlite:///"):
        return _postgres()
    store: SqlStore | None = getattr(_thread_state, "store", None)
    if store is None:
        store = _thread_state.store = open_store(_DATABASE_URL)
    return store


@functools.cache
def _postgres() -> PostgresStore:
    return PostgresStore(_DATABASE_URL)


def _write_lock(store: SqlStore) -> AbstractContextManager[object]:
    return _sqlite_lock if isinstance(store, SqliteStore) else nullcontext()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
