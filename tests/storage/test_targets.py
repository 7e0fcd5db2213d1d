"""Targets are made, given secrets, turned by operators, and marked by what deliveries meet."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from peewee import IntegrityError

from schemas.delivery import Attempted, TargetEffect
from schemas.errors import Conflict, TargetNotFound
from schemas.targets import TargetRequest, TargetStatus
from storage import exports, targets
from storage.database import connection, execute, is_sqlite, rows, transaction
from storage.vault import Vault
from tests.factories import NOW, Customer, attempted, make_approved, make_customer, make_target

VAULT = Vault([b"k" * 32])
LATER = NOW + timedelta(minutes=1)


def status_of(target_id: str) -> tuple[str, str | None]:
    target = targets.get(target_id, None)
    return target.status.value, target.status_reason


def met(customer: Customer, target_id: str, *effects: TargetEffect) -> list[Attempted]:
    """Return attempts of as many claims of the target, each with its effect."""
    for _ in effects:
        make_approved(customer, target_id)
    claims = exports.claim_due(len(effects), NOW, 6, "worker")
    attempts = [attempted(claim) for claim in claims]
    return [replace(one, verdict=replace(one.verdict, effect=effect)) for one, effect in zip(attempts, effects, strict=True)]


def record(attempts: list[Attempted]) -> None:
    with transaction():
        targets.record_effects(attempts, {attempt.claim.export_id for attempt in attempts}, LATER, "worker")


def test_a_target_that_the_default_secret_signs_for_is_active(customer: Customer) -> None:
    target = make_target(customer)
    assert (target.status, target.status_reason) == (TargetStatus.ACTIVE, None)
    assert (target.deployment_mode, target.connected_status) == ("self-hosted", "unknown")
    assert (target.validation_status, target.validated_at) == ("passed", NOW)
    assert targets.get(target.id, "fp:000000000000") == target
    assert rows("SELECT actor, action FROM audit_entries WHERE subject_id = ?", (target.id,)) == [
        ("user:test", "create_target")
    ]


def test_a_target_without_a_secret_waits_for_its_first_one(customer: Customer) -> None:
    request = TargetRequest("generic_webhook", "https://tracker.example.com/hook", "cloud", "Tracker")
    target = targets.create(request, customer.account_id, "self-hosted", None, NOW, "user:1")
    assert (target.status, target.status_reason, target.secret_fingerprint) == (TargetStatus.INACTIVE, "no_secret", None)
    assert target.deployment_mode == "cloud"
    fingerprint = targets.set_secret(target.id, "shared with the receiver", VAULT, LATER)
    again = targets.get(target.id, None)
    assert (again.status, again.status_reason) == (TargetStatus.ACTIVE, None)
    assert again.secret_fingerprint == fingerprint == VAULT.fingerprint("shared with the receiver")


def test_a_targets_secret_is_sealed_for_it_alone(customer: Customer) -> None:
    target = make_target(customer)
    targets.set_secret(target.id, "open sesame", VAULT, NOW)
    [(sealed,)] = rows("SELECT secret_sealed FROM targets")
    assert b"open sesame" not in bytes(sealed)
    assert VAULT.open(bytes(sealed), targets.secret_context(target.id)) == "open sesame"
    make_approved(customer, target.id)
    [claim] = exports.claim_due(1, NOW, 6, "worker")
    assert claim.secret_sealed == bytes(sealed)


@pytest.mark.parametrize("status", ["paused", "blocked", "disabled"])
def test_a_new_secret_turns_on_nothing_that_was_turned_off(customer: Customer, status: str) -> None:
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
def test_an_operators_verb_starts_from_certain_states(
    customer: Customer, status: str, verb: str, allowed: set[str], leads_to: str
) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target.id))
    told = rows("SELECT COUNT(*) FROM audit_entries")
    if status == leads_to:
        # Whoever repeats what got no answer is answered; it stays whose it was.
        targets.turn(target.id, verb, NOW, "operator", "again")
        assert status_of(target.id) == (status, None)
        assert rows("SELECT COUNT(*) FROM audit_entries") == told
        return
    if status not in allowed:
        with pytest.raises(Conflict, match=f"is {status}; {verb} needs"):
            targets.turn(target.id, verb, NOW, "operator")
        assert status_of(target.id)[0] == status
        assert rows("SELECT COUNT(*) FROM audit_entries") == told
        return
    targets.turn(target.id, verb, NOW, "operator", "restored")
    assert status_of(target.id) == (leads_to, None if leads_to == "active" else "restored")
    [entry] = rows("SELECT actor, action, reason FROM audit_entries ORDER BY id DESC LIMIT 1")
    assert entry == ("operator", f"{verb}_target", "restored")


def test_an_unknown_target_is_not_found(database: str) -> None:
    uses: list[Any] = [
        lambda: targets.get("tgt_x", None),
        lambda: targets.turn("tgt_x", "pause", NOW, "operator"),
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
        lambda: targets.turn(target.id, verb, NOW, "user:1", account_id=other),
        lambda: targets.record_validation(target.id, other, "address_private", NOW, "user:1"),
    ]
    for use in uses:
        with pytest.raises(TargetNotFound):
            use()
    assert (
        targets.get(target.id, None, customer.account_id)
        == targets.get(target.id, None)
        == replace(target, secret_fingerprint=None)
    )


def test_two_who_pause_at_once_are_both_answered(customer: Customer) -> None:
    target = make_target(customer)

    def pause(number: int) -> None:
        with connection():
            targets.turn(target.id, "pause", NOW, f"user:{number}", "client")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pause, range(8)))
    assert status_of(target.id) == ("paused", "client")
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'pause_target'") == [(1,)]


def test_an_accounts_targets_are_listed_in_pages_the_newest_first(customer: Customer) -> None:
    made = sorted((make_target(customer).id for _ in range(5)), reverse=True)
    make_target(make_customer())
    targets.turn(made[1], "pause", NOW, "operator")

    def listed(**part: Any) -> list[str]:
        return [target.id for target in targets.newest(customer.account_id, None, **part)]

    assert listed(limit=10) == made
    assert listed(limit=2) == made[:2]
    assert listed(limit=2, before=made[1]) == made[2:4]
    assert listed(limit=10, before=made[4]) == []
    assert listed(limit=10, status=TargetStatus.PAUSED) == [made[1]]


# a target's status, whether a failed validation blocks it
VALIDATED = [("active", True), ("paused", True), ("inactive", False), ("blocked", False), ("disabled", False)]


@pytest.mark.parametrize(("status", "is_blocked"), VALIDATED)
def test_a_failed_validation_blocks_what_would_be_delivered_to(customer: Customer, status: str, is_blocked: bool) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ?, status_reason = 'before' WHERE id = ?", (status, target.id))
    targets.record_validation(target.id, customer.account_id, "address_private", LATER, "user:1")
    after = targets.get(target.id, None)
    assert (after.validation_status, after.validation_reason, after.validated_at) == ("failed", "address_private", LATER)
    assert status_of(target.id) == (("blocked", "address_private") if is_blocked else (status, "before"))
    told = rows("SELECT actor, action, reason FROM audit_entries ORDER BY id DESC LIMIT 2")
    blocked, validated = [("user:1", f"{what}", "address_private") for what in ("target_blocked", "validate_target")]
    assert (told == [blocked, validated]) if is_blocked else (told[0] == validated)


def test_a_passed_validation_turns_nothing_on(customer: Customer) -> None:
    target = make_target(customer)
    targets.record_validation(target.id, customer.account_id, "dns_timeout", NOW, "user:1")
    targets.record_validation(target.id, customer.account_id, None, LATER, "user:1")
    after = targets.get(target.id, None)
    assert (after.validation_status, after.validation_reason, after.validated_at) == ("passed", None, LATER)
    assert status_of(target.id) == ("blocked", "dns_timeout")


def test_the_newest_targets_come_first_with_the_fingerprint_that_signs(customer: Customer) -> None:
    first, second = make_target(customer, name="first"), make_target(customer, name="second")
    execute("UPDATE targets SET id = 'tgt_0' WHERE id = ?", (first.id,))
    own = targets.set_secret(second.id, "s", VAULT, NOW)
    told = [(target.name, target.secret_fingerprint) for target in targets.all_targets("fp:default")]
    assert told == [("second", own), ("first", "fp:default")]


def test_what_deliveries_met_marks_the_target(customer: Customer) -> None:
    target = make_target(customer)
    record(met(customer, target.id, TargetEffect(connected="connected"), TargetEffect(connected="failing")))
    after = targets.get(target.id, None)
    assert (after.connected_status, after.last_success_at) == ("failing", LATER)
    assert after.status is TargetStatus.ACTIVE


def test_a_refused_address_blocks_the_target_with_its_reason(customer: Customer) -> None:
    target = make_target(customer)
    record(met(customer, target.id, TargetEffect("failing", TargetStatus.BLOCKED, "address_private")))
    assert status_of(target.id) == ("blocked", "address_private")
    [entry] = rows("SELECT actor, action, reason FROM audit_entries ORDER BY id DESC LIMIT 1")
    assert entry == ("worker", "target_blocked", "address_private")


@pytest.mark.parametrize("status", ["inactive", "blocked", "disabled"])
def test_a_delivery_changes_nothing_about_a_target_that_is_off(customer: Customer, status: str) -> None:
    target = make_target(customer)
    attempts = met(customer, target.id, TargetEffect(status=TargetStatus.DISABLED, reason="receiver_gone"))
    execute("UPDATE targets SET status = ?, status_reason = 'operator' WHERE id = ?", (status, target.id))
    record(attempts)
    assert status_of(target.id) == (status, "operator")


def test_an_attempt_that_moved_nothing_says_nothing_about_its_target(customer: Customer) -> None:
    target = make_target(customer)
    attempts = met(customer, target.id, TargetEffect("failing", TargetStatus.BLOCKED, "address_private"))
    targets.record_effects(attempts, set(), LATER, "worker")
    assert targets.get(target.id, None) == replace(target, secret_fingerprint=None)


class VaultWithAWorkerAtWork(Vault):
    """Seals while a worker writes, where the database lets it: on SQLite it has to wait for the operator."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__([b"k" * 32])
        self._work = work

    def seal(self, secret: str, context: str) -> bytes:
        if not is_sqlite():
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self._work).result(timeout=10)
        return super().seal(secret, context)


def test_a_new_secret_does_not_undo_what_a_worker_found_out_meanwhile(customer: Customer) -> None:
    target = make_target(customer)
    attempts = met(customer, target.id, TargetEffect("failing", TargetStatus.BLOCKED, "address_private"))

    def block() -> None:
        with connection():
            record(attempts)

    targets.set_secret(target.id, "s", VaultWithAWorkerAtWork(block), LATER)
    if is_sqlite():
        block()
    assert status_of(target.id) == ("blocked", "address_private")
    assert targets.get(target.id, None).connected_status == "failing"
    assert targets.get(target.id, None).secret_fingerprint == VAULT.fingerprint("s")


@pytest.mark.parametrize(
    "change", ["status = 'off'", "connected_status = 'maybe'", "validation_status = 'unsure'", "account_id = 999"]
)
def test_a_target_row_that_makes_no_sense_is_refused(customer: Customer, change: str) -> None:
    make_target(customer)
    with pytest.raises(IntegrityError):
        execute(f"UPDATE targets SET {change}")  # noqa: S608
