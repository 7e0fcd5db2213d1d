"""The hash chain of the audit log: every change of a chained row is found, and writers are not blocked while it grows."""

import threading
from collections.abc import Mapping
from typing import Any, Final

import pytest

from schemas.audit.chain import GENESIS, BrokenChain, ChainVerification
from schemas.base.timestamps import to_ms
from storage.accounts import audit_chain, audit_log, audit_log_sql
from storage.accounts.audit_log import AuditEntry
from storage.db import locks
from storage.db.engine import close_database, connection, execute, open_database, rows, transaction
from storage.db.engine import database as db
from storage.db.locks import Lock
from storage.db.models import AuditEntryRow
from tests.support.database.query_plans import full_scans, indexes_read, plan_of, statements
from tests.support.factories import NOW

COUNT: Final = 5
#: The row in the middle, and a new value for each of its columns.
MIDDLE: Final = 3
CHANGES: Final[Mapping[str, Any]] = {
    "id": 77,
    "at": to_ms(NOW) + 1,
    "actor": "user:8",
    "action": "dismiss",
    "subject_id": "exp_4",
    "status_before": "failed",
    "status_after": "failed",
    "reason": "another",
    "digest": b"\1" * 32,
    "position": 7,
    "hash": b"\2" * 32,
}
NULLABLE: Final = [name for name, column in AuditEntryRow._meta.columns.items() if column.null and name in CHANGES]


def append(count: int = COUNT) -> None:
    with transaction():
        for number in range(1, count + 1):
            entry = AuditEntry(
                to_ms(NOW), "user:7", "approve", f"exp_{number}", "prepared", "approved", None, f"sha256:{number:064x}"
            )
            audit_log.append_all([entry])


def verified(anchors: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
    return list(audit_chain.lines(ChainVerification(anchors or {})))


def broken(anchors: Mapping[int, str] | None = None) -> str:
    with pytest.raises(BrokenChain) as raised:
        verified(anchors)
    return str(raised.value)


def test_entries_are_chained_batch_after_batch(database: str) -> None:
    append()
    assert verified() == []
    assert (audit_chain.extend(2), audit_chain.count_unchained()) == (2, 3)
    assert (audit_chain.extend(), audit_chain.extend(), audit_chain.has_unchained()) == (3, 0, False)
    lines = verified()
    assert [line["position"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["previous"] for line in lines] == [GENESIS, *(line["hash"] for line in lines[:-1])]
    assert lines[0]["digest"] == f"sha256:{1:064x}"
    assert audit_chain.head() == (5, lines[-1]["hash"])


def test_the_tests_of_tampering_change_every_column() -> None:
    # The account decides only who sees an entry, so the chain does not cover it.
    assert CHANGES.keys() == AuditEntryRow._meta.columns.keys() - {"account_id"}


@pytest.mark.parametrize(("column", "value"), [*CHANGES.items(), *((column, None) for column in NULLABLE)])
def test_a_changed_column_is_detected(database: str, column: str, value: Any) -> None:
    append()
    execute("UPDATE audit_entries SET reason = 'a reason'")
    audit_chain.extend()
    assert rows(f"SELECT {column} FROM audit_entries WHERE id = ?", (MIDDLE,)) != [(value,)]  # noqa: S608 - our own names
    execute(f"UPDATE audit_entries SET {column} = ? WHERE id = ?", (value, MIDDLE))  # noqa: S608 - our own names
    assert "osition" in broken()
    # Chaining further entries does not repair it.
    audit_chain.extend()
    assert "osition" in broken()


@pytest.mark.parametrize("entry_id", [1, 2, 3, 4])
def test_a_removed_row_is_found(database: str, entry_id: int) -> None:
    append()
    audit_chain.extend()
    execute("DELETE FROM audit_entries WHERE id = ?", (entry_id,))
    assert "missing" in broken()


def test_only_an_anchor_finds_that_the_newest_rows_were_removed(database: str) -> None:
    append()
    audit_chain.extend()
    anchor = audit_chain.head()
    execute("DELETE FROM audit_entries WHERE id >= 4")
    assert len(verified()) == 3
    assert "before the anchor" in broken({anchor.position: anchor.hash})
    append()
    audit_chain.extend()
    assert len(verified()) == 3 + COUNT
    assert "rewritten" in broken({anchor.position: anchor.hash})


@pytest.mark.parametrize(("position", "entry_id"), [(3, 99), (6, 99), (0, 99), (-1, 99), (5, 99), (3, 0)])
def test_an_inserted_row_is_found(database: str, position: int, entry_id: int) -> None:
    append()
    audit_chain.extend()
    execute(
        "INSERT INTO audit_entries (id, at, actor, action, subject_id, position, hash) "
        "SELECT ?, at, actor, action, subject_id, ?, hash FROM audit_entries WHERE id = 5",
        (entry_id, position),
    )
    assert "osition" in broken()


def test_rows_that_changed_places_are_found(database: str) -> None:
    append()
    audit_chain.extend()
    [(first, first_hash), (second, second_hash)] = rows(
        "SELECT position, hash FROM audit_entries WHERE id IN (2, 3) ORDER BY id"
    )
    execute("UPDATE audit_entries SET position = ?, hash = ? WHERE id = 2", (second, second_hash))
    execute("UPDATE audit_entries SET position = ?, hash = ? WHERE id = 3", (first, first_hash))
    assert "osition" in broken()


def test_a_rewritten_log_has_another_anchor(database: str) -> None:
    append()
    audit_chain.extend()
    anchors = {line["position"]: line["hash"] for line in verified()}
    execute("UPDATE audit_entries SET position = NULL, hash = NULL WHERE id >= 3")
    execute("UPDATE audit_entries SET actor = 'user:8' WHERE id = 3")
    audit_chain.extend()
    assert len(verified()) == COUNT
    assert "rewritten" in broken({5: anchors[5]})
    assert len(verified({2: anchors[2]})) == COUNT


def test_a_log_whose_oldest_entries_were_deleted_needs_their_anchor(database: str) -> None:
    append()
    audit_chain.extend()
    anchors = {line["position"]: line["hash"] for line in verified()}
    execute("DELETE FROM audit_entries WHERE position <= 2")
    assert "pass the anchor of position 2" in broken()
    assert "does not match" in broken({2: anchors[1]})
    assert [line["position"] for line in verified({2: anchors[2]})] == [3, 4, 5]
    assert "begins after the anchor" in broken({1: anchors[1], 2: anchors[2]})


def test_the_second_of_two_rows_with_one_position_is_read_across_pages(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_chain, "_PAGE", 5)
    append()
    audit_chain.extend()
    execute(
        "INSERT INTO audit_entries (at, actor, action, subject_id, position, hash) "
        "SELECT at, actor, action, subject_id, position, hash FROM audit_entries WHERE id = 5"
    )
    assert "position 5 follows" in broken()


def test_only_one_process_at_a_time_extends_the_chain(database: str) -> None:
    append()
    with locks.exclusive(Lock.AUDIT):
        left: list[int] = []
        other = threading.Thread(target=lambda: left.append(_in_a_thread()))
        other.start()
        other.join()
    assert left == [COUNT]
    assert audit_chain.extend_to_end() == 0


def _in_a_thread() -> int:
    with connection():
        return audit_chain.extend_to_end()


WRITERS: Final = 4
EACH: Final = 60


def test_writers_are_not_blocked_while_the_chain_is_extended(database: str) -> None:
    """Several transactions write at a time; every entry gets exactly one position, and the chain stays valid."""
    done = threading.Event()

    def write(number: int) -> None:
        with connection():
            for index in range(EACH):
                with transaction():
                    entries = [AuditEntry(to_ms(NOW), f"user:{number}", "did", f"exp_{index}_{part}") for part in range(3)]
                    audit_log.append_all(entries)

    def chain() -> None:
        while not done.is_set():
            with connection():
                audit_chain.extend_to_end()

    chaining = [threading.Thread(target=chain) for _ in range(2)]
    writing = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in (*chaining, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    done.set()
    for thread in chaining:
        thread.join()
    assert audit_chain.extend_to_end() == 0
    lines = verified()
    assert [line["position"] for line in lines] == [*range(1, WRITERS * EACH * 3 + 1)]
    assert sorted(line["id"] for line in lines) == sorted(row[0] for row in rows("SELECT id FROM audit_entries"))
    for number in range(WRITERS):
        own = [line["id"] for line in lines if line["actor"] == f"user:{number}"]
        assert own == sorted(own)


def test_every_statement_of_the_chain_begins_in_an_index(database: str) -> None:
    with transaction():
        audit_log.append_all([AuditEntry(to_ms(NOW), "operator", "did", f"exp_{number}") for number in range(6000)])
    audit_chain.extend(5000)
    db.execute_sql("ANALYZE audit_entries")
    with statements() as ran:
        audit_chain.extend(20)
        audit_log_sql.page_after(4000, 4000, 20)
    unchained, head, *places, page = ran
    for statement in (unchained, head, page):
        assert indexes_read(statement) == {"audit_entries_chain"}, plan_of(statement)
    for statement in places:
        assert not full_scans(statement), plan_of(statement)
    with statements() as ran:
        audit_log_sql.of_subject("exp_7")
    assert indexes_read(ran[0]) == {"audit_entries_subject", "audit_entries_chain"}, plan_of(ran[0])


def test_a_chain_is_continued_after_the_database_is_reopened(database: str) -> None:
    append()
    audit_chain.extend()
    close_database()
    open_database(database)
    with connection():
        append()
        assert audit_chain.extend_to_end() == 0
        assert len(verified()) == 2 * COUNT
