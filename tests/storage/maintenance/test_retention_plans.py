"""Expired rows are found by an index, however many others there are; without any, a search takes one statement per table."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.base.timestamps import from_ms, to_ms
from storage.db.engine import database, execute, is_sqlite, rows, transaction
from storage.maintenance import retention
from tests.support.database.many_rows import export_id, many_finished, many_targets
from tests.support.database.query_plans import SqlStatement, full_scans, plan_of, rolled_back, statements
from tests.support.factories import make_customer

#: Tables that may grow as long as an installation runs.
GROWING: Final = frozenset(
    {
        "exports",
        "attempts",
        "handoffs",
        "evidence_captures",
        "inbound_emails",
        "page_results",
        "pings",
        "idempotency_keys",
        "delivery_hours",
        "console_sessions",
        "tokens",
        "compliance_requests",
    }
)
#: So many that PostgreSQL, which reads small tables completely, prefers an index.
MANY: Final = 8000
#: How many of them are expired.
OVER: Final = 150
#: One search per table, and two for tokens. Attempts, handoffs and their uploads, and emails are found by their export.
STATEMENTS_OF_A_RUN: Final = 17

# A row of each table for each export, with the export's time; the rows are wide, because PostgreSQL estimates by pages.
_ROWS: Final = {
    "attempts (id, export_id, number, started_at, outcome, total_ms, worker, answer)": (
        "'att_' || id, id, 1, 1, 'rejected', 1, 'w', {wide}"
    ),
    "evidence_captures (id, project_id, page_url, created_at)": "source_id, {project}, {wide}, 1",
    "handoffs (id, source_type, source_id, project_id, user_id, export_id, status, created_at)": (
        "'hof_' || {wide} || id, 'evidence_capture', source_id, {project}, {user}, id, 'received', 1"
    ),
    "inbound_emails "
    "(id, project_id, message_sha256, sender, recipients, subject, text, attachments, export_id, created_at)": (
        "'eml_' || id, {project}, id, '', '[]', '', {wide}, '[]', id, 1"
    ),
    "page_results (scan_run_id, url, response_headers, received_at)": "1, id, {wide}, finished_at",
    "pings (id, target_id, requested_at, error_code)": (
        "CASE WHEN finished_at < {recent} THEN 'png_0' ELSE 'png_Z' END || SUBSTR(id, 5), target_id, 1, {wide}"
    ),
    "idempotency_keys (principal, method, route, key, payload_sha256, response_body, created_at)": (
        "'user:1', 'POST', '/', id, 'a', {wide}, finished_at"
    ),
    "tokens (user_id, kind, name, abilities, token_sha256, created_at, expires_at, revoked_at)": (
        "{user}, 'api', {wide}, '[]', id, 1, finished_at, finished_at"
    ),
    "delivery_hours (target_id, hour_at, worker, delivered, failed)": "target_id, finished_at, {wide} || id, 1, 1",
    # The sessions belong to tokens that stay: a token is deleted only after its sessions.
    "console_sessions (id, token_id, secret_sha256, browser_sha256, created_at, seen_at, ended_at, ended_reason)": (
        "'ses_' || SUBSTR(id, 5), {token} + {over} + ROW_NUMBER() OVER (ORDER BY id) / 2, id, {wide}, 1, finished_at, "
        "finished_at, 'signed_out'"
    ),
    "compliance_requests (id, topic, shop_domain, body_sha256, status, counts, report_sealed, attempts, due_at, created_at, "
    "finished_at)": "'cpl_' || id, 'shop/redact', {wide}, id, 'done', '', body, 1, 1, 1, finished_at",
}


@pytest.fixture(scope="module")
def until(module_database: Path) -> retention.Cutoffs:
    """The cutoffs of a database with many rows that are not expired.

    PostgreSQL gets statistics about the rows; SQLite never collects any.
    """
    now = utc_now()
    seed(now)
    if not is_sqlite():
        for table in GROWING:
            database.execute_sql(f"ANALYZE {table}")
    return retention.cutoffs(now, timedelta(days=90), timedelta(hours=72))


def seed(now: datetime) -> None:
    customer = make_customer()
    many_targets(customer, 0, 2, "https://tracker.example.com/hook")
    many_finished(customer, 0, OVER, (0, 2), now - timedelta(days=100))
    many_finished(customer, OVER, MANY - OVER, (0, 2), now)
    wide = "x" * (1 if is_sqlite() else 1000)
    execute("UPDATE exports SET source_type = 'evidence_capture', ticket = ?", (wide,))
    execute(
        "INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) VALUES (1, ?, 'completed', 1, 1)",
        (customer.project_id,),
    )
    [(token_id,)] = rows("SELECT MIN(id) FROM tokens")
    places = {
        "token": token_id + 1,
        "over": OVER,
        "project": customer.project_id,
        "user": customer.user_id,
        "recent": to_ms(now),
        "wide": f"'{wide}'",
    }
    with transaction():
        if not is_sqlite():
            # Skips the checks of foreign keys, which take long; these keys are valid.
            execute("SET LOCAL session_replication_role = replica")
        for table, values in _ROWS.items():
            execute(f"INSERT INTO {table} SELECT {values.format(**places)} FROM exports")  # noqa: S608 - our own words


def require_no_scan(found: list[SqlStatement]) -> None:
    for statement in found:
        # The partial indexes of running recoveries and open sessions are small: one recovery per target, a few sessions per
        # user. A TID scan reads single rows, despite its name.
        scans = [
            step
            for step in full_scans(statement, GROWING)
            if not re.search("recoveries_running|console_sessions_newest|^Tid Scan", step)
        ]
        assert not scans, "\n".join([statement.sql, *plan_of(statement)])


def test_expired_rows_are_found_and_deleted_by_an_index(until: retention.Cutoffs) -> None:
    gone = 0
    with statements() as found, rolled_back():
        for counts in retention.purge(until):
            gone += counts.total()
    assert gone == OVER * 12
    assert len(found) > STATEMENTS_OF_A_RUN
    require_no_scan(found)


def test_a_count_reads_only_the_rows_to_delete(until: retention.Cutoffs) -> None:
    with statements() as found:
        assert retention.count_expired(until).total() == OVER * 12
    require_no_scan(found)


def test_a_run_without_expired_rows_takes_one_statement_per_table(until: retention.Cutoffs) -> None:
    before_all = retention.Cutoffs(*[from_ms(0)] * 4)
    with statements() as found:
        assert sum(counts.total() for counts in retention.purge(before_all)) == 0
    # And one each for the partitions of attempts, those of audit entries, and a partition of attempts that may be empty.
    assert len(found) == STATEMENTS_OF_A_RUN + (0 if is_sqlite() else 3)


def test_the_search_for_full_table_scans_finds_one(until: retention.Cutoffs) -> None:
    """Proves that the checks of the other tests can fail."""
    with statements() as found:
        rows(f"SELECT COUNT(*) FROM page_results WHERE url <> '{export_id(1)}'")  # noqa: S608 - our own names
    assert full_scans(found[0], GROWING)
