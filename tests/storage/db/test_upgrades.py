"""Upgrades: databases of every earlier schema, full of rows, get the current schema, keep every row, and work.

The earlier schemas are those of the migrations, so a new migration is tested without a change here. CHANGES lists intended
changes of existing rows, and DELETIONS the rows that a migration intends to delete.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.exports.record import Approval
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import Source, Ticket
from schemas.intake.page_url import page_digest
from schemas.intake.scanner import PostbackForm
from schemas.triage.export_filter import ExportQuery
from storage.accounts import tokens
from storage.db import schema_version
from storage.db.engine import close_database, connection, execute, is_sqlite, open_database, rows, transaction
from storage.exports import claims_sql, queries, transitions
from storage.exports.rows import Draft
from storage.exports.search import export_list
from storage.targets import throttle_state_sql
from tests.support.database.plausible_rows import column_names, content, fill, tables
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    claim_due,
    completed_attempt,
    make_customer,
    make_target,
    postback,
    record_postback,
)
from tests.support.servers.redis_and_postgres import PostgresServer

Row = dict[str, Any]
Rows = dict[str, list[Row]]

MIGRATIONS: Final = schema_version.known()

#: Intended changes of rows from earlier schemas: (migration, table, column) -> the new value of a row.
CHANGES: Final[dict[tuple[str, str, str], Callable[[Row], Any]]] = {
    # Shops are compared in lower case, but were stored as typed.
    ("0002_uploads_emails_compliance", "projects", "shop_domain"): lambda row: (
        row["shop_domain"] and row["shop_domain"].lower()
    ),
    # A failed validation forbids approvals, so it is repeated at once, unless a worker or a request handles it already.
    ("0006_target_revalidation", "targets", "validation_due_at"): lambda row: (
        1
        if row["validation_status"] == "failed" and row["validation_lease"] is row["validation_asked_at"] is None
        else row["validation_due_at"]
    ),
}

#: Intended deletions of rows from earlier schemas: (migration, table) -> whether a row is deleted, given all rows.
DELETIONS: Final[dict[tuple[str, str], Callable[[Row, Rows], bool]]] = {
    # The rule of an issue without a code is its title, which a redaction erases.
    ("0028_rules_of_redacted_exports_since_0027", "export_terms"): lambda row, stored: (
        row["kind"] == "rule"
        and row["export_id"] in {each["id"] for each in stored["exports"] if each["redacted_at"] is not None}
    )
}


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An open database without tables, once of each kind."""
    url = f"sqlite:///{tmp_path / 'old.db'}"
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_database()
    open_database(url)
    with connection():
        yield url
    close_database()


@pytest.fixture(params=MIGRATIONS[:-1])
def old(request: pytest.FixtureRequest, empty: str) -> str:
    """A full database of an earlier schema; returns the name of the schema's last migration."""
    last: str = request.param
    schema_version._runner().up(target=last)
    fill()
    return last


def test_an_earlier_schema_is_upgraded_with_every_row_and_works(old: str) -> None:
    columns = {table: column_names(table) for table in tables()}
    before = content()
    assert_full(before)
    assert schema_version.migrate() == MIGRATIONS[MIGRATIONS.index(old) + 1 :]
    assert schema_version.inspect().pending == ()
    after, kept = content(columns), _kept(before, old)
    assert {table: len(found) for table, found in after.items()} == {table: len(found) for table, found in kept.items()}
    for table, found in kept.items():
        assert after[table] == [_changed(row, table, old) for row in found], table
    if is_sqlite():
        assert rows("PRAGMA foreign_key_check") == []
        assert rows("PRAGMA integrity_check") == [("ok",)]
    assert_works()


def assert_works() -> None:
    """List, deliver and prepare exports."""
    due = (
        "SELECT e.id FROM exports e JOIN targets t ON t.id = e.target_id WHERE e.due_at IS NOT NULL AND t.status = 'active'"
    )
    waiting = {name for (name,) in rows(due)}
    assert waiting
    accounts = [account for (account,) in rows("SELECT id FROM accounts")]
    listed = {each.id for account in accounts for each in export_list.list_page(ExportQuery(account))}
    assert listed == {name for (name,) in rows("SELECT id FROM exports")}

    claims = claim_due(100, NOW, 30, "worker")
    assert {claim.export_id for claim in claims} == waiting
    assert claims_sql.record_attempts([completed_attempt(claim) for claim in claims], NOW, "worker") == waiting
    assert {queries.get(name).status for name in waiting} == {"exported"}

    customer = make_customer()
    assert tokens.principal_for(customer.token, NOW)
    form: Any = PostbackForm()
    [prepared] = record_postback(form.read(postback()), customer.project_id, NOW).ticket_exports
    target = make_target(customer)
    transitions.approve(prepared, customer.account_id, Approval(target.id, None), NOW, "user:test", LOOPBACK_POLICY)
    assert target.id in {turn.target_id for turn in throttle_state_sql.due("", 100, NOW)}
    [claim] = claim_due(100, NOW, 30, "worker")
    assert claim.export_id == prepared


def test_an_interrupted_upgrade_continues_after_its_last_step(empty: str) -> None:
    schema_version._runner().up(target=MIGRATIONS[0])
    fill()
    before = content()
    for name in MIGRATIONS[1:]:
        assert schema_version.inspect().pending[0] == name
        schema_version._runner().up(target=name)
    assert schema_version.migrate() == []
    after = content()
    assert {table: len(after[table]) for table in before} == {table: len(found) for table, found in before.items()}


def test_a_row_that_a_migration_loses_or_changes_is_detected(empty: str) -> None:
    schema_version._runner().up(target=MIGRATIONS[0])
    fill()
    before = content()
    execute("UPDATE users SET email = 'changed' WHERE id = 1")
    assert content()["users"] != before["users"]
    assert content()["projects"] == before["projects"]
    execute("DELETE FROM attempts WHERE number = 1")
    assert len(content()["attempts"]) < len(before["attempts"])


def assert_full(before: Rows) -> None:
    """Require rows in every table, a value in every column, and an export in every status."""
    for table, found in before.items():
        assert found, table
        assert [name for name in found[0] if all(row[name] is None for row in found)] == [], table
    assert {row["status"] for row in before["exports"]} == {*ExportStatus}


def _kept(before: Rows, old: str) -> Rows:
    """Return the rows without those that the migrations after `old` intend to delete."""
    deletions = [(table, deletes) for (name, table), deletes in DELETIONS.items() if name > old]
    return {
        table: [row for row in found if not any(deletes(row, before) for name, deletes in deletions if name == table)]
        for table, found in before.items()
    }


def _changed(row: Row, table: str, old: str) -> Row:
    """Return a row as the migrations after `old` intend to change it."""
    for (name, changed, column), made in CHANGES.items():
        if changed == table and name > old and column in row:
            row = {**row, column: made(row)}
    return row


def test_findings_from_before_life_cycles_become_open_and_get_their_page(empty: str) -> None:
    schema_version._runner().up(target="0017_report_uploads")
    fill()
    findings = rows("SELECT COUNT(*) FROM findings")
    schema_version.migrate()
    upgraded = rows(
        "SELECT id, page_digest, host, missed_runs, fixed_at, times_reopened FROM findings WHERE account_id <> 0"
    )
    assert findings == [(len(upgraded),)]
    for finding_id, page, host, *life_cycle in upgraded:
        assert (page, host) == (page_digest(f"https://{host}/cart"), f"shop{finding_id[-4:]}.example")
        assert life_cycle == [0, None, 0]
    assert rows("SELECT DISTINCT f.account_id = p.account_id FROM findings f JOIN projects p ON p.id = f.project_id") == [
        (True,)
    ]
    assert rows("SELECT DISTINCT outcome FROM finding_sightings") == [("seen",)]


def test_an_upgrade_deletes_only_the_rules_of_redacted_exports_from_the_search(empty: str) -> None:
    schema_version._runner().up(target="0027_audit_accounts")
    customer = make_customer()
    titles, hosts = ("Jane Doe's order", "Missing text"), ("gone.example", "kept.example")
    drafts = [
        Draft(
            customer.account_id, None, Source("manual", ""), Ticket(title, "", "low", f"https://{host}/", (), {}), rule=title
        )
        for title, host in zip(titles, hosts, strict=True)
    ]
    with transaction():
        gone, kept = transitions.prepare(drafts, NOW, "user:test")
    # The state in which earlier versions left such exports.
    execute("UPDATE exports SET rule = NULL, redacted_at = 1 WHERE id = ?", (gone,))
    assert "0028_rules_of_redacted_exports_since_0027" in schema_version.migrate()
    assert rows("SELECT export_id, kind, value FROM export_terms ORDER BY export_id, kind") == [
        (gone, "host", "gone.example"),
        (kept, "host", "kept.example"),
        (kept, "rule", "Missing text"),
    ]
