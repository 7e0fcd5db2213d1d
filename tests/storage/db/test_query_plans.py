"""The frequent queries of workers use an index, however many exports wait or have finished."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from runtime.clock import utc_now
from schemas.exports.delivery import Claim
from storage.db.engine import execute, is_sqlite, rows
from storage.exports import claims_sql, queries, transitions, transitions_sql
from storage.targets import throttle_state_sql
from tests.support.database.many_rows import analyze, many_finished, many_targets, many_waiting
from tests.support.database.query_plans import SqlStatement, full_scans, indexes_read, plan_of, rolled_back, statements
from tests.support.factories import completed_attempt, make_customer

#: So many that PostgreSQL, which reads small tables completely, prefers an index.
FINISHED = 20_000
WAITING = 4_000
TARGETS = 40
#: Further targets, without waiting exports.
QUIET_TARGETS = 10
URL = "https://tracker.example.com/hook"
WORKER = "worker:test"
LEASE_S = 6.0
#: Every index of the exports that a query of a worker might use.
OF_EXPORTS = {
    "exports_waiting",
    "exports_account_target",
    "exports_account",
    "exports_account_status",
    "exports_account_source",
    "exports_recoverable",
}


@pytest.fixture(scope="module", params=["not learned", "learned"])
def target_ids(request: pytest.FixtureRequest, module_database: Path) -> list[str]:
    """Targets with many finished and some waiting exports, with and without statistics about the tables.

    PostgreSQL collects statistics by itself within a minute. Until then its plans are unpredictable, so it always gets them
    here.
    """
    ids = [row[0] for row in rows("SELECT id FROM targets ORDER BY id")] or seeded()
    if request.param == "learned" or not is_sqlite():
        analyze()
    return ids


def seeded() -> list[str]:
    customer, now, half = make_customer(), utc_now(), TARGETS // 2
    ids = [
        *many_targets(customer, 0, half, URL, "paused"),
        *many_targets(customer, half, half, URL),
        *many_targets(customer, TARGETS, QUIET_TARGETS, URL),
    ]
    many_finished(customer, 0, FINISHED, (0, len(ids)), now)
    many_waiting(customer, FINISHED, WAITING, (0, TARGETS), now - timedelta(seconds=10))
    return ids


def asked(verb: Callable[..., object], *arguments: object) -> list[SqlStatement]:
    """Call a function, roll its changes back, and return its statements."""
    with statements() as found, rolled_back():
        verb(*arguments)
    assert found, f"{verb.__name__} asked nothing."
    return found


def claimed(target_ids: list[str]) -> list[Claim]:
    return claims_sql.claim_due(dict.fromkeys(target_ids, 2), utc_now(), LEASE_S, WORKER)


def require_no_scan(found: list[SqlStatement]) -> None:
    for statement in found:
        assert not full_scans(statement), "\n".join([statement.sql, *plan_of(statement)])


def test_the_search_for_due_targets_reads_only_waiting_exports(target_ids: list[str]) -> None:
    [statement] = asked(throttle_state_sql.due, "", 256, utc_now())

    require_no_scan([statement])
    assert indexes_read(statement) & OF_EXPORTS == {"exports_waiting"}, plan_of(statement)


def test_the_search_for_due_targets_begins_after_the_given_target(target_ids: list[str]) -> None:
    [statement] = asked(throttle_state_sql.due, target_ids[5], 256, utc_now())

    require_no_scan([statement])
    assert indexes_read(statement) & OF_EXPORTS == {"exports_waiting"}, plan_of(statement)


def test_a_claim_reads_the_due_exports_of_its_targets_alone(target_ids: list[str]) -> None:
    due, *writes = asked(claimed, target_ids)

    require_no_scan([due, *writes])
    assert "exports_waiting" in indexes_read(due), plan_of(due)
    assert not indexes_read(due) & {"exports_target", "exports_account"}, plan_of(due)


def test_the_count_of_due_exports_reads_only_waiting_exports(target_ids: list[str]) -> None:
    [count] = asked(queries.count_due, utc_now(), 10_000)

    assert not [step for step in full_scans(count) if "exports_waiting" not in step], plan_of(count)
    assert indexes_read(count) & OF_EXPORTS == {"exports_waiting"}, plan_of(count)


def test_the_rows_that_a_tick_writes_are_found_by_their_ids(target_ids: list[str]) -> None:
    now = utc_now()
    with rolled_back():
        claims = claimed(target_ids)
        half = len(claims) // 2
        attempts = [completed_attempt(claim, at=now) for claim in claims[:half]]

        require_no_scan(asked(claims_sql.recheck, claims[0], now))
        require_no_scan(asked(claims_sql.renew, claims, now, LEASE_S))
        require_no_scan(asked(claims_sql.record_attempts, attempts, now, WORKER))
        require_no_scan(asked(claims_sql.postpone, claims[half:], now, WORKER))


def test_exports_waiting_for_a_target_that_was_turned_off_are_found_by_its_target(target_ids: list[str]) -> None:
    with rolled_back():
        execute("UPDATE targets SET status = 'disabled' WHERE id = ?", (target_ids[0],))

        require_no_scan(asked(transitions.end_waiting, target_ids[:1], utc_now(), WORKER, 500))


def test_exports_blocked_by_a_tracker_are_found_by_its_target(target_ids: list[str]) -> None:
    with rolled_back():
        require_no_scan(asked(transitions.requeue_blocked, target_ids[0], utc_now(), WORKER))


def test_recoverable_exports_are_found_by_their_target(target_ids: list[str]) -> None:
    since = utc_now() - timedelta(days=1)

    require_no_scan(asked(queries.count_recoverable_since, target_ids[0], [since], 1000))


@pytest.mark.parametrize("count", [1, 200])
def test_decisions_read_their_exports_and_not_all_of_the_account(target_ids: list[str], count: int) -> None:
    [[account_id]] = rows("SELECT DISTINCT account_id FROM exports")
    ids = [row[0] for row in rows("SELECT id FROM exports ORDER BY id LIMIT ?", (count,))]
    found = asked(transitions_sql.lock_exports, ids, account_id)
    with rolled_back():
        held = transitions_sql.lock_exports(ids, account_id)
    locked = [(each._replace(ticket_digest=f"sha256:{'0' * 64}"), target_ids[0]) for each in held]
    found += asked(transitions_sql.approve_locked, locked, utc_now(), "user:test", None)

    require_no_scan(found)
    for statement in found:
        assert not indexes_read(statement) & OF_EXPORTS, plan_of(statement)


def test_the_search_for_full_table_scans_finds_one(target_ids: list[str]) -> None:
    """Proves that the checks of the other tests can fail."""
    scan = SqlStatement("SELECT COUNT(*) FROM exports e WHERE e.version = 1", ())

    assert full_scans(scan)
