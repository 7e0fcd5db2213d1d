"""Functions of all hand-written routes: authentication, idempotency keys, exports with their audit log, ids and times.

Several rows are written in one statement; `bench.handwritten.stores` runs the statements.
"""

import hashlib
import json
import re
import secrets
import time
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import falcon

from bench.handwritten.stores import Execute, Row, SqlStore

#: The body and the headers of a response.
RouteResponse = tuple[dict[str, Any], dict[str, str]]

#: The default of IDEMPOTENCY_TTL_HOURS.
_KEYS_LAST_MS: Final = 24 * 3600 * 1000

_HOLDER: Final = """
SELECT t.user_id, u.account_id, a.may_use_webhooks, u.email, t.kind, t.abilities
FROM tokens t JOIN users u ON u.id = t.user_id JOIN accounts a ON a.id = u.account_id
WHERE t.token_sha256 = ? AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?)"""
_CLAIM_KEY: Final = """
INSERT INTO idempotency_keys (principal, method, route, key, payload_sha256, created_at) VALUES (?, 'POST', ?, ?, ?, ?)
ON CONFLICT (principal, method, route, key) DO UPDATE SET
    payload_sha256 = excluded.payload_sha256, created_at = excluded.created_at,
    response_status = NULL, response_headers = NULL, response_body = NULL
WHERE idempotency_keys.created_at < ?"""
_READ_RESPONSE: Final = """
SELECT payload_sha256, response_headers, response_body FROM idempotency_keys
WHERE principal = ? AND method = 'POST' AND route = ? AND key = ?"""
_STORE_RESPONSE: Final = """
UPDATE idempotency_keys SET response_status = ?, response_headers = ?, response_body = ?
WHERE principal = ? AND method = 'POST' AND route = ? AND key = ?"""
_PREPARE: Final = """
INSERT INTO exports (id, account_id, project_id, source_type, source_id, scan_run_id, status, ticket, ticket_digest,
    preview_problems, attempts, attempts_before, version, created_at, severity_rank, rule, findings_total, findings_fixed)
VALUES """
_PREPARED: Final = "(?, ?, ?, ?, ?, ?, 'prepared', ?, ?, '[]', 0, 0, 1, ?, ?, ?, ?, ?)"
_TERMS: Final = "INSERT INTO export_terms (account_id, kind, value, export_id) VALUES "
_WORDS: Final = "INSERT INTO export_search (export_id, words) VALUES "
_AUDIT: Final = (
    "INSERT INTO audit_entries (at, actor, action, subject_id, status_before, status_after, digest, account_id) VALUES "
)
_ENTRY: Final = "(?, ?, ?, ?, ?, ?, ?, ?)"

#: In this order; `severity_rank` is the index.
SEVERITIES: Final = ("info", "low", "medium", "high", "critical")
_WORD: Final = re.compile(r"[^\W_]+")


class Holder(NamedTuple):
    """The user of a request's token."""

    user_id: int
    account_id: int
    may_use_webhooks: bool
    email: str

    @property
    def key(self) -> str:
        """The user's name in idempotency keys and in the audit log."""
        return f"user:{self.user_id}"


class DraftExport(NamedTuple):
    """An export that is not stored yet; `rule` is the rule code of its finding, if it has one."""

    id: str
    source_type: str
    source_id: str
    scan_run_id: int | None
    ticket: dict[str, Any]
    rule: str | None = None


def holder_of(store: SqlStore, req: falcon.Request, kind: str, ability: str) -> Holder:
    """Look up the token of a request, without a cache. Raises HTTPUnauthorized or HTTPForbidden."""
    token = (req.get_header("Authorization") or "").removeprefix("Bearer ")
    found = store.row(_HOLDER, (hashlib.sha256(token.encode()).hexdigest(), now_ms()))
    if found is None:
        raise falcon.HTTPUnauthorized
    if found[4] != kind or ability not in json.loads(found[5]):
        raise falcon.HTTPForbidden
    return Holder(*found[:4])


def once(
    store: SqlStore,
    req: falcon.Request,
    resp: falcon.Response,
    principal: str,
    status: int,
    body: bytes,
    work: Callable[[Execute], RouteResponse],
) -> None:
    """Call `work` once per Idempotency-Key, in one transaction that stores the response; a repeat gets that response."""
    identity = (principal, req.uri_template, req.get_header("Idempotency-Key"))
    digest, at = hashlib.sha256(body + req.path.encode()).hexdigest(), now_ms()
    with store.transaction() as execute:
        if execute(_CLAIM_KEY, (*identity, digest, at, at - _KEYS_LAST_MS)).rowcount:
            response, headers = work(execute)
            text = json.dumps(response, ensure_ascii=False)
            execute(_STORE_RESPONSE, (status, compact(headers), text, *identity))
        else:
            known_digest, reported_headers, text = execute(_READ_RESPONSE, identity).fetchone()
            if known_digest != digest:
                raise falcon.HTTPConflict
            headers = json.loads(reported_headers)
    resp.status = status
    resp.set_headers(headers)
    resp.data = text.encode()


def prepare(
    execute: Execute, account_id: int, project_id: int, drafts: Sequence[DraftExport], at_ms: int, actor: str
) -> None:
    """Store exports, their search entries, and their entries in the audit log."""
    if not drafts:
        return
    exports: list[Row] = []
    terms: list[Row] = []
    for draft in drafts:
        digest = f"sha256:{hashlib.sha256(canonical(draft.ticket)).hexdigest()}"
        counts = (None, None) if draft.rule is None else (1, 0)
        about = (compact(draft.ticket), digest, at_ms, SEVERITIES.index(draft.ticket["severity"]), draft.rule, *counts)
        exports.append((draft.id, account_id, project_id, draft.source_type, draft.source_id, draft.scan_run_id, *about))
        terms.append((account_id, "host", urlsplit(draft.ticket["page_url"]).hostname, draft.id))
        if draft.rule is not None:
            terms.append((account_id, "rule", draft.rule, draft.id))
    insert(execute, _PREPARE, _PREPARED, exports)
    insert(execute, _TERMS, "(?, ?, ?, ?)", terms)
    insert(execute, _WORDS, "(?, ?)", [(draft.id, f"@{account_id} {_words(draft.ticket)}") for draft in drafts])
    audit(execute, [(at_ms, actor, "prepare", draft.id, None, "prepared", None, account_id) for draft in drafts])


def insert(execute: Execute, statement: str, row: str, rows: Sequence[Row]) -> None:
    """Insert several rows; `statement` ends with VALUES, and `row` has the placeholders of one row."""
    execute(statement + ", ".join([row] * len(rows)), [value for each in rows for value in each])


def audit(execute: Execute, entries: Sequence[Row]) -> None:
    """Insert audit entries: time, actor, action, subject, status before and after, digest of the decision, account."""
    insert(execute, _AUDIT, _ENTRY, entries)


def canonical(value: dict[str, Any]) -> bytes:
    """Return canonical JSON, which is hashed and delivered."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def compact(value: object) -> str:
    """Return JSON in the form of the tables."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def time_text(ms: int | None) -> str | None:
    """Return a time in milliseconds since 1970 in the format of the API."""
    return None if ms is None else f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(ms // 1000))}.{ms % 1000:03d}Z"


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id(prefix: str, at_ms: int) -> str:
    """Return an id that sorts by time."""
    return f"{prefix}_{at_ms:012x}{secrets.token_hex(7)}"


def _words(ticket: dict[str, Any]) -> str:
    """Return the distinct search words of a ticket, in their order."""
    text = unicodedata.normalize("NFKC", f"{ticket['title']} {ticket['page_url']} {ticket['description']}").casefold()
    return " ".join(dict.fromkeys(_WORD.findall(text)))
