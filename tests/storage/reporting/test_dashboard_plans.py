"""The counts of the overview and the menu read no more of an index than they show."""

import pytest

from storage.db.engine import database as db
from storage.db.engine import execute, is_sqlite
from storage.reporting import dashboard_queries, menu_counts
from tests.support.database.query_plans import plan_of, statements
from tests.support.factories import NOW, Customer, make_exports


def test_no_count_of_a_status_sorts_or_reads_the_whole_status(customer: Customer) -> None:
    make_exports(customer, 1)
    if not is_sqlite():
        # With one row, PostgreSQL would read and sort all rows. With this setting, a plan sorts only if it has to.
        db.execute_sql("SET enable_seqscan = off")
        db.execute_sql("SET enable_sort = off")
    with statements() as ran:
        dashboard_queries.count_account(customer.account_id)
        menu_counts.count(customer.account_id, NOW)
        dashboard_queries.waiting_by_severity(customer.account_id, NOW)
    assert len(ran) == 3
    for statement in ran:
        plan = [step for step in plan_of(statement) if "FOR GROUP BY" not in step]
        assert [step for step in plan if "TEMP B-TREE" in step or "Sort" in step] == [], statement.sql
        assert "exports_account_status" in " ".join(plan)


def test_beyond_the_counting_limit_the_most_severe_waiting_exports_are_counted(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high, *_others = make_exports(customer, 4)
    execute("UPDATE exports SET severity_rank = 1 WHERE id = ?", (low,))
    execute("UPDATE exports SET severity_rank = 4 WHERE id = ?", (high,))
    assert dashboard_queries.waiting_by_severity(customer.account_id, NOW) == {"critical": 1, "high": 2, "low": 1}
    monkeypatch.setattr(dashboard_queries, "MAX_WAITING", 2)
    assert dashboard_queries.waiting_by_severity(customer.account_id, NOW) == {"critical": 1, "high": 1}
