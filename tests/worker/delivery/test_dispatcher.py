"""The dispatcher on real databases: every due export is sent once, whatever is slow, late, broken or unavailable."""

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from peewee import OperationalError

from runtime.clock import utc_now
from schemas.base.principal import OPERATOR
from schemas.base.timestamps import to_ms
from schemas.exports.delivery import Claim, Outcome
from service.operations.accounts.accounts import set_webhooks
from storage.db import schema_version
from storage.db.engine import close_database, connection, database, execute, open_database, release, rows
from storage.exports import queries
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.database.databases import on_sqlite
from tests.support.factories import NOW, Customer, make_approved, make_customer
from tests.support.fakes import NO_TRACKERS
from tests.support.processes.workers import wait_until
from tests.support.worker.dispatchers import (
    NO_SWEEP_S,
    PATIENCE_S,
    FakeClock,
    FakePost,
    all_exported,
    approved,
    make_dispatcher,
    name,
    running_dispatcher,
    statuses,
)
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.dispatcher import IDLE_SCAN_S, Dispatcher
from worker.delivery.options import RENEW_S, DispatcherOptions
from worker.delivery.outcomes import Schedule


def assert_sent_once(post: FakePost, export_ids: list[str]) -> None:
    assert post.sent == dict.fromkeys(export_ids, 1)
    attempts = Counter(export_id for (export_id,) in rows("SELECT export_id FROM attempts WHERE outcome = 'delivered'"))
    assert attempts == dict.fromkeys(export_ids, 1)


def test_exports_due_at_the_start_are_delivered_with_one_attempt_each(customer: Customer) -> None:
    ids, post = approved(customer, 100), FakePost()
    with running_dispatcher(post):
        wait_until(all_exported(100))
    assert_sent_once(post, ids)
    assert set(rows("SELECT attempts, lease, due_at FROM exports")) == {(1, None, None)}
    [(connected,)] = rows("SELECT connected_status FROM targets")
    assert connected == "connected"


def test_an_export_that_is_not_due_is_not_sent(customer: Customer) -> None:
    [later] = approved(customer)
    execute("UPDATE exports SET due_at = due_at + 60000 WHERE id = ?", (later,))
    post = FakePost()
    with running_dispatcher(post) as dispatcher:
        dispatcher.deliver_due()
    assert (post.sent, statuses()) == ({}, {"approved": 1})


def test_a_retry_is_sent_when_it_is_due_and_not_at_the_next_sweep(customer: Customer) -> None:
    approved(customer)
    answers = iter([Outcome(status=503), Outcome(status=202)])
    schedule = Schedule((0.3,), timedelta(hours=72))
    runner = AttemptRunner(
        FakePost(lambda _url: next(answers)),
        Vault(()),
        AttemptOptions(DefaultSecret("secret"), schedule, utc_now),
        NO_TRACKERS,
    )
    dispatcher = Dispatcher(runner, DispatcherOptions(name(), 8, NO_SWEEP_S, utc_now))
    dispatcher.start()
    try:
        wait_until(lambda: statuses() == {"exported": 1}, NO_SWEEP_S / 4)
    finally:
        dispatcher.stop()
        assert dispatcher.join(PATIENCE_S)


def test_a_wake_up_delivers_at_once_and_returns_when_nothing_is_due(customer: Customer) -> None:
    post = FakePost()
    post.delay_s = 0.1
    with running_dispatcher(post) as dispatcher:
        dispatcher.deliver_due()
        for _ in range(3):
            ids = approved(customer, 2)
            began = time.monotonic()
            dispatcher.deliver_due()
            assert time.monotonic() - began < PATIENCE_S
            assert {queries.get(export_id).status for export_id in ids} == {"exported"}


def test_a_wake_up_during_a_scan_is_handled_by_the_next_scan(customer: Customer) -> None:
    looking, may_go_on = threading.Event(), threading.Event()

    def now() -> datetime:
        at = utc_now()
        if threading.current_thread().name == "dispatcher" and not may_go_on.is_set():
            looking.set()
            may_go_on.wait(PATIENCE_S)
        return at

    post = FakePost()
    post.delay_s = 0.2
    with running_dispatcher(post, now=now) as dispatcher:
        assert looking.wait(PATIENCE_S)
        [export_id] = approved(customer)
        threading.Timer(0.2, may_go_on.set).start()
        dispatcher.deliver_due()
        assert queries.get(export_id).status == "exported"


def test_a_wake_up_waits_no_longer_than_its_time_slice(customer: Customer) -> None:
    approved(customer)
    post = FakePost()
    post.gate.clear()
    with running_dispatcher(post) as dispatcher:
        wait_until(lambda: post.at_once == 1)
        began = time.monotonic()
        dispatcher.deliver_due(timeout_s=0.2)
        assert 0.2 <= time.monotonic() - began < PATIENCE_S / 2
        assert statuses() == {"delivering": 1}


def test_after_a_lost_wake_up_exports_are_delivered_at_the_next_sweep(customer: Customer) -> None:
    post = FakePost()
    with running_dispatcher(post, sweep_s=0.2):
        time.sleep(0.3)
        approved(customer)
        wait_until(all_exported(1))


def test_no_more_requests_are_open_than_there_are_threads(customer: Customer) -> None:
    for number in range(3):
        approved(customer, 20, f"https://tracker-{number}.example.com/hook")
    post = FakePost()
    post.delay_s = 0.02
    with running_dispatcher(post, concurrency=5):
        wait_until(all_exported(60))
    assert post.most_at_once == 5


def test_no_more_exports_are_claimed_than_can_soon_be_sent(customer: Customer) -> None:
    approved(customer, 60)
    post = FakePost()
    post.gate.clear()
    with running_dispatcher(post, concurrency=10):
        wait_until(lambda: post.at_once == 5)
        time.sleep(0.7)
        # One target gets half of the threads at most.
        assert statuses() == {"delivering": 5, "approved": 55}


def test_a_slow_delivery_does_not_hold_up_the_others(customer: Customer) -> None:
    gate = threading.Event()

    def answer(url: str) -> Outcome:
        if "slow" in url:
            gate.wait(60)
        return Outcome(status=202)

    [slow] = approved(customer, 1, "https://slow.example.com/")
    post = FakePost(answer)
    with running_dispatcher(post, concurrency=4) as dispatcher:
        wait_until(lambda: post.sent[slow])
        approved(customer, 100)
        # No wake-up is needed: while requests are open, the dispatcher scans by itself.
        wait_until(lambda: statuses()["exported"] == 100)
        # A wake-up works while a request is open. One delivery may be due to a heartbeat that woke the dispatcher, but not
        # more.
        waits_s = []
        for count in range(101, 106):
            approved(customer, 1)
            threading.Thread(target=dispatcher.deliver_due, args=[PATIENCE_S]).start()
            waits_s.append(wait_until(lambda count=count: statuses()["exported"] == count))  # type: ignore[misc]  # mypy takes no default
        assert sorted(waits_s)[1] < IDLE_SCAN_S / 2
        assert queries.get(slow).status == "delivering"
        gate.set()
        wait_until(all_exported(106))


def test_leases_are_renewed_while_a_delivery_lasts(customer: Customer) -> None:
    ids, post, thief = approved(customer, 3), FakePost(), FakePost()
    post.gate.clear()
    with running_dispatcher(post, lease_s=0.8, renew_s=0.2):
        wait_until(lambda: post.at_once == 3)
        with running_dispatcher(thief, sweep_s=0.05):
            time.sleep(1.5)
        assert thief.sent == {}
        post.gate.set()
        wait_until(all_exported(3))
    assert_sent_once(post, ids)


def test_a_lapsed_lease_is_taken_over_and_the_late_response_changes_nothing(customer: Customer) -> None:
    [export_id] = approved(customer)
    late, successor = FakePost(lambda _url: Outcome(status=404)), FakePost()
    late.gate.clear()
    # With one thread, the slow worker cannot take over its own claim.
    with running_dispatcher(late, concurrency=1, lease_s=0.2, renew_s=600):
        wait_until(lambda: late.at_once == 1)
        with running_dispatcher(successor, sweep_s=0.05):
            wait_until(all_exported(1))
        late.gate.set()
        wait_until(lambda: late.at_once == 0)
    assert queries.get(export_id).status == "exported"
    assert rows("SELECT number, outcome FROM attempts") == [(2, "delivered")]


def test_after_a_clock_step_within_a_tick_no_worker_takes_over_leased_exports(customer: Customer) -> None:
    [held_id] = approved(customer, now=NOW)
    post, clock = FakePost(), StepsWithinATransaction()
    post.gate.clear()
    with running_dispatcher(post, concurrency=8, now=clock, renew_s=600) as dispatcher:
        wait_until(lambda: post.at_once == 1)
        # An export of the same target: while it is due, workers examine the claims of this target, too.
        make_approved(customer, str(queries.get(held_id).target_id), NOW)
        clock.is_to_step = True
        dispatcher.deliver_due(1.0)
        wait_until(lambda: not clock.is_to_step)
        # By then, a tick has noticed the clock step and renewed the lease.
        wait_until(lambda: rows("SELECT due_at FROM exports WHERE id = ?", (held_id,))[0][0] > to_ms(clock.at))
        assert queries.get(held_id).attempts == 1
        post.gate.set()
        wait_until(lambda: queries.get(held_id).status == "exported")
    assert post.sent[held_id] == 1


class StepsWithinATransaction(FakeClock):
    """A clock that is set ahead by an hour once, while it is read inside a transaction."""

    is_to_step = False

    def __call__(self) -> datetime:
        if self.is_to_step and database.in_transaction():
            self.is_to_step = False
            self.advance(3600)
        return super().__call__()


def test_a_failed_attempt_is_recorded_with_the_time_of_the_next(customer: Customer) -> None:
    [export_id] = approved(customer)
    with running_dispatcher(FakePost(lambda _url: Outcome(status=503))) as dispatcher:
        dispatcher.deliver_due()
    export = queries.get(export_id)
    assert (export.status, export.attempts) == ("retry_scheduled", 1)
    assert export.due_at is not None
    assert export.due_at > utc_now() + timedelta(minutes=45)


def test_a_paused_targets_exports_wait_until_it_is_resumed(customer: Customer) -> None:
    [export_id] = approved(customer)
    target_id = queries.get(export_id).target_id
    assert target_id is not None
    targets.change_status(target_id, "pause", utc_now(), "operator")
    post = FakePost()
    with running_dispatcher(post) as dispatcher:
        dispatcher.deliver_due()
        assert (post.sent, statuses()) == ({}, {"approved": 1})
        targets.change_status(target_id, "resume", utc_now(), "operator")
        dispatcher.deliver_due()
        assert statuses() == {"exported": 1}


@pytest.mark.parametrize(
    ("outcome", "target", "first", "others"),
    [
        # The policy refused the address, so nothing else is sent to it either.
        (
            Outcome(error="address_private", refused=True),
            ("blocked", "address_private"),
            ("blocked", "address_private"),
            ("blocked", "target_blocked"),
        ),
        # The receiver is gone: exports that wait for it end, too.
        (Outcome(status=410), ("disabled", "receiver_gone"), ("failed", "receiver_gone"), ("failed", "target_disabled")),
    ],
)
def test_exports_that_wait_for_a_target_that_is_turned_off_end_blocked_or_failed_and_unsent(
    customer: Customer, outcome: Outcome, target: tuple[str, str], first: tuple[str, str], others: tuple[str, str]
) -> None:
    approved(customer, 20)
    execute(
        "UPDATE exports SET status = 'retry_scheduled', due_at = due_at + 3600000 WHERE id = (SELECT MAX(id) FROM exports)"
    )
    post = FakePost(lambda _url: outcome)
    with running_dispatcher(post, concurrency=2, sweep_s=0.05):
        wait_until(lambda: statuses().total() == statuses()[others[0]])
    assert rows("SELECT status, status_reason FROM targets") == [target]
    assert set(rows("SELECT status, status_reason FROM exports")) == {first, others}
    assert sum(post.sent.values()) == 1
    assert rows("SELECT count(*) FROM audit_entries WHERE reason = ? AND actor LIKE ?", (others[1], "worker:%")) == [(19,)]


def test_exports_of_an_account_that_may_no_longer_use_webhooks_end_blocked_and_unsent(customer: Customer) -> None:
    approved(customer, 3)
    execute("UPDATE exports SET due_at = due_at + 3600000 WHERE id = (SELECT MAX(id) FROM exports)")
    stranger = approved(make_customer(), 1, "https://other.example.com/hook")
    set_webhooks(customer.account_id, False, OPERATOR)
    post = FakePost()
    with running_dispatcher(post, sweep_s=0.05):
        wait_until(lambda: statuses() == {"blocked": 3, "exported": 1})
    assert post.sent == {stranger[0]: 1}


# ---------------------------------------------------------------- stopping


def test_stopping_finishes_running_attempts_and_releases_the_other_claims(customer: Customer) -> None:
    approved(customer, 40)
    post = FakePost()
    post.delay_s = 0.05
    dispatcher = make_dispatcher(post, concurrency=8)
    dispatcher.start()
    wait_until(lambda: statuses()["exported"] >= 4)
    post.gate.clear()
    wait_until(lambda: post.at_once == 4)
    dispatcher.stop()
    wait_until(lambda: statuses()["delivering"] == 4)
    sent = sum(post.sent.values())
    post.gate.set()
    assert dispatcher.join(PATIENCE_S)
    assert sum(post.sent.values()) == sent
    assert statuses()["exported"] == sent
    assert statuses()["delivering"] == 0
    # A claim that was given back counts no attempt and is due at once.
    waiting = rows("SELECT attempts, lease FROM exports WHERE status <> 'exported'")
    assert set(waiting) == {(0, None)}
    with running_dispatcher(FakePost()):
        wait_until(all_exported(40))


def test_stopping_while_idle_is_quick_and_may_be_repeated(database: str) -> None:
    dispatcher = make_dispatcher(FakePost())
    dispatcher.start()
    time.sleep(0.1)
    began = time.monotonic()
    dispatcher.stop()
    dispatcher.stop()
    assert dispatcher.join(PATIENCE_S)
    # The dispatcher stops before its next heartbeat would have woken it anyway.
    assert time.monotonic() - began < RENEW_S - 0.5


def test_callers_of_a_wake_up_are_released_when_the_dispatcher_stops(customer: Customer) -> None:
    approved(customer)
    post = FakePost()
    post.gate.clear()
    dispatcher = make_dispatcher(post)
    dispatcher.start()
    waiting = threading.Thread(target=dispatcher.deliver_due)
    waiting.start()
    wait_until(lambda: post.at_once == 1)
    dispatcher.stop()
    post.gate.set()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert dispatcher.join(PATIENCE_S)


class ClockOfAnOutage(FakeClock):
    """The real clock; while `is_away`, reading it in the dispatcher's thread fails as a query on either database would."""

    is_away = False
    failures = 0

    def __call__(self) -> datetime:
        if self.is_away and threading.current_thread().name == "dispatcher":
            self.failures += 1
            raise OperationalError("away")
        return utc_now()


@contextmanager
def stopped_for(
    seconds: float, post: FakePost, clock: ClockOfAnOutage, requests: int, **options: Any
) -> Iterator[Dispatcher]:
    """Yield a dispatcher that was stopped `seconds` ago; its requests are open, and the database has just failed."""
    dispatcher = make_dispatcher(post, now=clock, **options)
    dispatcher.start()
    wait_until(lambda: len(post.calls) == requests)
    dispatcher.stop()
    time.sleep(seconds)
    clock.is_away = True
    try:
        yield dispatcher
    finally:
        clock.is_away = False
        post.gate.set()
        assert dispatcher.join(PATIENCE_S)


def test_an_outage_longer_than_the_stop_timeout_causes_no_second_delivery(customer: Customer) -> None:
    ids, post, clock = approved(customer, 2), FakePost(), ClockOfAnOutage()
    post.gate.clear()
    with stopped_for(2.2, post, clock, 2, stop_timeout_s=2.0):
        post.gate.set()
        wait_until(lambda: post.at_once == 0 and clock.failures > 1)
    assert_sent_once(post, ids)


def test_an_error_while_stopping_loses_no_result_that_follows(customer: Customer, caplog: pytest.LogCaptureFixture) -> None:
    ids, post, clock = approved(customer, 2), FakePost(), ClockOfAnOutage()
    post.gate.clear()
    with stopped_for(0.2, post, clock, 2, stop_timeout_s=0.1):
        post.let_through(1)
        wait_until(lambda: post.at_once == 1 and "dispatcher failed" in caplog.text)
    assert not any(record.exc_info for record in caplog.records)
    # The first result was lost in the outage, and the second one was recorded after it.
    assert statuses()["exported"] >= 1
    assert post.sent == dict.fromkeys(ids, 1)


def test_no_write_is_retried_once_the_dispatcher_is_abandoned(customer: Customer) -> None:
    approved(customer)
    post, clock = FakePost(), ClockOfAnOutage()
    post.gate.clear()
    with stopped_for(0.0, post, clock, 1, stop_timeout_s=600.0) as dispatcher:
        post.gate.set()
        wait_until(lambda: clock.failures > 0)
        assert not dispatcher.join(0.2)
        assert dispatcher.join(PATIENCE_S)


# ---------------------------------------------------------------- failures


@contextmanager
def database_unavailable(database: str) -> Iterator[None]:
    """Lock SQLite by another connection; on PostgreSQL, end every connection and allow no new one until the block ends."""
    if database.startswith("sqlite"):
        with closing(sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)) as locker:
            locker.execute("BEGIN EXCLUSIVE")
            yield
            locker.execute("ROLLBACK")
        return
    server, _, name = database.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as other:
        other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        yield
        other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def exported_in(database: str) -> int:
    """Count over a connection of its own, because the outage may have ended the test's connection."""
    if database.startswith("sqlite"):
        reader: Any = sqlite3.connect(database.removeprefix("sqlite:///"))
    else:
        reader = psycopg.connect(database)
    try:
        return int(reader.execute("SELECT count(*) FROM exports WHERE status = 'exported'").fetchone()[0])
    finally:
        reader.close()


def test_a_database_outage_between_sending_and_recording_causes_no_second_delivery(
    database: str, customer: Customer
) -> None:
    ids, post = approved(customer, 10), FakePost()
    post.gate.clear()
    with running_dispatcher(post, concurrency=8, sweep_s=0.1):
        wait_until(lambda: post.at_once == 4)
        with database_unavailable(database):
            post.gate.set()
            wait_until(lambda: post.at_once == 0)
            time.sleep(0.5)
        wait_until(lambda: exported_in(database) == 10)
    assert post.sent == dict.fromkeys(ids, 1)


def test_a_database_outage_longer_than_a_lease_makes_no_worker_take_leased_exports(
    database: str, customer: Customer
) -> None:
    [export_id], post, thief = approved(customer), FakePost(), FakePost()
    post.gate.clear()
    terms = {"lease_s": 2.0, "renew_s": 0.8}
    with ExitStack() as running:
        running.enter_context(running_dispatcher(post, 8, 0.05, **terms))
        wait_until(lambda: post.at_once == 1)
        for _ in range(4):
            running.enter_context(running_dispatcher(thief, 1, 0.05, **terms))
        wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(5,)])
        release()
        with database_unavailable(database):
            time.sleep(3.0)
        time.sleep(2.0)
        post.gate.set()
        wait_until(all_exported(1))
    assert thief.sent == {}
    assert queries.get(export_id).attempts == 1


@on_sqlite
def test_a_lease_begins_when_it_is_written_however_long_the_database_was_locked(database: str, customer: Customer) -> None:
    post = FakePost()
    post.gate.clear()
    with running_dispatcher(post, lease_s=3.0, renew_s=1.2) as dispatcher:
        wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(1,)])
        [export_id] = approved(customer)
        with database_unavailable(database):
            threading.Thread(target=dispatcher.deliver_due, args=[PATIENCE_S]).start()
            time.sleep(1.0)
        wait_until(lambda: post.at_once == 1)
        assert lease_left_s(export_id) > 2.4
        claimed_until = queries.get(export_id).due_at
        with database_unavailable(database):
            time.sleep(2.4)
        wait_until(lambda: queries.get(export_id).due_at != claimed_until)
        assert lease_left_s(export_id) > 2.4
        post.gate.set()
        wait_until(all_exported(1))


def lease_left_s(export_id: str) -> float:
    due_at = queries.get(export_id).due_at
    assert due_at is not None
    return (due_at - utc_now()).total_seconds()


def test_a_result_that_the_database_rejects_affects_no_other_result(customer: Customer) -> None:
    ids = approved(customer, 3)
    [poisonous] = approved(customer, 1, "https://poison.example.com/")
    # A value too large for a bigint, in a column that both databases check or convert.
    huge = Outcome(status=10**30)
    post = FakePost(lambda url: huge if "poison" in url else Outcome(status=202))
    with running_dispatcher(post, concurrency=4, sweep_s=0.05):
        wait_until(lambda: {queries.get(export_id).status for export_id in ids} == {"exported"})
        assert post.sent[poisonous] == 1
    assert [post.sent[export_id] for export_id in ids] == [1, 1, 1]
    assert queries.get(poisonous).status == "delivering"


class BrokenAttemptRunner(AttemptRunner):
    """Fails at the first attempt of every export."""

    def run(self, claim: Claim) -> Any:
        if claim.attempt == 1:
            raise RuntimeError("a bug")
        return super().run(claim)


def test_the_lease_of_an_aborted_attempt_expires_and_the_attempt_is_repeated(customer: Customer) -> None:
    approved(customer, 5)
    post = FakePost()
    runner = BrokenAttemptRunner(
        post, Vault(()), AttemptOptions(DefaultSecret("secret"), Schedule((60,), timedelta(hours=1)), utc_now), NO_TRACKERS
    )
    dispatcher = Dispatcher(runner, DispatcherOptions(name(), 4, 0.1, utc_now, lease_s=0.3, renew_s=0.1))
    dispatcher.start()
    wait_until(all_exported(5))
    dispatcher.stop()
    assert dispatcher.join(PATIENCE_S)
    assert set(post.sent.values()) == {1}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_deliveries_begin_once_a_late_migration_is_done(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "sqlite":
        open_database(f"sqlite:///{tmp_path / 'empty.db'}")
    else:
        # On PostgreSQL a missing table is not an outage but an unexpected error.
        open_database(request.getfixturevalue("postgres_server").create_database())
    with running_dispatcher(FakePost(), sweep_s=0.05), connection():
        time.sleep(0.2)
        schema_version.migrate()
        approved(make_customer())
        wait_until(all_exported(1))
    close_database()


def test_two_dispatchers_share_the_work_and_send_nothing_twice(customer: Customer) -> None:
    ids, one, other = approved(customer, 300), FakePost(), FakePost()
    one.delay_s = other.delay_s = 0.005
    with running_dispatcher(one), running_dispatcher(other):
        wait_until(all_exported(300))
    assert one.sent
    assert other.sent
    assert_sent_once_by(ids, one, other)


def assert_sent_once_by(export_ids: list[str], *posts: FakePost) -> None:
    assert sum((post.sent for post in posts), Counter[str]()) == dict.fromkeys(export_ids, 1)
