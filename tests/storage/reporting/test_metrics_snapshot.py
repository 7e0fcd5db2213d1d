"""The snapshot counts what exists in bounded steps, and one process counts for all."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from schemas.base.timestamps import to_ms
from schemas.exports.state_machine import Transition
from storage.db.engine import close_database, execute, open_database, transaction
from storage.exports import claims_sql, worker_heartbeats
from storage.reporting import metrics_snapshot
from storage.reporting.metrics_snapshot import (
    COUNT_BATCH,
    HUNG_AFTER,
    MAX_COUNTED_WAITING,
    MAX_REST,
    SERVED_FOR,
    MetricsSnapshot,
    SnapshotCache,
    take_snapshot,
)
from tests.support.database.many_rows import many_finished, many_targets, many_waiting
from tests.support.database.query_plans import full_scans, indexes_read, statements
from tests.support.factories import (
    NOW,
    Customer,
    claim_due,
    completed_attempt,
    in_s,
    make_approved,
    make_customer,
    make_exports,
    make_failed,
    make_target,
)

NONE_OF_THEM = {"active": 0, "inactive": 0, "paused": 0, "blocked": 0, "disabled": 0}
NO_PAUSE = {"by_hand": 0, "restored": 0, "rate_limited": 0, "receiver_unavailable": 0, "breaker_open": 0}


def set_target(target_id: str, **columns: object) -> None:
    for name, value in columns.items():
        execute(f"UPDATE targets SET {name} = ? WHERE id = ?", (value, target_id))  # noqa: S608 - our own names


# --- what one snapshot contains -----------------------------------------------


def test_an_empty_installation_reports_zeros(database: str) -> None:
    figures = take_snapshot(NOW, None)
    assert (figures.is_up, figures.exports, figures.exports_at) == (True, {}, to_ms(NOW))
    assert (figures.waiting, figures.due_age_s, figures.compliance_overdue) == (0, 0.0, 0)
    assert (figures.targets, figures.paused) == (NONE_OF_THEM, NO_PAUSE)
    assert (figures.workers, figures.sweep_lag_s) == (0, None)


def test_exports_are_counted_by_status_over_all_accounts(customer: Customer) -> None:
    other = make_customer()
    make_exports(customer, 3)
    make_exports(other, 2)
    make_failed(customer, make_target(customer).id, 4)
    make_failed(other, make_target(other).id, 1, status="blocked")
    make_approved(other, make_target(other).id)

    figures = take_snapshot(NOW, None)
    assert figures.exports == {"prepared": 5, "failed": 4, "blocked": 1, "approved": 1}
    assert figures.waiting == 1


def test_due_scheduled_and_running_exports_count_as_waiting(customer: Customer) -> None:
    target = make_target(customer)
    ids = [make_approved(customer, target.id) for _ in range(3)]
    under_way, again = claim_due(2, NOW, 60.0, "worker:test")
    claims_sql.record_attempts(
        [completed_attempt(again, Transition.RESCHEDULE, next_attempt_at=in_s(900))], NOW, "worker:test"
    )

    assert len({*ids} - {under_way.export_id, again.export_id}) == 1
    figures = take_snapshot(NOW, None)
    assert figures.exports == {"approved": 1, "delivering": 1, "retry_scheduled": 1}
    assert figures.waiting == 3


#: Columns of the target, and how late its export is, which came due ten minutes ago.
LATENESS: dict[str, tuple[dict[str, object], float]] = {
    "a target that takes it": ({}, 600.0),
    # A user paused it, so nothing is late.
    "a paused target": ({"status": "paused"}, 0.0),
    "a blocked target": ({"status": "blocked"}, 0.0),
    "a target that is held still": ({"held_until": to_ms(in_s(60)), "held_reason": "rate_limited"}, 0.0),
    # The export could not be sent before the end of the hold.
    "a target that was held": ({"held_until": to_ms(in_s(-60)), "held_reason": "rate_limited"}, 60.0),
    # The rate limit is used up.
    "a target of few requests": ({"paced_until": 1000 * to_ms(in_s(60)), "max_per_minute": 1}, 0.0),
    "a target whose limit allows more": ({"paced_until": 1000 * to_ms(in_s(-30)), "max_per_minute": 1}, 30.0),
    "a target that was held before": (
        {"held_until": to_ms(in_s(-90)), "held_reason": "rate_limited", "paced_until": 1000 * to_ms(in_s(-30))},
        30.0,
    ),
    "a target that was held after": (
        {"held_until": to_ms(in_s(-30)), "held_reason": "rate_limited", "paced_until": 1000 * to_ms(in_s(-90))},
        30.0,
    ),
}


@pytest.mark.parametrize("case", LATENESS)
def test_the_oldest_due_export_of_an_active_target_determines_the_delay(case: str, customer: Customer) -> None:
    columns, late_s = LATENESS[case]
    target = make_target(customer)
    make_approved(customer, target.id, in_s(-600))
    make_approved(customer, target.id, in_s(-1))
    set_target(target.id, **columns)

    assert take_snapshot(NOW, None).due_age_s == late_s


def test_exports_that_are_not_due_yet_are_not_late(customer: Customer) -> None:
    make_approved(customer, make_target(customer).id, in_s(5))
    assert take_snapshot(NOW, None).due_age_s == 0.0


#: Columns of the target, its status, and the reason why it waits.
PAUSES: dict[str, tuple[dict[str, object], str, str | None]] = {
    "active": ({}, "active", None),
    "by a person": ({"status": "paused", "status_reason": "operator"}, "paused", "by_hand"),
    "by a client": ({"status": "paused", "status_reason": "client"}, "paused", "by_hand"),
    "nobody says why": ({"status": "paused"}, "paused", "by_hand"),
    "restored": ({"status": "paused", "status_reason": "restored"}, "paused", "restored"),
    "rate limited": ({"held_until": to_ms(in_s(1)), "held_reason": "rate_limited"}, "active", "rate_limited"),
    "unavailable": ({"held_until": to_ms(in_s(1)), "held_reason": "receiver_unavailable"}, "active", "receiver_unavailable"),
    "breaker": ({"held_until": to_ms(in_s(1)), "held_reason": "breaker_open"}, "active", "breaker_open"),
    "a hold that is over": ({"held_until": to_ms(in_s(-1)), "held_reason": "breaker_open"}, "active", None),
    # It waits for a user only.
    "blocked while held": (
        {"status": "blocked", "held_until": to_ms(in_s(1)), "held_reason": "breaker_open"},
        "blocked",
        None,
    ),
    "disabled": ({"status": "disabled", "status_reason": "receiver_gone"}, "disabled", None),
}


@pytest.mark.parametrize("case", PAUSES)
def test_targets_are_counted_by_status_and_by_reason_of_a_pause(case: str, customer: Customer) -> None:
    columns, status, reason = PAUSES[case]
    set_target(make_target(customer).id, **columns)

    figures = take_snapshot(NOW, None)
    assert figures.targets == {**NONE_OF_THEM, status: 1}
    assert figures.paused == {**NO_PAUSE, **({} if reason is None else {reason: 1})}


def test_workers_count_while_they_send_heartbeats_and_the_lag_is_that_of_the_latest(database: str) -> None:
    worker_heartbeats.beat("a", in_s(-30))
    worker_heartbeats.beat("b", in_s(-3))
    worker_heartbeats.beat("c", in_s(-2))

    figures = take_snapshot(NOW, None)
    assert (figures.workers, figures.sweep_lag_s) == (2, 2.0)
    late = take_snapshot(in_s(100), None)
    assert (late.workers, late.sweep_lag_s) == (0, 102.0)


def test_a_compliance_request_past_its_term_is_overdue_until_it_is_done(database: str) -> None:
    for number, (due_s, next_run) in enumerate([(-1, 0), (-1, None), (1, 0)]):
        execute(
            "INSERT INTO compliance_requests (id, topic, shop_domain, body_sha256, status, counts, attempts, due_at, "
            "next_run_at, created_at, finished_at) VALUES (?, 'shop/redact', 's', ?, ?, '{}', 0, ?, ?, 0, ?)",
            (
                f"cmp_{number}",
                str(number),
                "done" if next_run is None else "received",
                to_ms(in_s(due_s)),
                next_run,
                0 if next_run is None else None,
            ),
        )
    assert take_snapshot(NOW, None).compliance_overdue == 1


# --- counting in parts --------------------------------------------------------


def test_many_exports_are_counted_over_several_snapshots(customer: Customer) -> None:
    many_targets(customer, 0, 1, "https://tracker.example.com/")
    many_finished(customer, 0, 2 * COUNT_BATCH + 10, (0, 1), NOW)
    make_exports(make_customer(), 5)

    first = take_snapshot(NOW, None, 0.0)
    assert (first.exports, first.exports_at) == (None, None)
    second = take_snapshot(in_s(15), first, 0.0)
    assert second.exports is None
    third = take_snapshot(in_s(30), second, 0.0)
    assert (third.exports, third.exports_at) == ({"exported": 2 * COUNT_BATCH + 10, "prepared": 5}, to_ms(NOW))
    # The next count starts from zero, and the last complete count is served until it is complete.
    make_exports(customer, 1)
    fourth = take_snapshot(in_s(45), third, 0.0)
    assert (fourth.exports, fourth.exports_at) == (third.exports, third.exports_at)
    last = take_snapshot(in_s(75), take_snapshot(in_s(60), fourth, 0.0), 0.0)
    assert last.exports is not None
    assert (last.exports["prepared"], last.exports_at) == (6, to_ms(in_s(45)))


def test_a_count_that_was_interrupted_for_hours_starts_again(customer: Customer) -> None:
    many_targets(customer, 0, 1, "https://tracker.example.com/")
    many_finished(customer, 0, COUNT_BATCH + 10, (0, 1), NOW)

    left = take_snapshot(NOW, None, 0.0)
    again = take_snapshot(in_s(7200), left, 0.0)
    assert (again.exports, again.tally and again.tally.began_at) == (None, to_ms(in_s(7200)))


def test_beyond_a_limit_waiting_exports_are_counted_by_the_count_by_status(customer: Customer) -> None:
    many_targets(customer, 0, 1, "https://tracker.example.com/")
    with transaction():
        many_waiting(customer, 0, MAX_COUNTED_WAITING + 500, (0, 1), NOW)

    first = take_snapshot(NOW, None, 0.0)
    assert (first.exports, first.waiting) == (None, MAX_COUNTED_WAITING)
    assert take_snapshot(NOW, None, 60.0).waiting == MAX_COUNTED_WAITING + 500


def test_snapshots_read_finished_exports_only_to_count_them(customer: Customer) -> None:
    ids = many_targets(customer, 0, 40, "https://tracker.example.com/")
    many_finished(customer, 0, 20_000, (0, len(ids)), NOW)
    # So few that the planner never prefers to read the whole table.
    many_waiting(customer, 20_000, 100, (0, len(ids)), NOW)
    execute("ANALYZE")
    with statements() as asked:
        take_snapshot(NOW, None, 0.0)

    of_exports = {sql: each for each in asked if "exports" in (sql := each.sql)}
    [ready] = [each for sql, each in of_exports.items() if "ready" in sql]
    [waiting] = [each for sql, each in of_exports.items() if "_wrapped" in sql]
    [part] = [each for sql, each in of_exports.items() if "part" in sql]
    assert not full_scans(ready)
    assert "exports_waiting" in indexes_read(ready)
    assert "exports_waiting" in indexes_read(waiting)
    assert indexes_read(part) == {"exports_account_status"}
    assert not full_scans(part)


# --- an unavailable database --------------------------------------------------


def test_an_unavailable_database_is_reported_and_the_counts_are_kept_until_it_is_available_again(
    sqlite_url: str, tmp_path: Path
) -> None:
    open_database(sqlite_url)
    make_exports(make_customer(), 2)
    before = take_snapshot(NOW, None)
    open_database(f"sqlite:///{tmp_path / 'gone' / 'riskrelay.db'}")
    unavailable = take_snapshot(in_s(15), before)
    close_database()

    assert (unavailable.is_up, unavailable.at) == (False, to_ms(in_s(15)))
    assert (unavailable.exports, unavailable.exports_at) == (before.exports, before.exports_at)


# --- one process takes snapshots for all --------------------------------------


class SnapshotTaker:
    """Takes snapshots: counts them, and waits in each until `cue` is set."""

    def __init__(self, took_s: float = 0.0) -> None:
        self.lasts: list[MetricsSnapshot | None] = []
        self.cue = threading.Event()
        self.cue.set()
        self.began = threading.Event()
        self._took_s = took_s

    def __call__(self, now: datetime, last: MetricsSnapshot | None) -> MetricsSnapshot:
        self.lasts.append(last)
        self.began.set()
        assert self.cue.wait(20)
        return MetricsSnapshot(to_ms(now), is_up=True, took_s=self._took_s, exports={"prepared": len(self.lasts)})


def test_a_recent_snapshot_serves_all_processes_of_a_host(tmp_path: Path) -> None:
    taker = SnapshotTaker()
    one, two = (SnapshotCache(tmp_path / "snapshot.json", taker) for _ in range(2))

    first = one.figures(NOW)
    assert two.figures(in_s(0.9)) == first
    assert len(taker.lasts) == 1
    second = two.figures(in_s(1))
    assert taker.lasts == [None, first]
    assert one.figures(in_s(1.5)) == second


@pytest.mark.parametrize(
    ("took_s", "fresh_s"),
    [
        (0.001, 1.0),  # a snapshot that costs nothing is taken once a second
        (0.1, 4.0),  # 40 times the duration of the snapshot
        (5.0, MAX_REST.total_seconds()),  # the database hardly responds
    ],
)
def test_an_expensive_snapshot_is_used_for_longer(took_s: float, fresh_s: float, tmp_path: Path) -> None:
    taker = SnapshotTaker(took_s)
    shared = SnapshotCache(tmp_path / "snapshot.json", taker)
    shared.figures(NOW)

    shared.figures(in_s(fresh_s - 0.01))
    assert len(taker.lasts) == 1
    shared.figures(in_s(fresh_s))
    assert len(taker.lasts) == 2


def test_no_process_waits_for_another_that_takes_a_snapshot(tmp_path: Path) -> None:
    taker = SnapshotTaker()
    one, two = (SnapshotCache(tmp_path / "snapshot.json", taker) for _ in range(2))
    first = one.figures(NOW)
    taker.cue.clear()
    taker.began.clear()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(one.figures, in_s(15))
        assert taker.began.wait(20)
        # This process and another one serve the last snapshot, as long as it is recent enough.
        assert one.figures(in_s(15)) == two.figures(in_s(15)) == first
        # A snapshot that takes longer waits for a database that does not respond.
        lost = two.figures(in_s(15) + HUNG_AFTER + timedelta(seconds=1))
        taker.cue.set()
        found = under_way.result()

    assert lost is not None
    assert not lost.is_up
    assert two.figures(in_s(15.5)) == found
    assert len(taker.lasts) == 2


def test_an_old_snapshot_is_not_served_while_another_process_counts(tmp_path: Path) -> None:
    taker = SnapshotTaker()
    one, two = (SnapshotCache(tmp_path / "snapshot.json", taker) for _ in range(2))
    one.figures(NOW)
    taker.cue.clear()
    taker.began.clear()
    later = NOW + SERVED_FOR + timedelta(seconds=1)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(one.figures, later)
        assert taker.began.wait(20)
        assert two.figures(later) is None
        taker.cue.set()
        assert under_way.result() is not None


def test_after_the_clock_was_set_back_a_new_snapshot_is_taken(tmp_path: Path) -> None:
    taker = SnapshotTaker()
    shared = SnapshotCache(tmp_path / "snapshot.json", taker)
    shared.figures(in_s(3600))
    shared.figures(NOW)
    assert len(taker.lasts) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_text("{"),
        lambda file: file.write_text(json.dumps({"of": "another version"})),
        lambda file: file.write_bytes(b"\xff"),
        lambda file: file.unlink(),
    ],
    ids=["torn", "of another version", "no text", "gone"],
)
def test_an_unreadable_file_causes_one_additional_snapshot(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    taker = SnapshotTaker()
    SnapshotCache(tmp_path / "snapshot.json", taker).figures(NOW)
    spoil(tmp_path / "snapshot.json")

    figures = SnapshotCache(tmp_path / "snapshot.json", taker).figures(in_s(0.1))
    assert figures is not None
    assert taker.lasts == [None, None]


def test_without_a_folder_each_process_takes_its_own_snapshots(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    taker = SnapshotTaker()
    one, two = (SnapshotCache(tmp_path / "file" / "snapshot.json", taker) for _ in range(2))

    assert one.figures(NOW) == one.figures(in_s(0.5))
    assert len(taker.lasts) == 1
    assert two.figures(NOW) is not None
    assert len(taker.lasts) == 2


def test_an_unfinished_count_is_continued_by_another_process(customer: Customer, tmp_path: Path) -> None:
    many_targets(customer, 0, 1, "https://tracker.example.com/")
    many_finished(customer, 0, COUNT_BATCH + 10, (0, 1), NOW)

    def unfinished_snapshot(now: datetime, last: MetricsSnapshot | None) -> MetricsSnapshot:
        return metrics_snapshot.take_snapshot(now, last, 0.0)

    SnapshotCache(tmp_path / "snapshot.json", unfinished_snapshot).figures(NOW)
    figures = SnapshotCache(tmp_path / "snapshot.json", unfinished_snapshot).figures(in_s(60))
    assert figures is not None
    assert figures.exports == {"exported": COUNT_BATCH + 10}
