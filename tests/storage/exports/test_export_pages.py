"""Queries of export pages beyond the API: exports not sent to one target, and frozen bodies; each reads an index."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from schemas.base.errors import ExportNotFound
from schemas.triage.export_filter import ExportQuery, ExportSort, ListPosition
from storage.accounts import audit_log
from storage.db.engine import database as bound
from storage.db.engine import execute, is_sqlite, rows, transaction
from storage.exports import attempts, queries, transitions
from storage.exports.search import export_list
from storage.targets import summaries
from tests.support.database.many_rows import analyze, many_finished, many_targets
from tests.support.database.query_plans import SqlStatement, full_scans, indexes_read, plan_of, statements
from tests.support.factories import (
    NOW,
    Customer,
    claim_due,
    make_approved,
    make_customer,
    make_exports,
    make_project,
    make_target,
)

#: So many that PostgreSQL, which reads small tables completely, prefers an index.
FINISHED = 20_000
TARGETS = 10
FINDINGS = 20_000
GROWING = frozenset({"exports", "attempts", "audit_entries", "findings"})


def test_frozen_bytes_can_be_read_only_by_their_account(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    assert queries.get_frozen_body(export_id, customer.account_id) == queries.FrozenBody(None, None)
    approved = make_approved(customer, make_target(customer).id)
    [claim] = claim_due(1, NOW, 6, "worker")
    assert queries.get_frozen_body(approved, customer.account_id) == queries.FrozenBody(claim.body, None)
    with transaction():
        transitions.redact([approved], NOW + timedelta(hours=1), "worker")
    assert queries.get_frozen_body(approved, customer.account_id) == queries.FrozenBody(b"", NOW + timedelta(hours=1))
    for export_id, account_id in ((approved, make_customer().account_id), ("exp_\0", customer.account_id)):
        with pytest.raises(ExportNotFound):
            queries.get_frozen_body(export_id, account_id)


# --- plans --------------------------------------------------------------------


@pytest.fixture(scope="module")
def many_exports(module_database: Path) -> tuple[Customer, str]:
    """An account with many exports and findings, and one of its targets with many failed exports; with statistics."""
    customer = make_customer()
    [target_id, *_] = many_targets(customer, 0, TARGETS, "https://tracker.example.com/hook")
    many_finished(customer, 0, FINISHED, (0, TARGETS), NOW)
    execute(
        "UPDATE exports SET status = 'failed' WHERE target_id = ? AND id < 'exp_00000001000000000000002000'", (target_id,)
    )
    execute(
        "INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) VALUES (1, ?, 'completed', 0, 0)",
        (customer.project_id,),
    )
    execute(
        "WITH RECURSIVE numbers (n) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
        "INSERT INTO findings SELECT 'fnd_0000000' || (1000000000000000000 + n), "
        "CASE WHEN n / 4 * 4 = n THEN CAST(? AS INTEGER) ELSE CAST(? AS INTEGER) END, 'mark' || n, 'rule', 'Title', "
        "CASE WHEN n / 3 * 3 = n THEN 'high' ELSE 'low' END, 'https://shop.example/', '', 1, 1, 0, 0, 1, NULL, NULL, "
        "0, '', '', 0, NULL, 0 "
        "FROM numbers",
        (FINDINGS, customer.project_id, make_project(customer)),
    )
    analyze()
    bound.execute_sql("ANALYZE findings")
    return customer, target_id


def asked(verb: Callable[..., object], *arguments: object) -> SqlStatement:
    with statements() as found:
        assert verb(*arguments) is not None
    return found[-1]


def require_no_scan(statement: SqlStatement) -> None:
    assert not full_scans(statement, GROWING), "\n".join([statement.sql, *plan_of(statement)])


@pytest.mark.parametrize("before", [None, "exp_00000001000000000000001500"])
def test_a_list_for_one_target_or_project_is_read_from_its_own_index(
    before: str | None, many_exports: tuple[Customer, str]
) -> None:
    customer, target_id = many_exports
    for wanted, indexes in (
        (ExportQuery(target_ids=(target_id,)), {"exports_account_target"}),
        (ExportQuery(target_ids=(target_id,), statuses=("exported",), severities=("info",)), {"exports_account_target"}),
        (ExportQuery(project_ids=(customer.project_id,)), {"exports_project"}),
        (ExportQuery(customer.account_id, statuses=("failed", "blocked")), {"exports_account_status"}),
    ):
        after = before and ListPosition(before)
        statement = asked(export_list.list_page, wanted, ExportSort.NEWEST, 51, after)
        assert indexes <= indexes_read(statement), wanted
        require_no_scan(statement)


def test_the_statements_of_an_export_page_read_only_one_export(many_exports: tuple[Customer, str]) -> None:
    customer, target_id = many_exports
    [(export_id,)] = rows("SELECT id FROM exports WHERE target_id = ? ORDER BY id LIMIT 1", (target_id,))
    for statement in (
        asked(queries.get, export_id, customer.account_id),
        asked(queries.get_frozen_body, export_id, customer.account_id),
        asked(attempts.list_details, export_id, customer.account_id, 51),
        asked(audit_log.list_for_subject, export_id, 201),
        asked(summaries.by_id, [target_id], customer.account_id),
    ):
        assert not full_scans(statement, {"exports", "findings"}), "\n".join([statement.sql, *plan_of(statement)])
        assert indexes_read(statement) or not is_sqlite(), statement.sql
