"""The audit log: every change is logged once, in order, and in the transaction of the change."""

import pytest

from schemas.base.timestamps import to_ms
from storage.accounts import audit_log
from storage.accounts.audit_log import AuditEntry
from storage.accounts.audit_log_sql import AuditFilter
from storage.db.engine import database as db
from storage.db.engine import rows, transaction
from storage.exports import recoveries
from tests.support.database.query_plans import full_scans, indexes_read, plan_of, statements
from tests.support.factories import NOW, Customer, make_customer, make_exports, make_target

ALL = "SELECT at, actor, action, subject_id, status_before, status_after, reason FROM audit_entries ORDER BY id"


def test_entries_are_written_in_the_order_they_are_given(database: str) -> None:
    entries = [
        AuditEntry(to_ms(NOW), "worker:1", "claim", f"exp_{number}", "approved", "delivering") for number in range(300)
    ]
    with transaction():
        audit_log.append_all(entries)
        audit_log.append(NOW, "operator", "set_secret", "scanner", "rotated")
    recorded = rows(ALL)
    assert [row[3] for row in recorded] == [*(f"exp_{number}" for number in range(300)), "scanner"]
    assert recorded[0] == (to_ms(NOW), "worker:1", "claim", "exp_0", "approved", "delivering", None)
    assert recorded[-1] == (to_ms(NOW), "operator", "set_secret", "scanner", None, None, "rotated")


def test_an_empty_list_of_entries_writes_nothing(database: str) -> None:
    audit_log.append_all([])
    assert rows(ALL) == []


def test_an_audit_entry_is_rolled_back_with_its_transaction(database: str) -> None:
    def append_and_fail() -> None:
        with transaction():
            audit_log.append(NOW, "operator", "set_secret", "scanner")
            raise LookupError

    with pytest.raises(LookupError):
        append_and_fail()
    assert rows(ALL) == []


def test_the_entries_of_one_record_are_read_newest_first(database: str) -> None:
    entries = [AuditEntry(to_ms(NOW) + number, "worker:1", "claim", f"exp_{number % 2}", "approved") for number in range(6)]
    with transaction():
        for entry in entries:
            audit_log.append_all([entry])
    assert audit_log.list_for_subject("exp_1", 2) == [entries[5], entries[3]]
    assert audit_log.list_for_subject("exp_", 2) == []


def test_entries_are_listed_newest_first_in_consecutive_pages(database: str) -> None:
    with transaction():
        audit_log.append_all(
            [AuditEntry(to_ms(NOW), "operator", f"did_{number}", f"exp_{number % 2}") for number in range(5)]
        )
    first = audit_log.list_matching(AuditFilter(), 2, None)
    assert [line.action for line in first] == ["did_4", "did_3"]
    assert [line.action for line in audit_log.list_matching(AuditFilter(), 9, first[-1].id)] == ["did_2", "did_1", "did_0"]
    of_one = audit_log.list_matching(AuditFilter(subject_id="exp_1"), 9, None)
    assert [line.action for line in of_one] == ["did_3", "did_1"]
    assert audit_log.list_matching(AuditFilter(subject_id="exp_"), 9, None) == []


def test_reading_the_audit_log_by_record_or_by_page_uses_an_index(database: str) -> None:
    with transaction():
        audit_log.append_all([AuditEntry(to_ms(NOW), "operator", "did", f"exp_{number}") for number in range(3000)])
    db.execute_sql("ANALYZE audit_entries")
    with statements() as ran:
        audit_log.list_for_subject("exp_7", 50)
    assert indexes_read(ran[0]) == {"audit_entries_subject"}
    with statements() as ran:
        audit_log.list_matching(AuditFilter(), 50, 1500)
    assert not full_scans(ran[0]), plan_of(ran[0])


def test_the_records_of_an_account_are_selected_from_a_list(customer: Customer) -> None:
    other = make_customer()
    mine = {make_target(customer).id, *make_exports(customer, 1)}
    mine.add(recoveries.begin(make_target(customer).id, NOW, NOW, "operator").id)
    theirs = {make_target(other).id, *make_exports(other, 1)}
    assert audit_log.ids_of_account(customer.account_id, mine | theirs | {"exp_nothing"}) == mine
    assert audit_log.ids_of_account(customer.account_id, set()) == set()
