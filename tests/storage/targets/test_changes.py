"""Targets are edited and removed; waiting exports go to a new URL, and finished ones keep the ID of a removed target."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from schemas.base.errors import Conflict, TargetNotFound, ValidationFailed, WebhooksForbidden
from schemas.exports.record import Approval
from schemas.exports.recoveries import RecoveryStatus
from schemas.targets.target import TargetEdit, TargetStatus
from schemas.targets.validations import Validation
from schemas.triage.export_filter import ExportQuery
from storage.accounts import accounts
from storage.accounts.account_limits import AccountLimits, Limited
from storage.accounts.audit_log import ids_of_account
from storage.db.engine import connection, execute, is_sqlite, rows, transaction
from storage.exports import claims_sql, queries, recoveries, transitions
from storage.exports.search import export_list
from storage.reporting import dashboard_queries, metrics_snapshot
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import changes, pings, summaries, targets, throttle_state_sql, validations
from storage.targets.changes import TargetInUse
from tests.support.database.databases import on_postgresql
from tests.support.factories import (
    DEFAULT_SECRET,
    LOOPBACK_POLICY,
    NOW,
    Customer,
    claim_due,
    in_s,
    make_approved,
    make_exports,
    make_failed,
    make_target,
)

VAULT = Vault([b"k" * 32])
LATER = NOW + timedelta(minutes=1)
ELSEWHERE = TargetEdit(base_url="https://other.example.com/hook")


def edit(target_id: str, wanted: TargetEdit, default: DefaultSecret = DEFAULT_SECRET) -> bool:
    return changes.edit(target_id, wanted, default, LATER, "user:1")


def entries(target_id: str) -> list[tuple[Any, ...]]:
    """Return the audit entries of a target after its creation."""
    return rows("SELECT action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (target_id,))[1:]


def test_each_change_of_a_target_is_audited(customer: Customer) -> None:
    target = make_target(customer)
    wanted = TargetEdit("Other", "https://other.example.com/hook?x=1", True, 30)
    assert edit(target.id, wanted)
    found = targets.get(target.id, DEFAULT_SECRET)
    assert (found.name, found.base_url, found.max_per_minute) == ("Other", wanted.base_url, 30)
    changed = [("rename_target", None), ("limit_target", "30/min"), ("move_target", "other.example.com")]
    assert entries(target.id) == changed
    assert not edit(target.id, wanted)
    assert entries(target.id) == changed


def test_a_target_with_a_new_url_starts_as_a_new_one(customer: Customer) -> None:
    fresh, used = make_target(customer), make_target(customer)
    execute("UPDATE targets SET validation_due_at = NULL")
    execute(
        "UPDATE targets SET status = 'disabled', status_reason = 'failing_for_days', connected_status = 'failing', "
        "last_success_at = 1, validation_status = 'failed', validation_reason = 'tls_failed', validation_failures = 4, "
        "validation_asked_at = 5, validation_lease = 'lse_1', held_until = 9, held_reason = 'breaker_open', "
        "concurrency = 1, ramp = 1, failures_in_row = 7, undelivered_in_row = 5, failing_since = 2, "
        "paced_until = 3 WHERE id = ?",
        (used.id,),
    )
    assert edit(used.id, ELSEWHERE)
    same = "SELECT status, status_reason, connected_status, last_success_at, validation_status, validation_reason, "
    same += "validation_failures, validation_asked_at, validation_lease, held_until, held_reason, concurrency, ramp, "
    same += "failures_in_row, undelivered_in_row, failing_since, paced_until FROM targets WHERE id = ?"
    assert rows(same, (used.id,)) == rows(same, (fresh.id,))
    [(validated_at, due_at)] = rows("SELECT validated_at, validation_due_at FROM targets WHERE id = ?", (used.id,))
    assert (due_at - validated_at, targets.get(used.id, None).validated_at) == (24 * 3600 * 1000, LATER)


def test_a_target_with_a_new_url_that_no_secret_signs_for_waits_for_one(customer: Customer) -> None:
    own, unsigned = make_target(customer), make_target(customer)
    targets.set_secret(own.id, "their own secret", VAULT, NOW)
    for each in (own, unsigned):
        edit(each.id, ELSEWHERE, DefaultSecret())
    assert targets.get(own.id, None).status is TargetStatus.ACTIVE
    waiting = targets.get(unsigned.id, None)
    assert (waiting.status, waiting.status_reason) == (TargetStatus.INACTIVE, "no_secret")


def test_waiting_exports_are_sent_to_the_new_url_with_the_approved_bytes(customer: Customer) -> None:
    target = make_target(customer)
    ids = {make_approved(customer, target.id) for _ in range(2)}
    [early, *_] = claim_due(1, NOW, 6, "worker")
    edit(target.id, ELSEWHERE)
    # An export that was claimed before the edit, but not begun, is sent to the new URL as well.
    now = claims_sql.recheck(early, NOW)
    assert now is not None
    assert (now.base_url, now.body) == (ELSEWHERE.base_url, early.body)
    [late] = claim_due(5, LATER, 6, "worker") if early.claimed_at > LATER else claim_due(5, NOW, 6, "worker")
    assert late.base_url == ELSEWHERE.base_url
    assert {early.export_id, late.export_id} == ids


def test_the_same_url_again_changes_nothing(customer: Customer) -> None:
    target = make_target(customer)
    targets.change_status(target.id, "pause", NOW, "operator")
    before = targets.get(target.id, None)
    assert not edit(target.id, TargetEdit(base_url=target.base_url))
    assert targets.get(target.id, None) == before


def test_a_refusal_of_the_old_url_does_not_turn_the_new_one_off(customer: Customer) -> None:
    target = make_target(customer)
    edit(target.id, ELSEWHERE)
    with transaction():
        targets.refuse(target.id, "address_private", LATER, "worker", target.base_url)
    assert targets.get(target.id, None).status is TargetStatus.ACTIVE
    with transaction():
        targets.refuse(target.id, "address_private", LATER, "worker", ELSEWHERE.base_url)
    assert targets.get(target.id, None).status is TargetStatus.BLOCKED


def test_a_validation_of_the_old_url_is_not_recorded(customer: Customer) -> None:
    target = make_target(customer)
    validations.request(target.id, None, NOW, "user:1")
    job = validations.claim_next(NOW, 6)
    assert job is not None
    edit(target.id, ELSEWHERE)
    assert not validations.finish(job, Validation("tls_failed"), LATER, "worker")
    assert targets.get(target.id, None).validation_status == "passed"


def test_an_account_that_may_not_use_webhooks_gets_no_new_url(customer: Customer) -> None:
    target = make_target(customer)
    accounts.set_webhooks(customer.account_id, False, NOW, "operator")
    with pytest.raises(WebhooksForbidden):
        edit(target.id, ELSEWHERE)
    assert targets.get(target.id, None).base_url == target.base_url


# --- removal


def test_a_removed_target_is_found_nowhere_and_its_secret_is_erased(customer: Customer) -> None:
    target, other = make_target(customer), make_target(customer)
    targets.set_secret(target.id, "their own secret", VAULT, NOW)
    ping_id = pings.request(target.id, customer.account_id, NOW, "user:1")
    validations.request(target.id, None, NOW, "user:1")
    execute("UPDATE targets SET held_until = 9000000000000, held_reason = 'rate_limited' WHERE id = ?", (target.id,))

    changes.remove(target.id, LATER, "user:1", customer.account_id)

    uses: list[Callable[[], object]] = [
        lambda: targets.get(target.id, None),
        lambda: targets.change_status(target.id, "resume", LATER, "operator"),
        lambda: targets.set_secret(target.id, "another secret", VAULT, LATER),
        lambda: edit(target.id, ELSEWHERE),
        lambda: changes.remove(target.id, LATER, "user:1"),
        lambda: pings.request(target.id, customer.account_id, LATER, "user:1"),
        lambda: validations.request(target.id, None, LATER, "user:1"),
        lambda: recoveries.begin(target.id, NOW, LATER, "operator"),
    ]
    for use in uses:
        with pytest.raises(TargetNotFound):
            use()
    account_id = customer.account_id
    assert [each.id for each in targets.list_all(None)] == [other.id]
    assert [each.id for each in targets.list_page(account_id, None, 9, LATER)] == [other.id]
    for status in TargetStatus:
        assert target.id not in [each.id for each in targets.list_page(account_id, None, 9, LATER, status=status)]
    assert [each.id for each in summaries.list_page(account_id, 9)] == [other.id]
    assert [each.id for each in summaries.list_approvable(account_id, 9)] == [other.id]
    assert summaries.list_unapprovable(account_id, 9) == []
    assert dashboard_queries.list_unavailable_targets(account_id, LATER, 9) == []
    assert sum(metrics_snapshot.targets_by_state(LATER)[0].values()) == 1
    assert validations.claim_next(LATER, 6) is None
    assert pings.claim_next(LATER) is None
    assert pings.get(ping_id).is_over
    assert ids_of_account(account_id, [target.id, other.id]) == {other.id}
    assert rows("SELECT secret_sealed, secret_fingerprint FROM targets WHERE id = ?", (target.id,)) == [(None, None)]
    assert entries(target.id)[-1] == ("remove_target", None)
    changes.remove(other.id, LATER, "user:1")
    assert not dashboard_queries.count_account(account_id).has_targets


def test_a_target_that_exports_wait_for_is_not_removed(customer: Customer) -> None:
    target, other = make_target(customer), make_target(customer)
    for _ in range(4):
        make_approved(customer, target.id)
    make_approved(customer, other.id)
    claims = claim_due(2, NOW, 6, "worker")
    held = next(each.export_id for each in claims if each.target_id == target.id)
    execute("UPDATE exports SET status = 'retry_scheduled', lease = NULL WHERE id = ?", (held,))
    make_failed(customer, target.id)
    with pytest.raises(TargetInUse, match="2 approved, 1 delivering, 1 retry_scheduled") as refused:
        changes.remove(target.id, LATER, "user:1")
    assert refused.value.details == {"approved": 2, "delivering": 1, "retry_scheduled": 1, "pending_events": 0}
    assert targets.get(target.id, None).status is TargetStatus.ACTIVE


def test_exports_keep_the_id_of_a_removed_target_and_are_retried_elsewhere_only(customer: Customer) -> None:
    target = make_target(customer)
    [failed] = make_failed(customer, target.id)
    changes.remove(target.id, LATER, "user:1")
    assert queries.get(failed).target_id == target.id
    listed = export_list.list_page(ExportQuery(customer.account_id, target_ids=(target.id,)))
    assert [each.id for each in listed] == [failed]
    shown = summaries.by_id([target.id], customer.account_id)[target.id]
    assert (shown.name, shown.is_removed) == (target.name, True)
    with pytest.raises(ValidationFailed) as refused:
        transitions.retry(failed, customer.account_id, LATER, "user:1")
    [problem] = refused.value.problems
    assert (problem.path, problem.code) == ("/target_id", "target_removed")
    assert "choose another target" in problem.message
    [prepared] = make_exports(customer, 1)
    with pytest.raises(ValidationFailed) as unknown:
        transitions.approve(prepared, customer.account_id, Approval(target.id, None), LATER, "user:1", LOOPBACK_POLICY)
    assert unknown.value.problems[0].code == "unknown_target"


def test_a_removal_ends_the_recovery_of_the_target(customer: Customer) -> None:
    target = make_target(customer)
    make_failed(customer, target.id, 3)
    held = recoveries.begin(target.id, NOW - timedelta(days=1), NOW, "operator")
    changes.remove(target.id, LATER, "user:1")
    recovery = recoveries.get(held.id, customer.account_id)
    assert recovery.status is RecoveryStatus.CANCELLED
    assert recoveries.advance(held, LATER).processed == 0
    assert [each.id for each in recoveries.list_account_page(customer.account_id, 9)] == [held.id]


def test_a_refused_removal_leaves_the_recovery_running(customer: Customer) -> None:
    target = make_target(customer)
    make_failed(customer, target.id, 3)
    held = recoveries.begin(target.id, NOW - timedelta(days=1), NOW, "operator")
    recoveries.advance(held, NOW)
    with pytest.raises(TargetInUse):
        changes.remove(target.id, LATER, "user:1")
    assert recoveries.get(held.id).status is RecoveryStatus.RUNNING


def test_removed_targets_do_not_count_towards_the_limit(customer: Customer) -> None:
    limits = AccountLimits({Limited.TARGETS: 1})
    changes.remove(make_target(customer).id, NOW, "user:1")
    make_target(customer)
    assert [each.used for each in limits.usage([customer.account_id], NOW)[customer.account_id]] == [1]
    limits.require_room(customer.account_id, Limited.TARGETS, 1, NOW)


@pytest.mark.parametrize("rival", ["approve", "retry", "recover"])
def test_a_removal_and_a_concurrent_change_that_makes_exports_wait_never_both_succeed(
    customer: Customer, rival: str
) -> None:
    """On PostgreSQL, each checks what the other one writes at the same time. SQLite has one writer."""
    for _ in range(3 if is_sqlite() else 12):
        target_id = make_target(customer).id
        let_wait = rivals(customer, target_id)[rival]
        with ThreadPoolExecutor(2) as pool:
            waits = pool.submit(_in_connection, let_wait)
            removal = pool.submit(_in_connection, remover(target_id))
        is_gone = rows("SELECT deleted_at FROM targets WHERE id = ?", (target_id,)) != [(None,)]
        assert (removal.result(), waits.result()) in {(is_gone, not is_gone), (True, False)}
        assert not (is_gone and queries.count_waiting(target_id, 9))
        running = "SELECT COUNT(*) FROM recoveries WHERE target_id = ? AND status = 'running'"
        assert not (is_gone and rows(running, (target_id,)) != [(0,)])


def rivals(customer: Customer, target_id: str) -> dict[str, Callable[[], object]]:
    """Return the operations that make an export wait for a target."""
    [failed], [prepared], account_id = make_failed(customer, target_id), make_exports(customer, 1), customer.account_id
    approval = Approval(target_id, None)

    def recover() -> None:
        held = recoveries.begin(target_id, NOW - timedelta(days=1), LATER, "user:1")
        if not recoveries.advance(held, LATER).processed:
            raise Conflict

    return {
        "approve": lambda: transitions.approve(prepared, account_id, approval, LATER, "user:1", LOOPBACK_POLICY),
        "retry": lambda: transitions.retry(failed, account_id, LATER, "user:1"),
        "recover": recover,
    }


def remover(target_id: str) -> Callable[[], None]:
    return lambda: changes.remove(target_id, LATER, "user:2")


def test_an_approval_that_began_before_a_removal_is_waited_for(customer: Customer) -> None:
    """Only a lock decides this order: the approval has read the target, and the removal counts before its commit."""
    if is_sqlite():
        # On SQLite, a transaction is the only writer from its beginning.
        assert throttle_state_sql.lock({}) == {}
        return
    target = make_target(customer)
    [prepared] = make_exports(customer, 1)
    with ThreadPoolExecutor(1) as pool:
        with transaction():
            transitions.approve(prepared, customer.account_id, Approval(target.id, None), LATER, "user:1", LOOPBACK_POLICY)
            removal = pool.submit(_in_connection, lambda: changes.remove(target.id, LATER, "user:1"))
            with pytest.raises(TimeoutError):
                removal.result(timeout=0.3)
        assert removal.result(timeout=10) is False
    assert targets.get(target.id, None).status is TargetStatus.ACTIVE


@on_postgresql
def test_a_removal_does_not_deadlock_with_the_beginning_of_a_recovery(customer: Customer) -> None:
    target_id = make_target(customer).id
    recoveries.begin(target_id, NOW, NOW, "operator")
    with ThreadPoolExecutor(1) as pool:
        with transaction():
            # The first lock of a removal.
            execute("UPDATE recoveries SET done = done WHERE target_id = ?", (target_id,))
            beginning = pool.submit(_in_connection, lambda: recoveries.begin(target_id, NOW, LATER, "operator"))
            with pytest.raises(TimeoutError):
                beginning.result(timeout=0.3)
            changes.remove(target_id, LATER, "user:1")
        assert beginning.result(timeout=10) is False


def _in_connection(act: Callable[[], object]) -> bool:
    """Return whether `act` was allowed."""
    with connection():
        try:
            act()
        except (Conflict, TargetNotFound, ValidationFailed):
            return False
        return True


def test_the_throttle_state_of_a_removed_target_accepts_no_attempts(customer: Customer) -> None:
    """Code that overlooks the removal ends waiting exports, and sends nothing."""
    target = make_target(customer)
    changes.remove(target.id, NOW, "user:1")
    with transaction():
        state = throttle_state_sql.read([target.id])[target.id]
    assert not state.takes_attempts(in_s(1))
    assert state.status is TargetStatus.DISABLED
