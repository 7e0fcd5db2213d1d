"""Dispatchers that share targets: receivers that ask to wait, rate limits, concurrency, and no delay for other targets."""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from schemas.base.timestamps import to_ms
from schemas.exports.delivery import Outcome
from schemas.exports.record import export_record
from storage.db.engine import execute, rows, transaction
from storage.exports import queries, transitions
from storage.targets import targets, throttle_state_sql
from tests.support.database.many_rows import many_targets, many_waiting
from tests.support.factories import NOW, Customer, limit_target, make_approved, make_due_events, make_target
from tests.support.processes.workers import wait_until
from tests.support.worker.dispatchers import FakeClock, FakePost, RoutedPost, approved, running_dispatcher, statuses
from worker.delivery import throttle
from worker.delivery.dispatcher import Dispatcher

BUSY_URL: Final = "https://busy.example.com/hook"
OTHER_URL: Final = "https://other.example.com/hook"
DELIVERED: Final = Outcome(status=202)
REFUSED: Final = Outcome(error="connect_refused")
#: A frozen clock makes renewals unnecessary; heartbeats are frequent enough for tests.
LONG_LEASES: Final[dict[str, Any]] = {"lease_s": 10**6, "renew_s": 0.02}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@contextmanager
def running_dispatchers(
    post: FakePost, clock: FakeClock, count: int = 2, concurrency: int = 8, **terms: Any
) -> Iterator[list[Dispatcher]]:
    """Start dispatchers that share their targets; nothing is due for them yet."""
    with ExitStack() as running:
        started = [
            running.enter_context(running_dispatcher(post, concurrency, now=clock, **LONG_LEASES | terms))
            for _ in range(count)
        ]
        wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(count,)])
        clock.wait_for_scans()
        yield started


def first_then(first: Outcome, *more: Outcome, then: Outcome = DELIVERED) -> Callable[[str], Outcome]:
    """Return these outcomes for the first requests to the busy target, and `then` for everything else."""
    answers = iter([first, *more])
    return lambda url: next(answers, then) if url == BUSY_URL else DELIVERED


def target_of(url: str) -> str:
    [(target_id,)] = rows("SELECT id FROM targets WHERE base_url = ?", (url,))
    return str(target_id)


def of(url: str, columns: str) -> list[tuple[Any, ...]]:
    """Return columns of the exports whose target has this URL."""
    return rows(f"SELECT {columns} FROM exports WHERE target_id = ?", (target_of(url),))  # noqa: S608 - our own names


def ask_to_wait(status: int, seconds: float) -> Outcome:
    return Outcome(status=status, retry_after=str(seconds))


def advance_in_steps(seconds: float, clock: FakeClock, count: int = 2) -> None:
    """Advance the clock in short steps: in a long one, a slow dispatcher would count as dead, and lose its share."""
    while seconds > 0:
        step_s = min(seconds, 5.0)
        clock.advance(step_s)
        seconds -= step_s
        wait_until(lambda: rows("SELECT COUNT(*) FROM workers WHERE seen_at = ?", (to_ms(clock.at),)) == [(count,)])


# ---------------------------------------------------------------- a receiver that asks to wait


@pytest.mark.parametrize("status", [429, 503])
def test_a_receivers_retry_after_holds_its_target_and_no_other(customer: Customer, clock: FakeClock, status: int) -> None:
    post = FakePost(now=clock)
    post.answer = lambda url: ask_to_wait(status, 30) if url == BUSY_URL and clock.at == NOW else DELIVERED
    with running_dispatchers(post, clock):
        approved(customer, 40, BUSY_URL, NOW)
        approved(customer, 40, OTHER_URL, NOW)
        # Everything for the other target has been sent, and to this one only the requests that were open at the first
        # response.
        wait_until(lambda: statuses()["exported"] == 40 and not statuses()["delivering"])
        asked = len(post.to(BUSY_URL))
        assert 1 <= asked <= 8
        for seconds in (1, 28, 0.999):
            clock.advance(seconds)
            clock.wait_for_scans()
        assert len(post.to(BUSY_URL)) == asked
        # Exports that wait count no attempt.
        assert sorted(attempts for (attempts,) in of(BUSY_URL, "attempts")) == [0] * (40 - asked) + [1] * asked
        clock.advance(0.001)
        wait_until(lambda: statuses()["exported"] == 80)
    assert set(post.to(BUSY_URL)) == {NOW, NOW + timedelta(seconds=30)}
    assert sum(attempts for (attempts,) in of(BUSY_URL, "attempts")) == len(post.to(BUSY_URL)) == 40 + asked


def test_no_queued_claim_is_sent_after_the_response(customer: Customer, clock: FakeClock) -> None:
    post = FakePost(now=clock)
    with running_dispatchers(post, clock, count=1):
        post.gate.clear()
        approved(customer, 40, BUSY_URL, NOW)
        wait_until(lambda: post.at_once == 4)
        post.let_through(4)
        # Four more are being sent, and others are claimed and wait for a slot.
        wait_until(lambda: sum(post.sent.values()) == 8 and statuses()["delivering"] > 4)
        post.answer = lambda _url: ask_to_wait(429, 30)
        post.let_through(1)
        wait_until(lambda: statuses()["delivering"] == 3)
        post.gate.set()
        wait_until(lambda: not statuses()["delivering"])
        clock.wait_for_scans()
        assert sum(post.sent.values()) == 8
        # A claim that was given back counts no attempt.
        assert sorted(attempts for (attempts,) in of(BUSY_URL, "attempts")) == [0] * 32 + [1] * 8


def test_a_503_without_retry_after_holds_no_target(customer: Customer, clock: FakeClock) -> None:
    post = FakePost(first_then(Outcome(status=503)), clock)
    with running_dispatchers(post, clock):
        approved(customer, 20, BUSY_URL, NOW)
        wait_until(lambda: statuses() == {"exported": 19, "retry_scheduled": 1})
    assert rows("SELECT held_until, held_reason FROM targets") == [(None, None)]


def test_after_the_wait_the_dispatcher_sends_one_then_two_then_four_requests(customer: Customer, clock: FakeClock) -> None:
    post = FakePost(first_then(ask_to_wait(429, 30)), clock)
    with running_dispatchers(post, clock, concurrency=32):
        approved(customer, 1, BUSY_URL, NOW)
        wait_until(lambda: statuses() == {"retry_scheduled": 1})
        post.gate.clear()
        for _ in range(30):
            more_for(BUSY_URL, customer)
        advance_in_steps(30, clock)
        for at_once in (1, 2, 4):
            wait_until(lambda expected=at_once: post.at_once == expected)  # type: ignore[misc]  # mypy takes no default
            clock.wait_for_scans()
            assert post.at_once == at_once
            post.let_through(at_once)


def more_for(url: str, customer: Customer) -> str:
    """Approve one more export for an existing target."""
    return make_approved(customer, target_of(url), NOW)


def test_a_worker_that_starts_later_observes_the_hold(customer: Customer, clock: FakeClock) -> None:
    approved(customer, 5, BUSY_URL, NOW)
    post = FakePost(first_then(*[ask_to_wait(429, 30)] * 5), clock)
    with running_dispatchers(post, clock, count=1):
        wait_until(lambda: statuses()["retry_scheduled"] and not statuses()["delivering"])
    asked = len(post.calls)
    with running_dispatchers(post, clock, count=1):
        clock.advance(29)
        clock.wait_for_scans()
        assert len(post.calls) == asked
        post.answer = lambda _url: DELIVERED
        clock.advance(1)
        wait_until(lambda: statuses() == {"exported": 5})


def test_resuming_a_target_ends_its_wait(customer: Customer, clock: FakeClock) -> None:
    post = FakePost(first_then(ask_to_wait(429, 3600)), clock)
    with running_dispatchers(post, clock):
        [first] = approved(customer, 1, BUSY_URL, NOW)
        wait_until(lambda: statuses() == {"retry_scheduled": 1})
        waiting = more_for(BUSY_URL, customer)
        clock.wait_for_scans()
        assert queries.get(waiting).status == "approved"
        targets.change_status(target_of(BUSY_URL), "resume", clock.at, "operator")
        wait_until(lambda: queries.get(waiting).status == "exported")
        # The export that was tried keeps its own time.
        assert queries.get(first).status == "retry_scheduled"


# ---------------------------------------------------------------- rate limits


#: Finds a claimed export; every claim has to be sent before the clock advances.
ANY_DELIVERING: Final = "SELECT 1 FROM exports WHERE status = 'delivering' LIMIT 1"


def is_used_up(target_ids: list[str], now: datetime) -> bool:
    return not any(throttle.rate_allowance(state, now) for state in throttle_state_sql.read(sorted(target_ids)).values())


def test_two_dispatchers_keep_a_rate_limit_together(
    customer: Customer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With two targets, each dispatcher may hold the lock of one while it needs the other."""
    paced = [many_targets(customer, number, 1, f"https://paced-{number}.example.com/")[0] for number in range(2)]
    for target_id in paced:
        limit_target(target_id, 600)
    many_waiting(customer, 0, 2000, (0, 2), NOW)
    post = FakePost(now=clock)
    with running_dispatchers(post, clock, concurrency=32):
        for _ in range(150):
            wait_until(lambda: is_used_up(paced, clock.at) and not rows(ANY_DELIVERING))
            clock.advance(0.5)
    for number in range(2):
        sent = post.to(f"https://paced-{number}.example.com/")
        assert most_in_a_minute(sent) <= 600
        assert len(sent) >= 0.95 * 600 / 60 * 75
    assert "database unavailable" not in caplog.text


def test_an_event_that_was_due_first_gets_the_next_request_of_a_rate_limit(customer: Customer, clock: FakeClock) -> None:
    target_id = make_target(customer, BUSY_URL).id
    limit_target(target_id, 60)
    make_due_events(customer, target_id, 1, to_ms(NOW) - 1)
    post = FakePost(now=clock)
    with running_dispatchers(post, clock, count=1):
        for _ in range(3):
            make_approved(customer, target_id, NOW)
        for _ in range(3):
            clock.advance(1.1)
            clock.wait_for_scans()
        assert post.to(BUSY_URL) == []
        execute("UPDATE ticket_events SET due_at = ?", (to_ms(NOW) + 1,))
        wait_until(lambda: len(post.to(BUSY_URL)) == 1)


def most_in_a_minute(moments: Sequence[datetime]) -> int:
    """Return the most requests within any 60 seconds, both ends included."""
    within: deque[datetime] = deque()
    most = 0
    for moment in sorted(moments):
        within.append(moment)
        while moment - within[0] > timedelta(minutes=1):
            within.popleft()
        most = max(most, len(within))
    return most


@pytest.mark.parametrize("per_minute", [1, 7, 61, 62, 600])
def test_an_export_reports_the_wait_for_its_targets_rate_limit(customer: Customer, per_minute: int) -> None:
    target_id = make_target(customer).id
    export_id = make_approved(customer, target_id)
    limit_target(target_id, per_minute)
    with transaction():
        state = throttle_state_sql.read([target_id])[target_id]
        used_up = throttle.use_rate_allowance(state, throttle.rate_allowance(state, NOW), NOW)
        throttle_state_sql.write([used_up])
    record, wait_s = export_record(queries.get(export_id), NOW), (throttle.rate_allows_from(used_up) or NOW) - NOW
    # With a higher limit, no export waits for a whole second.
    expected = None if per_minute > 61 else math.ceil(wait_s.total_seconds())
    assert (record.get("retry_after_seconds"), wait_s < timedelta(seconds=1)) == (expected, per_minute > 61)


# ---------------------------------------------------------------- the breaker


def test_five_failures_open_the_breaker_and_single_probes_follow_until_one_succeeds(
    customer: Customer, clock: FakeClock
) -> None:
    post = FakePost(lambda _url: REFUSED, clock)
    with running_dispatchers(post, clock):
        post.gate.clear()
        approved(customer, 40, BUSY_URL, NOW)
        wait_until(lambda: post.at_once == 8)
        post.let_through(8)
        wait_until(lambda: held_reason() == "breaker_open")
        clock.wait_for_scans()
        post.gate.set()
        wait_until(lambda: not statuses()["delivering"])
        sent = len(post.calls)
        # Five failures in a row, and the requests that were open beside them.
        assert 8 <= sent <= 16
        for wait_s in (1, 2, 4, 8):
            advance_in_steps(wait_s - 0.001, clock)
            clock.wait_for_scans()
            assert len(post.calls) == sent
            clock.advance(0.001)
            sent += 1
            wait_until(lambda expected=sent: rows("SELECT COUNT(*) FROM attempts") == [(expected,)])  # type: ignore[misc]  # mypy takes no default
            clock.wait_for_scans()
            assert len(post.calls) == sent
        post.answer = lambda _url: DELIVERED
        clock.advance(16)
        wait_until(lambda: statuses() == {"exported": 40 - sent, "retry_scheduled": sent})
    assert rows("SELECT held_until, failures_in_row, failing_since FROM targets") == [(None, 0, None)]


@pytest.mark.parametrize("wait", ["a rate limit", "a breaker"])
def test_a_wait_from_before_the_clock_was_set_back_lasts_a_minute_at_most(
    customer: Customer, clock: FakeClock, wait: str
) -> None:
    post, target_id = FakePost(now=clock), make_target(customer, BUSY_URL).id
    ahead = NOW + timedelta(hours=1)
    if wait == "a rate limit":
        limit_target(target_id, 1)
        execute("UPDATE targets SET paced_until = ?", (to_ms(ahead) * 1000,))
    else:
        execute("UPDATE targets SET failures_in_row = 9, held_reason = 'breaker_open', held_until = ?", (to_ms(ahead),))
    clock.at = ahead
    with running_dispatchers(post, clock, count=1):
        clock.at = NOW
        make_approved(customer, target_id, NOW)
        clock.wait_for_scans()
        assert post.calls == []
        clock.advance(62)
        wait_until(lambda: statuses() == {"exported": 1})


def held_reason() -> str | None:
    [(reason,)] = rows("SELECT held_reason FROM targets")
    return None if reason is None else str(reason)


def test_after_five_days_of_failures_a_target_is_disabled_and_its_exports_fail(customer: Customer, clock: FakeClock) -> None:
    post = FakePost(lambda _url: REFUSED, clock)
    approved(customer, 10, BUSY_URL, NOW)
    execute("UPDATE targets SET failing_since = ?, failures_in_row = 9", (to_ms(NOW - timedelta(days=5)),))
    with running_dispatchers(post, clock, count=1):
        wait_until(lambda: statuses() == {"failed": 10})
    assert rows("SELECT status, status_reason FROM targets") == [("disabled", "failing_for_days")]
    assert set(rows("SELECT status_reason, due_at FROM exports")) == {("target_disabled", None)}
    assert len(post.calls) == 1


# ---------------------------------------------------------------- operator actions while claims wait


@pytest.fixture
def in_queue(customer: Customer, clock: FakeClock) -> Iterator[tuple[FakePost, list[str]]]:
    """Run a dispatcher with four open requests and claims that wait for slots; yield the IDs of the waiting exports."""
    post = FakePost(now=clock)
    with running_dispatchers(post, clock, count=1):
        post.gate.clear()
        approved(customer, 40, BUSY_URL, NOW)
        wait_until(lambda: post.at_once == 4)
        post.let_through(4)
        wait_until(lambda: sum(post.sent.values()) == 8 and statuses()["delivering"] > 4)
        claimed = {export_id for (export_id,) in rows("SELECT id FROM exports WHERE status = 'delivering'")}
        yield post, sorted(claimed - set(post.sent))


# Columns: the operator's action; the reason why unsent exports end, or None if they wait.
TURNED_OFF: Final = [("pause", None), ("disable", "target_disabled")]


@pytest.mark.parametrize(("verb", "reason"), TURNED_OFF)
def test_no_request_starts_after_a_user_turned_the_target_off(
    in_queue: tuple[FakePost, list[str]], clock: FakeClock, verb: str, reason: str | None
) -> None:
    post, _ = in_queue
    targets.change_status(target_of(BUSY_URL), verb, clock.at, "operator")
    clock.advance(1)
    post.gate.set()
    # Open requests end and their results are recorded.
    wait_until(lambda: statuses()["exported"] == 8 and not statuses()["delivering"])
    clock.wait_for_scans()
    assert sum(post.sent.values()) == 8
    left = rows("SELECT status_reason, attempts FROM exports WHERE status <> 'exported'")
    assert Counter(left) == {(reason, 0): 32}


def test_claimed_exports_are_not_sent_after_their_redaction(in_queue: tuple[FakePost, list[str]], clock: FakeClock) -> None:
    post, waiting = in_queue
    with transaction():
        transitions.redact(waiting, clock.at, "operator")
    clock.advance(1)
    post.gate.set()
    wait_until(lambda: statuses() == {"exported": 40 - len(waiting), "failed": len(waiting)})
    assert not set(waiting) & set(post.sent)
    assert {queries.get(export_id).status_reason for export_id in waiting} == {"redacted"}


# ---------------------------------------------------------------- targets that hang


def test_a_target_that_hangs_holds_up_no_other(
    customer: Customer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    post, quick = FakePost(now=clock), FakePost(now=clock)
    post.gate.clear()

    with running_dispatchers(RoutedPost({BUSY_URL: post}, quick), clock, count=1):
        approved(customer, 50, BUSY_URL, NOW)
        wait_until(lambda: post.at_once == 4)
        for number in range(3):
            approved(customer, 100, f"https://quick-{number}.example.com/", NOW)
        wait_until(lambda: statuses()["exported"] == 300)
        assert (sum(post.sent.values()), statuses()["delivering"]) == (4, 4)
        post.gate.set()
        wait_until(lambda: statuses() == {"exported": 350})
    assert "failed" not in caplog.text


def test_a_target_that_hangs_all_at_once_holds_up_no_other(customer: Customer, clock: FakeClock) -> None:
    """While the target was quick, many more exports were claimed for it than there are threads."""
    post, quick = FakePost(now=clock), FakePost(now=clock)
    post.gate.clear()

    with running_dispatchers(RoutedPost({BUSY_URL: post}, quick), clock, count=1):
        approved(customer, 200, BUSY_URL, NOW)
        wait_until(lambda: post.at_once == 4)
        post.let_through(40)
        wait_until(lambda: statuses()["exported"] == 40 and statuses()["delivering"] > 8)
        approved(customer, 20, OTHER_URL, NOW)
        wait_until(lambda: len(quick.calls) == 20)
        assert post.at_once == 4
        post.gate.set()
        wait_until(lambda: statuses() == {"exported": 220})


def test_the_dispatcher_continues_scanning_while_every_thread_is_busy(
    customer: Customer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    post = FakePost(now=clock)
    with running_dispatchers(post, clock, count=1):
        post.gate.clear()
        approved(customer, 20, BUSY_URL, NOW)
        approved(customer, 20, OTHER_URL, NOW)
        wait_until(lambda: post.at_once == 8)
        clock.wait_for_scans()
        post.gate.set()
        wait_until(lambda: statuses() == {"exported": 40})
    assert "failed" not in caplog.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_dispatchers_together_keep_a_targets_concurrency(customer: Customer, clock: FakeClock, count: int) -> None:
    post = FakePost(now=clock)
    post.gate.clear()
    with running_dispatchers(post, clock, count, concurrency=40):
        approved(customer, 200, BUSY_URL, NOW)
        wait_until(lambda: post.at_once == 16)
        clock.wait_for_scans()
        for _ in range(20):
            post.let_through(5)
            clock.wait_for_scans(5)
        post.gate.set()
        wait_until(lambda: statuses() == {"exported": 200})
    assert post.most_at_once == 16


def test_all_dispatchers_together_make_one_probe(customer: Customer, clock: FakeClock) -> None:
    post = FakePost(lambda _url: REFUSED, now=clock)
    post.gate.clear()
    with running_dispatchers(post, clock, 3):
        approved(customer, 20, BUSY_URL, NOW)
        execute("UPDATE targets SET failures_in_row = 5, held_reason = 'breaker_open', held_until = ?", (to_ms(NOW),))
        # Claims from before this change are not probes.
        wait_until(lambda: post.at_once)
        begun = len(post.calls)
        post.let_through(begun)
        wait_until(lambda: not statuses()["delivering"])
        for wait_s in (2, 4, 8, 16):
            # Counted before the clock advances: a dispatcher may send at that very moment.
            begun = len(post.calls)
            advance_in_steps(wait_s, clock, 3)
            wait_until(lambda before=begun: len(post.calls) > before)  # type: ignore[misc]  # mypy takes no default
            clock.wait_for_scans()
            assert (len(post.calls), post.at_once) == (begun + 1, 1)
            post.let_through(1)
            wait_until(lambda: not statuses()["delivering"])


def test_the_other_workers_get_the_share_of_a_dead_worker(customer: Customer, clock: FakeClock) -> None:
    post = FakePost(now=clock)
    post.gate.clear()
    execute("INSERT INTO workers (name, started_at, seen_at) VALUES ('killed', ?, ?)", (to_ms(NOW), to_ms(NOW)))
    with running_dispatcher(post, 40, now=clock, **LONG_LEASES):
        approved(customer, 40, BUSY_URL, NOW)
        wait_until(lambda: post.at_once == 8)
        clock.advance(5.999)
        clock.wait_for_scans()
        assert post.at_once == 8
        clock.advance(0.001)
        wait_until(lambda: post.at_once == 16)


def test_a_worker_that_finishes_its_requests_leaves_its_share_at_once(customer: Customer, clock: FakeClock) -> None:
    slow = FakePost(now=clock)
    slow.gate.clear()
    with running_dispatcher(slow, 40, now=clock, **LONG_LEASES) as stopping:
        approved(customer, 1, BUSY_URL, NOW)
        wait_until(lambda: slow.at_once == 1)
        stopping.stop()
        wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(0,)])
        slow.gate.set()
        wait_until(lambda: statuses() == {"exported": 1})
    assert rows("SELECT COUNT(*) FROM workers") == [(0,)]


def test_a_worker_that_stops_leaves_its_share_at_once(customer: Customer, clock: FakeClock) -> None:
    post = FakePost(now=clock)
    with running_dispatcher(post, 40, now=clock, **LONG_LEASES):
        with running_dispatcher(post, 40, now=clock, **LONG_LEASES):
            wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(2,)])
        assert rows("SELECT COUNT(*) FROM workers") == [(1,)]
        clock.wait_for_scans()
        post.gate.clear()
        approved(customer, 40, BUSY_URL, NOW)
        wait_until(lambda: post.at_once == 16)
    assert rows("SELECT COUNT(*) FROM workers") == [(0,)]
