"""One worker claims a ping and ends it once; late results change nothing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from peewee import IntegrityError

from schemas.base.errors import Conflict, TargetNotFound
from schemas.targets.pings import STALE_AFTER_S, Ping, PingJob, PingResult
from schemas.targets.target import Target
from storage.db.engine import connection, execute, rows
from storage.secrets.vault import Vault
from storage.targets import pings, targets
from tests.support.database.query_plans import indexes_read, plan_of, statements
from tests.support.factories import NOW, Customer, make_customer, make_target

LATER = NOW + timedelta(seconds=1)
DELIVERED = PingResult(True, 202, None, 7)
VAULT = Vault([b"k" * 32])


def asked(target: Target, now: datetime = NOW) -> str:
    return pings.request(target.id, target.account_id, now, "user:test")


def times(ping_id: str) -> tuple[int | None, int | None]:
    [(started_at, finished_at)] = rows("SELECT started_at, finished_at FROM pings WHERE id = ?", (ping_id,))
    return started_at, finished_at


def test_a_repeated_request_with_a_key_gets_the_same_ping(target: Target) -> None:
    def ask(now: datetime = NOW, digest: str | None = "a" * 64) -> str:
        return pings.request(target.id, target.account_id, now, "user:test", digest)

    def ask_alone(_number: int) -> str:
        with connection():
            return ask()

    with ThreadPoolExecutor(8) as pool:
        [first] = {*pool.map(ask_alone, range(8))}
    assert ask(NOW + timedelta(minutes=59)) == first
    assert len({first, ask(digest="b" * 64), ask(digest=None), ask(digest=None)}) == 4
    assert ask(NOW + timedelta(minutes=61)) != first
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'ping_target'") == [(5,)]


def test_a_requested_ping_waits(target: Target) -> None:
    ping_id = asked(target)
    assert ping_id.startswith("png_")
    assert pings.get(ping_id) == Ping(ping_id, has_begun=False, result=None)
    [entry] = rows("SELECT actor, action, subject_id FROM audit_entries ORDER BY id DESC LIMIT 1")
    assert entry == ("user:test", "ping_target", target.id)


def test_a_claimed_ping_has_everything_needed_to_send_it(target: Target) -> None:
    ping_id = asked(target)
    assert pings.claim_next(LATER) == PingJob(ping_id, NOW, target.id, target.account_id, "Tracker", target.base_url, None)
    assert pings.get(ping_id) == Ping(ping_id, has_begun=True, result=None)
    assert pings.claim_next(LATER) is None


def test_a_claimed_ping_contains_the_targets_own_secret_encrypted(target: Target) -> None:
    targets.set_secret(target.id, "of its own", VAULT, NOW)
    asked(target)
    order = pings.claim_next(LATER)
    assert order is not None
    assert order.secret_sealed is not None
    assert VAULT.open(order.secret_sealed, targets.secret_context(target.id)) == "of its own"


def test_the_ping_that_has_waited_longest_is_claimed_first(target: Target) -> None:
    second, first = asked(target, LATER), asked(target, NOW)
    taken = [pings.claim_next(LATER), pings.claim_next(LATER)]
    assert [order.id if order else None for order in taken] == [first, second]


def test_concurrent_workers_claim_each_ping_once(target: Target) -> None:
    expected = sorted(asked(target) for _ in range(20))

    def take_all(_: int) -> list[str]:
        taken = []
        with connection():
            while order := pings.claim_next(LATER):
                taken.append(order.id)
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [ping_id for part in pool.map(take_all, range(8)) for ping_id in part]
    assert sorted(taken) == expected


def test_the_result_of_a_ping_is_written_once(target: Target) -> None:
    ping_id = asked(target)
    pings.claim_next(NOW)
    assert pings.finish(ping_id, DELIVERED, LATER)
    assert pings.get(ping_id) == Ping(ping_id, has_begun=True, result=DELIVERED)
    assert not pings.finish(ping_id, PingResult(False, 500, "receiver_unavailable", 9), LATER)
    assert not pings.stop_waiting(ping_id, LATER)
    assert pings.get(ping_id).result == DELIVERED


def test_a_ping_that_is_cancelled_in_time_is_never_sent(target: Target) -> None:
    ping_id = asked(target)
    assert pings.cancel_unstarted(ping_id, LATER)
    assert pings.claim_next(LATER) is None
    assert pings.get(ping_id) == Ping(ping_id, has_begun=False, result=PingResult(False, None, "no_worker", None))


def test_a_ping_that_a_worker_has_begun_cannot_be_cancelled(target: Target) -> None:
    ping_id = asked(target)
    pings.claim_next(NOW)
    assert not pings.cancel_unstarted(ping_id, LATER)
    assert pings.get(ping_id).result is None


def test_a_late_result_of_a_ping_is_not_written(target: Target) -> None:
    ping_id = asked(target)
    pings.claim_next(NOW)
    assert pings.stop_waiting(ping_id, LATER)
    assert not pings.finish(ping_id, DELIVERED, LATER)
    assert pings.get(ping_id).result == PingResult(False, None, "worker_lost", None)


# Columns: seconds that the ping waited; whether it is sent.
AGES = [(0.0, True), (STALE_AFTER_S, True), (STALE_AFTER_S + 0.001, False), (-5.0, True)]  # the last one: clocks differ


@pytest.mark.parametrize(("age_s", "is_sent"), AGES)
def test_a_ping_without_a_waiting_request_is_not_sent(target: Target, age_s: float, is_sent: bool) -> None:
    ping_id = asked(target)
    assert (pings.claim_next(NOW + timedelta(seconds=age_s)) is not None) == is_sent
    reported = pings.get(ping_id).result
    assert reported == (None if is_sent else PingResult(False, None, "no_worker", None))


def test_an_old_ping_does_not_hold_up_the_next_one(target: Target) -> None:
    asked(target, NOW - timedelta(hours=1))
    fresh = asked(target)
    order = pings.claim_next(LATER)
    assert order is not None
    assert order.id == fresh


def test_a_target_that_was_turned_off_meanwhile_is_not_pinged(target: Target) -> None:
    ping_id = asked(target)
    targets.change_status(target.id, "disable", NOW, "operator")
    assert pings.claim_next(LATER) is None
    assert pings.get(ping_id).result == PingResult(False, None, "target_disabled", None)
    assert times(ping_id)[0] is None


# Columns: status of the target; whether it may be pinged.
STATUSES = [
    ("active", True),
    ("paused", True),  # a ping shows whether it can be resumed
    ("blocked", True),  # the address policy applies to every request
    ("disabled", False),
    ("inactive", False),  # it has no secret to sign with
]


@pytest.mark.parametrize(("status", "is_allowed"), STATUSES)
def test_a_target_is_pinged_in_certain_states(target: Target, status: str, is_allowed: bool) -> None:
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target.id))
    if is_allowed:
        assert pings.get(asked(target)).result is None
        return
    with pytest.raises(Conflict, match=f"is {status}; ping needs"):
        asked(target)
    assert rows("SELECT COUNT(*) FROM pings") == [(0,)]


@pytest.mark.parametrize("find", [lambda target: target.id, lambda _: "tgt_x", lambda _: "tgt_\0"])
def test_a_ping_of_another_accounts_target_is_refused(target: Target, find: Callable[[Target], str]) -> None:
    with pytest.raises(TargetNotFound):
        pings.request(find(target), make_customer().account_id, NOW, "user:test")
    assert rows("SELECT COUNT(*) FROM pings") == [(0,)]


@pytest.mark.parametrize("change", ["finished_at = 1", "delivered = (1 = 1)", "target_id = 'tgt_none'"])
def test_a_contradictory_ping_row_is_rejected(target: Target, change: str) -> None:
    asked(target)
    with pytest.raises(IntegrityError):
        execute(f"UPDATE pings SET {change}")  # noqa: S608 - our own names


def test_the_newest_ping_is_read_from_an_index_without_the_others(target: Target, customer: Customer) -> None:
    """There are many pings, because some users monitor their receivers with them; one target has more than the other."""
    other = make_target(customer, "https://other.example.com/hook")
    made = "INSERT INTO pings (id, target_id, requested_at, finished_at, delivered) VALUES (?, ?, 1, 2, TRUE)"
    for number in range(600):
        execute(made, (f"png_{number:026}", other.id if number % 20 else target.id))
    execute("ANALYZE pings")
    with statements() as asked_for:
        assert pings.latest(target.id) is not None
    plan = " ".join(plan_of(asked_for[0]))
    assert indexes_read(asked_for[0]) == {"pings_target"}, plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan
