"""Targets are created, get secrets, are turned on and off, and show the results of deliveries."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from peewee import IntegrityError

from schemas.base.errors import Conflict, TargetNotFound
from schemas.base.timestamps import to_ms
from schemas.targets.target import BREAKER_OPEN, RATE_LIMITED, RECEIVER_UNAVAILABLE, TargetEdit, TargetRequest, TargetStatus
from schemas.targets.validations import Validation
from storage.db.engine import connection, execute, rows, transaction
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import changes, targets, throttle_state_sql, validations
from storage.targets.validations import ValidationJob
from tests.support.factories import (
    DEFAULT_SECRET,
    NOW,
    Customer,
    claim_due,
    in_s,
    limit_target,
    make_approved,
    make_customer,
    make_target,
)

VAULT = Vault([b"k" * 32])
LATER = NOW + timedelta(minutes=1)
UNSAFE = Validation("address_private", is_refused=True)


def status_of(target_id: str) -> tuple[str, str | None]:
    target = targets.get(target_id, None)
    return target.status.value, target.status_reason


def test_a_target_that_the_default_secret_signs_for_is_active(customer: Customer) -> None:
    target = make_target(customer)
    assert (target.status, target.status_reason) == (TargetStatus.ACTIVE, None)
    assert (target.deployment_mode, target.connected_status) == ("self-hosted", "unknown")
    assert (target.validation_status, target.validated_at) == ("passed", NOW)
    assert targets.get(target.id, DEFAULT_SECRET) == target
    assert rows("SELECT actor, action FROM audit_entries WHERE subject_id = ?", (target.id,)) == [
        ("user:test", "create_target")
    ]


def test_a_target_without_a_secret_waits_for_its_first_one(customer: Customer) -> None:
    request = TargetRequest("generic_webhook", "https://tracker.example.com/hook", "cloud", "Tracker", None)
    target = targets.create(request, customer.account_id, "self-hosted", DefaultSecret(), NOW, "user:1")
    assert (target.status, target.status_reason, target.secret_fingerprint) == (TargetStatus.INACTIVE, "no_secret", None)
    assert target.deployment_mode == "cloud"
    fingerprint = targets.set_secret(target.id, "shared with the receiver", VAULT, LATER)
    again = targets.get(target.id, None)
    assert (again.status, again.status_reason) == (TargetStatus.ACTIVE, None)
    assert again.secret_fingerprint == fingerprint == VAULT.fingerprint("shared with the receiver")


def make_tracker(customer: Customer) -> str:
    """Store a target of a tracker without a token; return its ID."""
    request = TargetRequest("gitea", "https://gitea.example.com/acme/shop", None, "Tracker", None)
    return targets.create(request, customer.account_id, "self-hosted", DEFAULT_SECRET, NOW, "user:1").id


def test_a_tracker_waits_for_its_own_token_whatever_the_default_secret(customer: Customer) -> None:
    target_id = make_tracker(customer)
    assert status_of(target_id) == ("inactive", "no_secret")
    assert targets.get(target_id, DEFAULT_SECRET).secret_fingerprint is None
    targets.apply_default_secret(DEFAULT_SECRET, LATER, "operator")
    changes.edit(target_id, TargetEdit(base_url="https://gitea.example.com/acme/other"), DEFAULT_SECRET, LATER, "operator")
    assert status_of(target_id) == ("inactive", "no_secret")
    targets.set_secret(target_id, "a token", VAULT, LATER)
    targets.apply_default_secret(DefaultSecret(), LATER, "operator")
    assert status_of(target_id) == ("active", None)
    changes.edit(target_id, TargetEdit(base_url="https://gitea.example.com/acme/third"), DEFAULT_SECRET, LATER, "operator")
    assert status_of(target_id) == ("active", None)


@pytest.mark.parametrize("default", [DEFAULT_SECRET, None], ids=["a default secret", "no known default secret"])
def test_a_tracker_without_a_token_is_not_resumed(customer: Customer, default: DefaultSecret | None) -> None:
    target_id = make_tracker(customer)
    execute("UPDATE targets SET status = 'disabled'")
    with pytest.raises(Conflict, match="has no token"):
        targets.change_status(target_id, "resume", NOW, "operator", default=default)
    targets.set_secret(target_id, "a token", VAULT, NOW)
    targets.change_status(target_id, "resume", NOW, "operator", default=default)
    assert status_of(target_id) == ("active", None)


def test_a_new_token_lets_a_failed_validation_of_a_tracker_be_repeated_now(customer: Customer) -> None:
    tracker_id, webhook = make_tracker(customer), make_target(customer)
    for target_id in (tracker_id, webhook.id):
        targets.record_validation(target_id, None, Validation("tracker_token_rejected"), NOW, "worker")
        targets.set_secret(target_id, "a token", VAULT, LATER)
    due = dict(rows("SELECT id, validation_due_at FROM targets"))
    assert due[tracker_id] == to_ms(LATER)
    assert due[webhook.id] != to_ms(LATER)


@pytest.mark.parametrize("found", [Validation(), Validation("tracker_token_rejected")], ids=["passed", "failed"])
def test_a_validation_with_a_replaced_token_is_not_recorded(customer: Customer, found: Validation) -> None:
    target_id = make_tracker(customer)
    targets.set_secret(target_id, "a token", VAULT, NOW)
    former = validations.claim_next(NOW, 90)
    assert former is not None
    targets.set_secret(target_id, "another token", VAULT, LATER)
    validations.request(target_id, None, LATER, "operator")
    assert not validations.finish(former, found, LATER, "worker")
    assert targets.get(target_id, None).validation_status is None
    again = validations.claim_next(LATER, 90)
    assert again is not None
    assert VAULT.open(bytes(again.secret_sealed or b""), targets.secret_context(target_id)) == "another token"


def test_a_validation_is_made_with_the_token_that_is_set_while_it_is_claimed(customer: Customer) -> None:
    target_id = make_tracker(customer)
    targets.set_secret(target_id, "a token", VAULT, NOW)
    validations.request(target_id, None, NOW, "operator")

    def claim() -> ValidationJob | None:
        with connection():
            return validations.claim_next(LATER, 90)

    with ThreadPoolExecutor(1) as pool:
        with transaction():
            targets.set_secret(target_id, "another token", VAULT, LATER)
            validations.request(target_id, None, LATER, "operator")
            waiting = pool.submit(claim)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
        job = waiting.result(timeout=10)
    assert job is not None
    assert VAULT.open(bytes(job.secret_sealed or b""), targets.secret_context(target_id)) == "another token"


#: Columns: status and reason of a target; whether it has its own secret; then its status and reason where the default
#: secret serves its account, and where it does not.
APPLIED = [
    (("active", None), False, ("active", None), ("inactive", "no_secret")),
    (("inactive", "no_secret"), False, ("active", None), ("inactive", "no_secret")),
    (("active", None), True, ("active", None), ("active", None)),
    (("paused", "client"), False, ("paused", "client"), ("paused", "client")),
    (("blocked", "address_private"), False, ("blocked", "address_private"), ("blocked", "address_private")),
    (("disabled", "operator"), False, ("disabled", "operator"), ("disabled", "operator")),
]


@pytest.mark.parametrize(("before", "has_own", "served", "unserved"), APPLIED)
def test_the_default_secret_of_a_start_decides_which_targets_are_active(
    customer: Customer,
    before: tuple[str, str | None],
    has_own: bool,
    served: tuple[str, str | None],
    unserved: tuple[str, str | None],
) -> None:
    target = make_target(customer)
    if has_own:
        targets.set_secret(target.id, "its own", VAULT, NOW)
    for accounts, after in (({customer.account_id}, served), (set(), unserved), (None, served)):
        execute("UPDATE targets SET status = ?, status_reason = ?", before)
        execute("DELETE FROM audit_entries")
        default = DefaultSecret("secret", "fp:default", None if accounts is None else frozenset(accounts))
        for _ in range(2):
            targets.apply_default_secret(default, LATER, "operator")
        assert status_of(target.id) == after
        written = rows("SELECT actor, action, reason FROM audit_entries")
        assert written == ([] if after == before else [("operator", f"target_{after[0]}", after[1])])


def test_a_target_that_no_secret_signs_for_is_not_resumed(customer: Customer) -> None:
    target, theirs = make_target(customer), make_target(make_customer())
    default = DefaultSecret("secret", "fp:default", frozenset({customer.account_id}))
    for each in (target, theirs):
        targets.change_status(each.id, "pause", NOW, "operator", default=default)
    targets.change_status(target.id, "resume", NOW, "operator", default=default)
    with pytest.raises(Conflict, match="no secret to sign with"):
        targets.change_status(theirs.id, "resume", NOW, "operator", default=default)
    assert [status_of(each.id)[0] for each in (target, theirs)] == ["active", "paused"]


def test_a_targets_secret_is_encrypted_for_this_target_only(customer: Customer) -> None:
    target = make_target(customer)
    targets.set_secret(target.id, "open sesame", VAULT, NOW)
    [(sealed,)] = rows("SELECT secret_sealed FROM targets")
    assert b"open sesame" not in bytes(sealed)
    assert VAULT.open(bytes(sealed), targets.secret_context(target.id)) == "open sesame"
    make_approved(customer, target.id)
    [claim] = claim_due(1, NOW, 6, "worker")
    assert claim.secret_sealed == bytes(sealed)


@pytest.mark.parametrize("status", ["paused", "blocked", "disabled"])
def test_a_new_secret_does_not_resume_a_target_that_was_turned_off(customer: Customer, status: str) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ?, status_reason = 'operator' WHERE id = ?", (status, target.id))
    targets.set_secret(target.id, "s", VAULT, NOW)
    assert status_of(target.id) == (status, "operator")


@pytest.mark.parametrize(
    ("verb", "allowed", "leads_to"),
    [
        ("pause", {"active"}, "paused"),
        ("resume", {"paused", "blocked", "disabled"}, "active"),
        ("disable", {"active", "inactive", "paused", "blocked"}, "disabled"),
    ],
)
@pytest.mark.parametrize("status", ["active", "inactive", "paused", "blocked", "disabled"])
def test_an_action_of_an_operator_is_allowed_only_in_certain_states(
    customer: Customer, status: str, verb: str, allowed: set[str], leads_to: str
) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target.id))
    reported = rows("SELECT COUNT(*) FROM audit_entries")
    if status == leads_to:
        # A repeated request succeeds; the status and its reason stay the same.
        targets.change_status(target.id, verb, NOW, "operator", "again")
        assert status_of(target.id) == (status, None)
        assert rows("SELECT COUNT(*) FROM audit_entries") == reported
        return
    if status not in allowed:
        with pytest.raises(Conflict, match=f"is {status}; {verb} needs"):
            targets.change_status(target.id, verb, NOW, "operator")
        assert status_of(target.id)[0] == status
        assert rows("SELECT COUNT(*) FROM audit_entries") == reported
        return
    targets.change_status(target.id, verb, NOW, "operator", "restored")
    assert status_of(target.id) == (leads_to, None if leads_to == "active" else "restored")
    [entry] = rows("SELECT actor, action, reason FROM audit_entries ORDER BY id DESC LIMIT 1")
    assert entry == ("operator", f"{verb}_target", "restored")


def test_an_unknown_target_is_not_found(database: str) -> None:
    uses: list[Any] = [
        lambda: targets.get("tgt_x", None),
        lambda: targets.change_status("tgt_x", "pause", NOW, "operator"),
        lambda: targets.set_secret("tgt_x", "s", VAULT, NOW),
    ]
    for use in uses:
        with pytest.raises(TargetNotFound):
            use()


@pytest.mark.parametrize("verb", ["pause", "resume", "disable"])
def test_another_accounts_target_is_not_found(customer: Customer, verb: str) -> None:
    target, other = make_target(customer), make_customer().account_id
    uses: list[Callable[[], object]] = [
        lambda: targets.get(target.id, None, other),
        lambda: targets.change_status(target.id, verb, NOW, "user:1", account_id=other),
        lambda: targets.record_validation(target.id, other, UNSAFE, NOW, "user:1"),
    ]
    for use in uses:
        with pytest.raises(TargetNotFound):
            use()
    assert (
        targets.get(target.id, None, customer.account_id)
        == targets.get(target.id, None)
        == replace(target, secret_fingerprint=None)
    )


def test_two_simultaneous_pauses_both_succeed(customer: Customer) -> None:
    target = make_target(customer)

    def pause(number: int) -> None:
        with connection():
            targets.change_status(target.id, "pause", NOW, f"user:{number}", "client")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pause, range(8)))
    assert status_of(target.id) == ("paused", "client")
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'pause_target'") == [(1,)]


def test_an_accounts_targets_are_listed_in_pages_the_newest_first(customer: Customer) -> None:
    made = sorted((make_target(customer).id for _ in range(5)), reverse=True)
    make_target(make_customer())
    targets.change_status(made[1], "pause", NOW, "operator")

    def listed(**part: Any) -> list[str]:
        return [target.id for target in targets.list_page(customer.account_id, None, now=NOW, **part)]

    assert listed(limit=10) == made
    assert listed(limit=2) == made[:2]
    assert listed(limit=2, before=made[1]) == made[2:4]
    assert listed(limit=10, before=made[4]) == []
    assert listed(limit=10, status=TargetStatus.PAUSED) == [made[1]]


# Columns: status of the target; whether an address that is refused blocks it.
VALIDATED = [("active", True), ("paused", True), ("inactive", False), ("blocked", False), ("disabled", False)]


@pytest.mark.parametrize(("status", "is_blocked"), VALIDATED)
def test_an_unsafe_address_blocks_only_active_and_paused_targets(customer: Customer, status: str, is_blocked: bool) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ?, status_reason = 'before' WHERE id = ?", (status, target.id))
    targets.record_validation(target.id, customer.account_id, UNSAFE, LATER, "user:1")
    after = targets.get(target.id, None)
    assert (after.validation_status, after.validation_reason, after.validated_at) == ("failed", "address_private", LATER)
    assert status_of(target.id) == (("blocked", "address_private") if is_blocked else (status, "before"))
    reported = rows("SELECT actor, action, reason FROM audit_entries ORDER BY id DESC LIMIT 2")
    blocked, validated = [("user:1", f"{what}", "address_private") for what in ("target_blocked", "validate_target")]
    assert (reported == [blocked, validated]) if is_blocked else (reported[0] == validated)


@pytest.mark.parametrize("connected", ["unknown", "connected", "failing"])
def test_a_network_failure_is_shown_and_blocks_nothing(customer: Customer, connected: str) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET connected_status = ?", (connected,))
    targets.record_validation(target.id, customer.account_id, Validation("dns_timeout"), LATER, "user:1")
    after = targets.get(target.id, None)
    assert (after.validation_status, after.validation_reason, after.connected_status) == ("failed", "dns_timeout", "failing")
    assert status_of(target.id) == ("active", None)


def test_a_passed_validation_does_not_resume_a_blocked_target(customer: Customer) -> None:
    target = make_target(customer)
    targets.record_validation(target.id, customer.account_id, UNSAFE, NOW, "user:1")
    targets.record_validation(target.id, customer.account_id, Validation(), LATER, "user:1")
    after = targets.get(target.id, None)
    assert (after.validation_status, after.validation_reason, after.validated_at) == ("passed", None, LATER)
    assert status_of(target.id) == ("blocked", "address_private")


def test_the_newest_targets_come_first_with_the_fingerprint_that_signs(customer: Customer) -> None:
    first, second = make_target(customer, name="first"), make_target(customer, name="second")
    execute("UPDATE targets SET id = 'tgt_0' WHERE id = ?", (first.id,))
    own = targets.set_secret(second.id, "s", VAULT, NOW)
    reported = [
        (target.name, target.secret_fingerprint) for target in targets.list_all(DefaultSecret("secret", "fp:default"))
    ]
    assert reported == [("second", own), ("first", "fp:default")]


# ---------------------------------------------------------------- throttle state


def hold(target_id: str, reason: str, seconds: float = 30) -> None:
    execute("UPDATE targets SET held_until = ?, held_reason = ? WHERE id = ?", (to_ms(in_s(seconds)), reason, target_id))


# Columns: status and reason; reason of the hold, if any; status and reason shown before the hold ends.
SHOWN = [
    (("active", None), None, ("active", None)),
    (("active", None), RATE_LIMITED, ("paused", RATE_LIMITED)),
    (("active", None), RECEIVER_UNAVAILABLE, ("paused", RECEIVER_UNAVAILABLE)),
    (("active", None), BREAKER_OPEN, ("active", BREAKER_OPEN)),  # the receiver has not asked to wait
    (("paused", "client"), RATE_LIMITED, ("paused", "client")),  # an operator's pause is shown instead
    (("disabled", "receiver_gone"), BREAKER_OPEN, ("disabled", "receiver_gone")),
]


@pytest.mark.parametrize(("status", "held_reason", "shown"), SHOWN)
def test_a_target_shows_its_hold_until_it_ends(
    customer: Customer, status: tuple[str, str | None], held_reason: str | None, shown: tuple[str, str | None]
) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ?, status_reason = ?", status)
    if held_reason:
        hold(target.id, held_reason)
    stored = targets.get(target.id, None)
    for now, expected in ((in_s(29.999), shown), (in_s(30), status)):
        assert stored.shown_status(now) == expected
        # A filter by status finds exactly the targets that show this status.
        listed = {each: targets.list_page(customer.account_id, None, 10, now, status=each) for each in TargetStatus}
        assert {each.value: len(found) for each, found in listed.items() if found} == {expected[0]: 1}


def test_the_stored_delivery_state_of_a_target_is_read(customer: Customer) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET concurrency = 7.9, ramp = 16, failures_in_row = 3, max_per_minute = 90")
    hold(target.id, RATE_LIMITED)
    stored = targets.get(target.id, None)
    assert (stored.concurrency, stored.failures_in_row, stored.max_per_minute) == (7, 3, 90)
    assert (stored.held_until, stored.held_reason) == (in_s(30), RATE_LIMITED)
    # The lower of concurrency and ramp applies.
    execute("UPDATE targets SET ramp = 2")
    assert targets.get(target.id, None).concurrency == 2


@pytest.mark.parametrize("status", ["active", "paused", "blocked", "disabled"])
@pytest.mark.parametrize("reason", [RATE_LIMITED, BREAKER_OPEN])
def test_a_resumed_target_is_tried_at_once(customer: Customer, status: str, reason: str) -> None:
    target, other = make_target(customer), make_target(customer)
    execute("UPDATE targets SET failures_in_row = 9, failing_since = ?, ramp = 5, concurrency = 3", (to_ms(NOW),))
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target.id))
    hold(target.id, reason)
    hold(other.id, reason)
    targets.change_status(target.id, "resume", NOW, "operator")
    resumed, left = throttle_state_sql.read([target.id])[target.id], throttle_state_sql.read([other.id])[other.id]
    assert resumed.takes_attempts(NOW)
    assert (resumed.failures_in_row, resumed.failing_since, resumed.ramp, resumed.concurrency) == (0, None, 1, 3)
    assert (left.failures_in_row, left.held_reason) == (9, reason)


def test_a_resumption_that_is_refused_changes_nothing(customer: Customer) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = 'inactive', failures_in_row = 9")
    hold(target.id, RATE_LIMITED)
    before = throttle_state_sql.read([target.id])
    with pytest.raises(Conflict):
        targets.change_status(target.id, "resume", NOW, "operator")
    assert throttle_state_sql.read([target.id]) == before


@pytest.mark.parametrize("verb", ["pause", "disable"])
def test_turning_a_target_off_keeps_its_delivery_state(customer: Customer, verb: str) -> None:
    target = make_target(customer)
    hold(target.id, RATE_LIMITED)
    targets.change_status(target.id, verb, NOW, "operator")
    assert throttle_state_sql.read([target.id])[target.id].held_until == in_s(30)


def test_a_rate_limit_is_set_at_creation_and_changed_or_removed_later(customer: Customer) -> None:
    request = TargetRequest("generic_webhook", "https://tracker.example.com/hook", None, "Tracker", 60)
    target = targets.create(request, customer.account_id, "self-hosted", DEFAULT_SECRET, NOW, "user:1")
    assert target.max_per_minute == 60
    execute("UPDATE targets SET paced_until = 1")
    limit_target(target.id, 90, LATER)
    turn = throttle_state_sql.read([target.id])[target.id]
    # The used allowance was counted under the former limit.
    assert (turn.max_per_minute, turn.paced_until) == (90, None)
    limit_target(target.id, None, LATER)
    assert targets.get(target.id, None).max_per_minute is None
    reported = rows("SELECT actor, reason FROM audit_entries WHERE action = 'limit_target' ORDER BY id")
    assert reported == [("operator", "90/min"), ("operator", None)]
    with pytest.raises(TargetNotFound):
        limit_target("tgt_x", 60)


@pytest.mark.parametrize(
    "change",
    [
        "status = 'off'",
        "connected_status = 'maybe'",
        "validation_status = 'unsure'",
        "account_id = 999",
        "max_per_minute = 0",
    ],
)
def test_a_contradictory_target_row_is_rejected(customer: Customer, change: str) -> None:
    make_target(customer)
    with pytest.raises(IntegrityError):
        execute(f"UPDATE targets SET {change}")  # noqa: S608 - our own names
