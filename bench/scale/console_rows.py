"""Rows for every page of the console: a million exports in all states, with the related rows that the pages show.

A few statements copy the rows of exports that the product prepared, with new ids.
"""

from datetime import datetime, timedelta
from typing import Final

from schemas.base.timestamps import to_ms
from schemas.intake.scanner import PostbackForm
from storage.db.engine import database, execute, is_sqlite, rows, transaction
from tests.support.database.many_rows import checkpoint, many_targets
from tests.support.factories import Customer, make_approved, postback, record_postback

TARGETS: Final = 100
#: Hours of the last day with deliveries, by two workers each, whose sum the chart shows.
HOURS: Final = 24
#: Rows per transaction.
_CHUNK: Final = 100_000
#: Ids are a prefix and 26 digits, which begin with these zeros.
_LEADING: Final = "0" * 7
_FIRST: Final = 10**18

# The casts give PostgreSQL the parameters' types; its driver reserves the percent sign.
_NUMBERS: Final = """
WITH RECURSIVE numbers (n) AS (
    SELECT CAST(? AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < CAST(? AS BIGINT)
), placed (n, place) AS (SELECT n, n - n / 100 * 100 FROM numbers)"""
_STATUS: Final = """
CASE WHEN place < 90 THEN 'exported' WHEN place < 94 THEN 'failed' WHEN place < 96 THEN 'blocked'
    WHEN place < 97 THEN 'dismissed' WHEN place < 99 THEN 'prepared' ELSE 'approved' END"""
_EXPORTS: Final = f"""{_NUMBERS}
INSERT INTO exports (id, account_id, project_id, source_type, source_id, status, status_reason, target_id, ticket,
    ticket_digest, preview_problems, body, attempts, attempts_before, schedule_began_at, due_at, version, created_at,
    approved_at, finished_at, severity_rank)
SELECT 'exp_{_LEADING}' || ({_FIRST} + n), e.account_id, e.project_id, 'manual', 'note-' || n, {_STATUS},
    CASE WHEN place BETWEEN 90 AND 95 THEN 'attempts_exhausted' END,
    CASE WHEN place < 96 OR place = 99 THEN 'tgt_{_LEADING}' || ({_FIRST} + place) END, e.ticket, e.ticket_digest,
    e.preview_problems, CASE WHEN place < 96 OR place = 99 THEN e.body END, 1, 0, NULL,
    CASE WHEN place = 99 THEN CAST(? AS BIGINT) END, 1,
    CAST(? AS BIGINT) + n, NULL, CASE WHEN place < 97 THEN CAST(? AS BIGINT) + n END, n / 100 - n / 500 * 5
FROM placed CROSS JOIN exports e WHERE e.id = CAST(? AS TEXT)"""  # noqa: S608 - our own names and numbers
_AUDIT: Final = f"""{_NUMBERS}
INSERT INTO audit_entries (at, actor, action, subject_id, status_before, status_after)
SELECT CAST(? AS BIGINT) + n, 'worker:host:1', 'deliver', 'exp_{_LEADING}' || ({_FIRST} + n), 'delivering', 'exported'
FROM placed"""  # noqa: S608 - our own names and numbers
_ATTEMPTS: Final = f"""{_NUMBERS}
INSERT INTO attempts (id, export_id, number, started_at, outcome, response_status, dns_ms, connect_ms, tls_ms,
    first_byte_ms, total_ms, worker)
SELECT 'att_{_LEADING}' || ({_FIRST} + n), 'exp_{_LEADING}' || ({_FIRST} + n), 1, CAST(? AS BIGINT) + n,
    CASE WHEN place < 90 THEN 'delivered' ELSE 'retryable' END, CASE WHEN place < 90 THEN 200 ELSE 503 END, 1, 2, 3, 40, 60,
    'worker:host:1'
FROM placed WHERE place < 96"""  # noqa: S608 - our own names and numbers
_FINDINGS: Final = f"""{_NUMBERS}
INSERT INTO findings (id, project_id, fingerprint, code, title, severity, page_url, location, first_scan_run_id,
    last_scan_run_id, first_seen_at, last_seen_at, times_seen, account_id, page_digest, host)
SELECT 'fnd_{_LEADING}' || ({_FIRST} + n), f.project_id, 'print-' || n, f.code, f.title,
    CASE WHEN place < 50 THEN 'low' WHEN place < 80 THEN 'medium' ELSE 'high' END, f.page_url, f.location,
    f.first_scan_run_id, f.last_scan_run_id, f.first_seen_at, f.last_seen_at, 1,
    f.account_id, f.page_digest, f.host
FROM placed CROSS JOIN (SELECT * FROM findings ORDER BY id LIMIT 1) f"""  # noqa: S608 - our own names and numbers
_HOURS: Final = f"""{_NUMBERS}
INSERT INTO delivery_hours (target_id, hour_at, worker, delivered, failed)
SELECT 'tgt_{_LEADING}' || ({_FIRST} + place), CAST(? AS BIGINT) - n / 100 * 3600000, w.worker, 400, 20
FROM placed CROSS JOIN (SELECT 'worker:host:1' AS worker UNION ALL SELECT 'worker:host:2') w"""  # noqa: S608 - our own names and numbers
_COMPLIANCE: Final = f"""{_NUMBERS}
INSERT INTO compliance_requests (id, topic, shop_domain, body_sha256, status, result, counts, attempts, due_at, created_at,
    finished_at)
SELECT 'cpl_{_LEADING}' || ({_FIRST} + n), 'customers/redact', 'shop.example', 'digest-' || n, 'done', 'redacted', '{{}}', 1,
    CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT)
FROM placed"""  # noqa: S608 - our own names and numbers


def fill(customer: Customer, exports: int, now: datetime) -> tuple[str, str]:
    """Store `exports` exports of the customer with their related rows; return the ids of an export and of a target."""
    targets = many_targets(customer, 0, TARGETS, "https://tracker.example.com/hook")
    record_postback(PostbackForm().read(postback(1)), customer.project_id, now)
    pattern = make_approved(customer, targets[0], now)
    at = to_ms(now) - exports
    for first in range(0, exports, _CHUNK):
        until = min(first + _CHUNK, exports)
        _run(_EXPORTS, first, until, to_ms(now) + 3_600_000, at, at, pattern)
        _run(_AUDIT, first, until, at)
        _run(_ATTEMPTS, first, until, at)
    _run(_FINDINGS, 0, exports // 10)
    hour = to_ms(now.replace(minute=0, second=0, microsecond=0))
    _run(_HOURS, 0, TARGETS * HOURS, hour)
    _run(_COMPLIANCE, 0, exports // 100, at, at, to_ms(now - timedelta(days=1)))
    database.execute_sql("ANALYZE")
    checkpoint()
    [(export_id,)] = rows("SELECT id FROM exports WHERE status = 'failed' ORDER BY id DESC LIMIT 1")
    return str(export_id), targets[0]


def _run(statement: str, first: int, until: int, *parameters: object) -> None:
    with transaction():
        if not is_sqlite():
            # Without foreign key checks: they run for each row, which takes longer than everything else; all keys exist.
            execute("SET LOCAL session_replication_role = replica")
        execute(statement, (first, until, *parameters))
