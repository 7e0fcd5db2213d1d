"""The ledger: what happened stands there once, in order, and only together with what it tells of."""

import pytest

from schemas.times import to_ms
from storage import audit
from storage.audit import Entry
from storage.database import rows, transaction
from tests.factories import NOW

ALL = "SELECT at, actor, action, subject_id, status_before, status_after, reason FROM audit_entries ORDER BY id"


def test_entries_are_written_in_the_order_they_are_given(database: str) -> None:
    entries = [Entry(to_ms(NOW), "worker:1", "claim", f"exp_{number}", "approved", "delivering") for number in range(300)]
    with transaction():
        audit.append_all(entries)
        audit.append(NOW, "operator", "set_secret", "scanner", "rotated")
    told = rows(ALL)
    assert [row[3] for row in told] == [*(f"exp_{number}" for number in range(300)), "scanner"]
    assert told[0] == (to_ms(NOW), "worker:1", "claim", "exp_0", "approved", "delivering", None)
    assert told[-1] == (to_ms(NOW), "operator", "set_secret", "scanner", None, None, "rotated")


def test_no_entries_are_no_statement(database: str) -> None:
    audit.append_all([])
    assert rows(ALL) == []


def test_an_entry_goes_with_the_transaction_it_tells_of(database: str) -> None:
    def append_and_fail() -> None:
        with transaction():
            audit.append(NOW, "operator", "set_secret", "scanner")
            raise LookupError

    with pytest.raises(LookupError):
        append_and_fail()
    assert rows(ALL) == []
