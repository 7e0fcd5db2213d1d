"""The counts of the overview and the menu read no more of an index than they show."""

from datetime import timedelta

import pytest

from schemas.intake.scanner import PostbackForm, ScanPostback
from storage.db.engine import database as db
from storage.db.engine import execute, is_sqlite
from storage.reporting import dashboard_queries, menu_counts, trends
from tests.support.database.query_plans import plan_of, read_whole, statements
from tests.support.factories import NOW, Customer, issue, make_exports, postback, record_postback


def test_no_count_of_a_status_sorts_or_reads_the_whole_status(customer: Customer) -> None:
    make_exports(customer, 1)
    if not is_sqlite():
        # With one row PostgreSQL would rather read all rows and sort them. What needs no sorting does none now.
        db.execute_sql("SET enable_seqscan = off")
        db.execute_sql("SET enable_sort = off")
    with statements() as ran:
        dashboard_queries.count_account(customer.account_id)
        menu_counts.count(customer.account_id, NOW)
        trends.waiting_by_severity(customer.account_id, NOW)
    assert len(ran) == 3
    for statement in ran:
        plan = [step for step in plan_of(statement) if "FOR GROUP BY" not in step]
        assert [step for step in plan if "TEMP B-TREE" in step or "Sort" in step] == [], statement.sql
        assert "exports_account_status" in " ".join(plan)


def test_new_findings_are_read_by_the_time_at_which_they_were_new(customer: Customer) -> None:
    # Of an empty table, PostgreSQL cannot tell which of the account's indexes is the best.
    for days in range(5):
        found = [issue(f"rule-{days}-{number}") for number in range(40)]
        form: ScanPostback = PostbackForm().read(postback(days + 1, found))
        record_postback(form, customer.project_id, NOW - timedelta(days=days))
    execute("ANALYZE")
    if not is_sqlite():
        db.execute_sql("SET enable_seqscan = off")
    with statements() as ran:
        trends.new_findings(customer.account_id, NOW - timedelta(hours=1), NOW)
    [statement] = ran
    assert read_whole(statement, {"findings"}) == []
    assert "findings_new" in " ".join(plan_of(statement))


def test_of_more_waiting_exports_than_are_counted_the_worst_are(customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high, *_others = make_exports(customer, 4)
    execute("UPDATE exports SET severity_rank = 1 WHERE id = ?", (low,))
    execute("UPDATE exports SET severity_rank = 4 WHERE id = ?", (high,))
    assert trends.waiting_by_severity(customer.account_id, NOW) == {"critical": 1, "high": 2, "low": 1}
    monkeypatch.setattr(trends, "MOST_WAITING", 2)
    assert trends.waiting_by_severity(customer.account_id, NOW) == {"critical": 1, "high": 1}
