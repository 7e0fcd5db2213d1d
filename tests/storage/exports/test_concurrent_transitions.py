"""Several processes and threads at once: no export is claimed twice, approved twice, or lost."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg

from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.timestamps import to_ms
from schemas.exports.record import Approval
from schemas.exports.state_machine import ExportStatus
from schemas.intake.scanner import PostbackForm
from schemas.targets.validations import Validation
from storage.db.engine import close_database, connection, execute, open_database, rows, transaction
from storage.exports import claims_sql, queries, transitions
from storage.targets import targets
from storage.triage import decisions
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    claim_due,
    completed_attempt,
    issue,
    make_approved,
    make_customer,
    make_exports,
    make_failed,
    make_target,
    postback,
    record_postback,
)

ROOT: Final = Path(__file__).parents[3]
LATER: Final = NOW + timedelta(seconds=60)
WAITING: Final = b"SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

# A worker process: three threads claim up to three exports at a time until nothing is due, and record all but one of each
# batch.
CLAIMER: Final = """
import json, sys, threading
from storage.db.engine import connection, open_database
from storage.exports import claims_sql
from tests.support.factories import NOW, claim_due, completed_attempt
from datetime import timedelta

open_database(sys.argv[1])
now, claimed = NOW + timedelta(seconds=60), []

def work(number):
    with connection():
        while claims := claim_due(3, now, 600, f"worker:{number}"):
            claimed.extend((claim.export_id, claim.lease, claim.attempt) for claim in claims)
            claims_sql.record_attempts([completed_attempt(claim) for claim in claims[1:]], now, f"worker:{number}")

sys.stdin.read(1)
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(claimed))
"""


def approve_many(customer: Customer, count: int) -> list[str]:
    target_id = make_target(customer).id
    return [make_approved(customer, target_id) for _ in range(count)]


def test_concurrent_claims_of_processes_never_return_the_same_export(database: str, customer: Customer) -> None:
    ids = approve_many(customer, 120)
    command = [sys.executable, "-c", CLAIMER, database]
    started = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    reported = []
    with ThreadPoolExecutor(len(started)) as pool:
        for answer in pool.map(lambda process: process.communicate("go", timeout=60)[0], started):
            reported += json.loads(answer)
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sorted(export_id for export_id, _, _ in reported) == sorted(ids)
    assert {attempt for _, _, attempt in reported} == {1}
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'claim'") == [(120,)]
    held = dict(rows("SELECT id, lease FROM exports WHERE status = 'delivering'"))
    assert held.items() <= {(export_id, lease) for export_id, lease, _ in reported}
    assert rows("SELECT COUNT(*) FROM exports WHERE status = 'exported'") == [(120 - len(held),)]


def test_threads_that_claim_at_once_never_get_the_same_export(customer: Customer) -> None:
    ids = approve_many(customer, 60)
    start = threading.Barrier(6)

    def claim_all(number: int) -> list[str]:
        mine: list[str] = []
        with connection():
            start.wait()
            while claims := claim_due(2, LATER, 600, f"worker:{number}"):
                mine += [claim.export_id for claim in claims]
        return mine

    with ThreadPoolExecutor(6) as pool:
        claimed = [export_id for mine in pool.map(claim_all, range(6)) for export_id in mine]
    assert sorted(claimed) == sorted(ids)


def test_an_expired_lease_is_taken_over_by_exactly_one_worker(customer: Customer) -> None:
    [export_id] = approve_many(customer, 1)
    [late] = claim_due(1, NOW, 6, "worker:dead")
    start = threading.Barrier(6)

    def take_over(number: int) -> int:
        with connection():
            start.wait()
            claims = claim_due(1, LATER, 600, f"worker:{number}")
            claims_sql.record_attempts([completed_attempt(late)], LATER, "worker:dead")
            return len(claims_sql.record_attempts([completed_attempt(claim) for claim in claims], LATER, f"worker:{number}"))

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(take_over, range(6))) == 1
    assert rows("SELECT number FROM attempts WHERE export_id = ?", (export_id,)) == [(2,)]


def test_of_eight_simultaneous_approvals_for_one_target_all_succeed_and_one_changes_the_export(customer: Customer) -> None:
    target_id = make_target(customer).id
    [export_id] = make_exports(customer, 1)
    start = threading.Barrier(8)

    def approve(number: int) -> tuple[ExportStatus, int]:
        with connection():
            start.wait()
            approval = Approval(target_id, None)
            export = transitions.approve(export_id, customer.account_id, approval, LATER, f"user:{number}", LOOPBACK_POLICY)
            return export.status, export.version

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(approve, range(8))) == {(ExportStatus.APPROVED, 2)}
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'approve'") == [(1,)]


def test_approvals_during_validations_and_deliveries_succeed_or_are_refused(customer: Customer) -> None:
    target_id = make_target(customer).id
    export_ids = make_exports(customer, 24)
    start = threading.Barrier(8)

    def approve(number: int) -> list[str]:
        """Approve a quarter of the exports, two times each."""
        reported = []
        with connection():
            start.wait()
            for export_id in [each for each in export_ids[number::4] for _ in range(2)]:
                try:
                    approval = Approval(target_id, None)
                    transitions.approve(export_id, customer.account_id, approval, LATER, "user:1", LOOPBACK_POLICY)
                except ValidationFailed as refused:
                    reported += [each.code for each in refused.problems]
        return reported

    def validate(number: int) -> list[str]:
        """Fail and pass the validation of the target, as requests, workers and deliveries do."""
        with connection():
            start.wait()
            for _ in range(20):
                if number == 0:
                    targets.record_validation(target_id, None, Validation("connect_refused"), LATER, "worker:1")
                elif number == 1:
                    targets.record_validation(target_id, None, Validation(), LATER, "user:1")
                else:
                    with transaction():
                        targets.pass_validation(target_id, LATER, "worker:2")
        return []

    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(approve, number) for number in range(4)]
        done += [pool.submit(validate, number) for number in range(4)]
        refusals = [code for each in done for code in each.result()]
    assert {*refusals} <= {"target_unavailable"}
    approved = {export_id for export_id in export_ids if queries.get(export_id).status is ExportStatus.APPROVED}
    assert len(refusals) >= 24 - len(approved)
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'approve'") == [(len(approved),)]


def test_of_simultaneous_approvals_for_different_targets_and_dismissals_one_succeeds(customer: Customer) -> None:
    target_ids = [make_target(customer).id for _ in range(6)]
    [export_id] = make_exports(customer, 1)
    start = threading.Barrier(8)

    def act(number: int) -> str:
        with connection():
            start.wait()
            try:
                if number < len(target_ids):
                    approval = Approval(target_ids[number], None)
                    export = transitions.approve(export_id, customer.account_id, approval, LATER, "user:1", LOOPBACK_POLICY)
                    return export.target_id or ""
                return decisions.dismiss(export_id, customer.account_id, LATER, "user:1").status.value
            except Conflict:
                return "conflict"

    with ThreadPoolExecutor(8) as pool:
        reported = sorted(pool.map(act, range(8)))
    export = queries.get(export_id)
    # The second dismissal changes nothing, so it is no conflict.
    assert 8 - reported.count("conflict") == (1 if export.target_id else 2)
    assert ({*reported} - {"conflict"}) == {export.target_id or "dismissed"}
    assert export.version == 2


def test_results_renewals_and_claims_of_many_workers_never_deadlock(customer: Customer) -> None:
    approve_many(customer, 40)
    start = threading.Barrier(4)

    def work(number: int) -> int:
        delivered = rounds = 0
        with connection():
            start.wait()
            while claims := claim_due(4, LATER, 600, f"worker:{number}"):
                rounds += 1
                claims_sql.renew(claims, LATER, 600)
                delivered += len(claims_sql.record_attempts([completed_attempt(claim) for claim in claims[1:]], LATER, "w"))
                # Every other round postpones nothing: otherwise the last worker would postpone its last export forever.
                claims_sql.postpone(claims[:1] if rounds % 2 else [], LATER, "w")
                delivered += len(claims_sql.record_attempts([completed_attempt(claim) for claim in claims[:1]], LATER, "w"))
        return delivered

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 40
    assert rows("SELECT COUNT(*) FROM attempts WHERE outcome = 'delivered'") == [(40,)]


def test_a_renewal_leaves_out_an_export_that_another_transaction_has_locked(postgres_url: str) -> None:
    """A renewal that waits for this export would let the leases of all others lapse."""
    open_database(postgres_url)
    with connection(), psycopg.connect(postgres_url) as stalled:
        approve_many(make_customer(), 3)
        claims = claim_due(3, LATER, 6, "worker:1")
        stalled.execute("SELECT 1 FROM exports WHERE id = %s FOR UPDATE", (claims[1].export_id,))
        assert claims_sql.renew(claims, LATER, 600) == 2
        stalled.rollback()
        assert [row[0] for row in rows("SELECT id FROM exports WHERE due_at < ?", (to_ms(LATER) + 7000,))] == [
            claims[1].export_id
        ]
        assert claims_sql.renew(claims, LATER, 600) == 3
    close_database()


def test_results_lock_exports_in_the_order_of_their_ids(postgres_url: str) -> None:
    """Redactions use the same order: a transaction that waits for the first export holds no other, so nothing deadlocks."""
    open_database(postgres_url)
    with connection():
        customer = make_customer()
        ids = sorted(approve_many(customer, 3))
        # With many other exports, PostgreSQL looks each of these up by its ID.
        make_exports(customer, 500)
        execute("ANALYZE exports")
        claims = sorted(claim_due(3, LATER, 600, "worker:1"), key=lambda claim: claim.export_id, reverse=True)
    attempts = [completed_attempt(claim) for claim in claims]
    require_locks_in_order(postgres_url, ids, lambda: claims_sql.record_attempts(attempts, LATER, "worker:1"))
    close_database()


def test_a_postback_that_ends_snoozes_locks_exports_in_the_order_of_their_ids(postgres_url: str) -> None:
    """In the same order as decisions on several exports."""
    open_database(postgres_url)
    seen = PostbackForm().read(postback(1, [issue(code) for code in "abc"]))
    with connection():
        customer = make_customer()
        ids = sorted(record_postback(seen, customer.project_id).ticket_exports)
        change_backwards(ids, "snoozed_at = 1")
    require_locks_in_order(postgres_url, ids, lambda: record_postback(seen, customer.project_id))
    with connection():
        assert [queries.get(each).snooze for each in ids] == [None] * 3
    close_database()


def test_a_resumption_leaves_an_export_to_the_retry_that_waits_for_its_target(postgres_url: str) -> None:
    """The retry locks the export first, the resumption the target: if both waited, they would deadlock."""
    open_database(postgres_url)
    with connection():
        customer = make_customer()
        target_id = make_target(customer).id
        retried, other = [make_failed(customer, target_id, status="blocked")[0] for _ in range(2)]
        execute("UPDATE exports SET status_reason = 'tracker_forbidden'")

    def retry() -> None:
        with connection():
            transitions.retry(retried, customer.account_id, LATER, "user:1")

    with psycopg.connect(postgres_url, autocommit=True) as watcher, ThreadPoolExecutor(1) as pool:
        with connection(), transaction():
            targets.locked_row(target_id, None)
            retrying = pool.submit(retry)
            while watcher.execute(WAITING).fetchone() != (1,):
                assert not retrying.done()
                time.sleep(0.005)
            assert transitions.requeue_blocked(target_id, LATER, "user:2") == 1
        retrying.result(10)
    with connection():
        audited = "SELECT subject_id, actor FROM audit_entries WHERE action = 'retry'"
        assert sorted(rows(audited)) == sorted([(retried, "user:1"), (other, "user:2")])
    close_database()


def change_backwards(export_ids: Sequence[str], change: str) -> None:
    """Update exports, the last one first: PostgreSQL then stores them in that order."""
    for each in reversed(export_ids):
        execute(f"UPDATE exports SET {change} WHERE id = ?", (each,))  # noqa: S608 - our own names


def require_locks_in_order(postgres_url: str, export_ids: Sequence[str], write: Callable[[], object]) -> None:
    """Require that `write` holds none of the other exports while it waits for the first one."""

    def run() -> None:
        with connection(), transaction():
            write()

    with psycopg.connect(postgres_url) as other, psycopg.connect(postgres_url, autocommit=True) as watcher:
        other.execute("SELECT 1 FROM exports WHERE id = %s FOR UPDATE", (export_ids[0],))
        writer = threading.Thread(target=run)
        writer.start()
        while watcher.execute(WAITING).fetchone() != (1,):
            assert writer.is_alive()
            time.sleep(0.005)
        other.execute("SELECT 1 FROM exports WHERE id = ANY(%s) FOR UPDATE NOWAIT", (export_ids[1:],))
        other.rollback()
        writer.join(10)
