"""Monthly partitions of attempts and audit entries on PostgreSQL: created in advance, and dropped when they are empty."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
import pytest
from peewee import IntegrityError

from schemas.base.timestamps import to_ms
from storage.accounts import audit_chain, audit_log
from storage.db import identifiers
from storage.db.engine import close_database, connection, execute, open_database, rows
from storage.exports import attempts, claims_sql
from storage.maintenance import partitions_sql, retention
from tests.support.database.databases import on_postgresql
from tests.support.factories import claim_due, completed_attempt, make_approved, make_customer, make_target
from tests.support.servers.redis_and_postgres import PostgresServer

pytestmark = on_postgresql

#: A year after the first partition, whenever the tables are created.
YEAR: Final = datetime.now(UTC).year + 2
LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def tables(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """Open a migrated database of the test's own, because partitions remain when rows are deleted between tests."""
    url = postgres_server.create_database(postgres_template)
    open_database(url)
    with connection():
        yield url
    close_database()


def at(month: int, day: int = 1) -> datetime:
    return datetime(YEAR, month, day, tzinfo=UTC)


def months(table: str) -> list[str]:
    """Return the months that have a partition."""
    return [each.name.removeprefix(f"{table}_") for each in partitions_sql.partitions(table)]


def delivered(moment: datetime) -> str:
    """Store an export that was prepared and delivered at a moment; return its ID."""
    customer = make_customer()
    export_id = make_approved(customer, make_target(customer).id, moment)
    [claim] = claim_due(1, moment, 30, "worker")
    claims_sql.record_attempts([completed_attempt(claim, at=moment)], moment, "worker")
    return export_id


def places(export_id: str) -> set[tuple[str, ...]]:
    """Return the partitions that contain the attempts and audit entries of an export."""
    return {
        *rows("SELECT CAST(CAST(tableoid AS regclass) AS TEXT) FROM attempts WHERE export_id = ?", (export_id,)),
        *rows("SELECT CAST(CAST(tableoid AS regclass) AS TEXT) FROM audit_entries WHERE subject_id = ?", (export_id,)),
    }


def test_the_months_ahead_have_a_partition_once() -> None:
    for _ in range(2):
        partitions_sql.maintain(at(11, 30), LONG_AGO)
        ahead = [f"{YEAR}_11", f"{YEAR}_12", f"{YEAR + 1}_01", f"{YEAR + 1}_02"]
        assert months("attempts") == months("audit_entries") == [*ahead, "default", "first"]


def test_rows_of_a_month_are_in_its_partition() -> None:
    partitions_sql.maintain(at(1), LONG_AGO)
    export_id = delivered(at(2, 28))
    assert places(export_id) == {(f"attempts_{YEAR}_02",), (f"audit_entries_{YEAR}_02",)}
    assert places(delivered(datetime.now(UTC))) == {("attempts_first",), ("audit_entries_first",)}


def test_rows_without_a_partition_of_their_own_are_found_too() -> None:
    export_id = delivered(at(6))
    assert places(export_id) == {("attempts_default",), ("audit_entries_default",)}
    assert len(attempts.list_details(export_id)) == 1
    assert {each.action for each in audit_log.list_for_subject(export_id, 9)} > {"approve", "claim"}
    assert audit_chain.extend_to_end() == 0


def test_a_month_with_rows_in_the_default_partition_gets_no_partition_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    export_id = delivered(at(6))
    partitions_sql.maintain(at(6), LONG_AGO)
    assert months("attempts") == [f"{YEAR}_07", f"{YEAR}_08", f"{YEAR}_09", "default", "first"]
    assert {record.getMessage() for record in caplog.records} == {
        f"partition not changed: {each}" for each in partitions_sql.BY_MONTH
    }
    assert len(attempts.list_details(export_id)) == 1


def test_after_a_clock_was_years_ahead_the_current_month_still_gets_its_partition() -> None:
    partitions_sql.maintain(at(1) + timedelta(days=3660), LONG_AGO)
    partitions_sql.maintain(at(1), LONG_AGO)
    assert months("attempts")[:2] == [f"{YEAR}_01", f"{YEAR}_02"]


def test_retention_drops_only_partitions_of_past_months_that_it_emptied() -> None:
    partitions_sql.maintain(at(1), LONG_AGO)
    old, new = delivered(at(1, 31)), delivered(at(2))
    until = retention.cutoffs(at(2) + timedelta(days=90, milliseconds=1), timedelta(days=90), timedelta(hours=72))
    # The first run finds rows in the month's partition, and deletes them.
    assert sum(counts["attempts"] for counts in retention.purge(until)) == 2
    assert f"{YEAR}_01" in months("attempts")
    assert not list(retention.purge(until))
    left = months("attempts")
    assert f"{YEAR}_01" not in left
    assert "first" not in left
    # This month has not ended before the cutoff, although its partition is empty.
    assert f"{YEAR}_02" in left
    assert months("audit_entries")[:2] == [f"{YEAR}_01", f"{YEAR}_02"]
    assert audit_log.list_for_subject(old, 1)
    assert audit_log.list_for_subject(new, 1)


def test_a_month_with_an_attempt_to_keep_is_not_dropped() -> None:
    partitions_sql.maintain(at(1), LONG_AGO)
    export_id = delivered(at(1))
    partitions_sql.maintain(at(1), at(3))
    assert f"{YEAR}_01" in months("attempts")
    assert len(attempts.list_details(export_id)) == 1


def test_a_partition_in_use_is_skipped(tables: str, caplog: pytest.LogCaptureFixture) -> None:
    with psycopg.connect(tables) as worker:
        worker.execute("UPDATE exports SET version = version")
        partitions_sql.maintain(at(1), LONG_AGO)
    assert months("attempts") == ["default", "first"]
    assert {each.getMessage() for each in caplog.records} == {
        f"partition not changed: {each}" for each in partitions_sql.BY_MONTH
    }
    partitions_sql.maintain(at(1), LONG_AGO)
    assert f"{YEAR}_01" in months("attempts")


def test_an_export_is_delivered_once_whatever_the_month() -> None:
    partitions_sql.maintain(at(1), LONG_AGO)
    export_id = delivered(at(1))
    copied = (
        "INSERT INTO attempts (id, export_id, number, started_at, outcome, total_ms, worker) "
        "VALUES (?, ?, 2, ?, 'delivered', 1, 'w')"
    )
    with pytest.raises(IntegrityError, match="export_id_idx"):
        execute(copied, (identifiers.new_id(identifiers.ATTEMPT, at(2)), export_id, to_ms(at(2))))
