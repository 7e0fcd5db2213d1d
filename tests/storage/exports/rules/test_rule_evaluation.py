"""Approval rules decide about new exports, in the transaction that prepares them, and wait for targets."""

import itertools
import json
import threading
from datetime import timedelta
from typing import Any

import pytest

from schemas.base.errors import ValidationFailed
from schemas.base.principal import Ability, Role, TokenKind
from schemas.exports.decisions import ApprovedBy, DismissalReason
from schemas.exports.record import Approval, Export, Preparation
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import Source, Ticket, digest
from schemas.targets.target import Target
from schemas.triage.approval_rules import RuleAction, RuleActionType, RuleChange, RuleMatch, StoppedReason
from schemas.url_policy.policy import TargetPolicy
from storage.accounts import accounts, audit_log, identities, tokens, users
from storage.accounts.account_limits import AccountLimits, Limited
from storage.accounts.identities import Identity
from storage.db.engine import connection, execute, rows, transaction
from storage.exports import queries, transitions
from storage.exports.rows import Draft
from storage.exports.rules import approval_rules, rule_evaluation
from storage.exports.rules.rule_evaluation import ApprovalRules
from storage.targets import targets
from storage.triage import decisions
from tests.support.factories import (
    DEFAULT_SECRET,
    LOOPBACK_POLICY,
    NOW,
    Customer,
    in_s,
    make_colleague,
    make_customer,
    make_project,
    make_rule,
    make_target,
)

POLICY = TargetPolicy()
NO_ROOM = AccountLimits({Limited.WAITING_EXPORTS: 0})
DISMISS = RuleAction(RuleActionType.DISMISS, reason=DismissalReason.TEST)


def approving(target: Target) -> RuleAction:
    return RuleAction(RuleActionType.APPROVE, target_id=target.id)


def labelling(*labels: str) -> RuleAction:
    return RuleAction(RuleActionType.LABEL, labels=labels)


def draft(customer: Customer, number: int = 0, **changes: Any) -> Draft:
    """Return a draft of a ticket of high severity about a page of the customer's project."""
    ticket = Ticket(
        title=f"Finding {number}",
        description="It is wrong.",
        severity=changes.pop("severity", "high"),
        page_url=changes.pop("page_url", f"https://shop.example/checkout/{number}"),
        labels=changes.pop("labels", ("website-risk",)),
        evidence=changes.pop("evidence", {}),
    )
    source = Source(changes.pop("source", "manual"), f"note-{number}")
    return Draft(
        customer.account_id, customer.project_id, source, ticket, rule=changes.pop("rule", "csp-missing"), **changes
    )


def prepare(drafts: list[Draft], rules: ApprovalRules | None = None) -> list[Export]:
    """Prepare exports under the rules; return them as stored."""
    with transaction():
        ids = transitions.prepare(drafts, in_s(10), "scanner", rules=rules or ApprovalRules(POLICY))
    return [queries.get(each) for each in ids]


def pause(target: Target) -> None:
    targets.change_status(target.id, "pause", in_s(20), "user:test")


def resume(target: Target) -> None:
    targets.change_status(target.id, "resume", in_s(30), "user:test", default=DEFAULT_SECRET)


def actions(export: Export) -> list[tuple[str, str, str | None]]:
    """Return actor, action and reason of an export's audit entries, the oldest first."""
    return [(each.actor, each.action, each.reason) for each in reversed(audit_log.list_for_subject(export.id, 20))]


def test_without_a_rule_exports_stay_prepared(customer: Customer, target: Target) -> None:
    [export] = prepare([draft(customer)])
    assert (export.status, export.approved_by, target.status) == (ExportStatus.PREPARED, None, "active")


def test_a_rule_approves_for_its_target_with_the_frozen_bytes(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target), RuleMatch(severity_at_least="high", page_path="/checkout/*"))
    high, low, elsewhere = prepare(
        [draft(customer, 1), draft(customer, 2, severity="low"), draft(customer, 3, page_url="https://shop.example/about")]
    )
    assert (high.status, high.target_id, high.due_at) == (ExportStatus.APPROVED, target.id, in_s(10))
    assert high.approved_by == ApprovedBy("rule", rule.id, "A rule")
    assert actions(high) == [("scanner", "prepare", None), (f"rule:{rule.id}", "approve", f"user:{customer.user_id}")]
    assert {low.status, elsewhere.status} == {ExportStatus.PREPARED}
    body = queries.get_frozen_body(high.id, customer.account_id).body
    assert body is not None
    assert json.loads(body)["ticket"] == high.ticket


def test_a_person_and_a_rule_freeze_the_same_bytes(customer: Customer, target: Target) -> None:
    by_hand = prepare([draft(customer, 1, evidence={"text": 'ü "\\ \u2028'})])[0]
    transitions.approve(by_hand.id, customer.account_id, Approval(target.id, None), in_s(10), "user:1", POLICY)
    make_rule(customer, approving(target))
    by_rule = prepare([draft(customer, 1, evidence={"text": 'ü "\\ \u2028'})])[0]
    first, second = (queries.get_frozen_body(each.id, customer.account_id).body for each in (by_hand, by_rule))
    assert first is not None
    assert second == first.replace(by_hand.id.encode(), by_rule.id.encode())


def test_the_oldest_matching_rule_decides_whatever_its_action(customer: Customer, target: Target) -> None:
    oldest = make_rule(customer, labelling("team:web"), RuleMatch(rule="csp-*"), name="oldest")
    make_rule(customer, approving(target), now=in_s(1), name="younger")
    labelled, approved = prepare([draft(customer, 1), draft(customer, 2, rule="hsts")])
    assert (labelled.status, labelled.ticket["labels"]) == (ExportStatus.PREPARED, ["website-risk", "team:web"])
    assert approved.status is ExportStatus.APPROVED
    approval_rules.change(oldest.id, None, RuleChange(enabled=False), None, in_s(5), "user:test")
    assert prepare([draft(customer, 3)])[0].status is ExportStatus.APPROVED


def test_labels_of_a_rule_change_the_digest_and_do_not_count_as_an_edit(customer: Customer) -> None:
    make_rule(customer, labelling("website-risk", "a", "b"))
    [export] = prepare([draft(customer)])
    assert export.ticket["labels"] == ["website-risk", "a", "b"]
    assert (export.ticket_digest, export.original_ticket, export.version) == (digest(export.ticket), None, 2)
    full = tuple(f"label-{number}" for number in range(49))
    [export] = prepare([draft(customer, 1, labels=full)])
    assert export.ticket["labels"] == [*full, "website-risk"]


def test_a_rule_dismisses_with_its_reason(customer: Customer) -> None:
    rule = make_rule(customer, DISMISS, RuleMatch(page_path="/staging/*"))
    [export] = prepare([draft(customer, page_url="https://shop.example/staging/1")])
    assert (export.status, export.finished_at) == (ExportStatus.DISMISSED, in_s(10))
    assert export.dismissal is not None
    assert export.dismissal.reason is DismissalReason.TEST
    assert actions(export)[-1] == (f"rule:{rule.id}", "dismiss", f"user:{customer.user_id}")


@pytest.mark.parametrize(("reason", "is_open"), [("false_positive", True), ("wont_fix", True), ("test", False)])
def test_a_group_dismissed_by_a_rule_stays_open_for_two_of_the_reasons(
    customer: Customer, reason: str, is_open: bool
) -> None:
    make_rule(customer, RuleAction(RuleActionType.DISMISS, reason=DismissalReason(reason)))
    [export] = prepare([draft(customer, open_group="csp-missing", findings=2)])
    assert rows("SELECT open_group FROM exports WHERE id = ?", (export.id,)) == [("csp-missing" if is_open else None,)]


@pytest.mark.parametrize(
    ("older", "own", "is_open"),
    [
        (RuleMatch(severity_at_least="critical"), RuleMatch(rule="csp-*"), False),
        (RuleMatch(page_path="/shop/*"), RuleMatch(rule="csp-*"), False),
        (RuleMatch(rule="hsts"), RuleMatch(page_path="/staging/*"), False),
        (RuleMatch(rule="hsts"), RuleMatch(rule="csp-*"), True),
    ],
)
def test_findings_that_rules_might_treat_differently_join_no_group_that_a_rule_dismissed(
    customer: Customer, target: Target, older: RuleMatch, own: RuleMatch, is_open: bool
) -> None:
    make_rule(customer, approving(target), older)
    make_rule(customer, RuleAction(RuleActionType.DISMISS, reason=DismissalReason.WONT_FIX), own, now=in_s(1))
    make_rule(customer, approving(target), RuleMatch(page_path="/later/*"), now=in_s(2))
    [export] = prepare([draft(customer, open_group="csp-missing", findings=1, page_url="https://shop.example/staging/1")])
    assert export.status is ExportStatus.DISMISSED
    assert rows("SELECT open_group FROM exports") == [("csp-missing" if is_open else None,)]


def test_rules_of_another_account_decide_nothing(customer: Customer) -> None:
    other = make_customer()
    make_rule(other, approving(make_target(other)))
    assert prepare([draft(customer)])[0].status is ExportStatus.PREPARED


def test_exports_prepared_before_the_rule_stay_prepared(customer: Customer, target: Target) -> None:
    [before] = prepare([draft(customer)])
    make_rule(customer, approving(target))
    prepare([draft(customer, 1)])
    ApprovalRules(POLICY).resume(in_s(60))
    assert queries.get(before.id).status is ExportStatus.PREPARED


def test_an_unsafe_preview_is_never_approved_by_a_rule(customer: Customer, target: Target) -> None:
    make_rule(customer, approving(target))
    [export] = prepare([draft(customer, evidence={"password": "hunter2-correct-horse"})])
    assert export.preview_problems
    assert export.status is ExportStatus.PREPARED
    assert not ApprovalRules(POLICY).resume(in_s(60))


def test_an_export_waits_for_a_paused_target_and_is_approved_when_it_is_resumed(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target))
    pause(target)
    [export] = prepare([draft(customer)])
    rules = ApprovalRules(POLICY)
    assert (export.status, export.approved_by, export.version) == (ExportStatus.PREPARED, None, 1)
    assert actions(export)[-1] == (f"rule:{rule.id}", "wait_for_target", f"user:{customer.user_id}")
    assert not rules.resume(in_s(25))
    resume(target)
    assert rules.resume(in_s(40))
    assert not rules.resume(in_s(41))
    approved = queries.get(export.id)
    assert (approved.status, approved.due_at) == (ExportStatus.APPROVED, in_s(40))
    assert actions(export)[-1] == (f"rule:{rule.id}", "approve", f"user:{customer.user_id}")


def test_an_export_fixed_while_it_waits_is_approved_only_after_it_is_reopened(customer: Customer, target: Target) -> None:
    make_rule(customer, approving(target))
    pause(target)
    [export] = prepare([draft(customer, findings=2)])
    resume(target)
    rules = ApprovalRules(POLICY)
    for fixed, status in ((2, ExportStatus.PREPARED), (1, ExportStatus.APPROVED)):
        execute("UPDATE exports SET findings_fixed = ?", (fixed,))
        assert rules.resume(in_s(40)) is (fixed < 2)
        assert queries.get(export.id).status is status


def test_more_exports_than_a_batch_wait_and_are_each_approved_once(customer: Customer, target: Target) -> None:
    make_rule(customer, approving(target))
    pause(target)
    count = rule_evaluation.RESUME_BATCH + 50
    prepare([draft(customer, number) for number in range(count)])
    resume(target)
    rules = ApprovalRules(POLICY)
    assert [rules.resume(in_s(40)) for _ in range(3)] == [True, True, False]
    assert rows("SELECT COUNT(*), MIN(version), MAX(version) FROM exports WHERE status = 'approved'") == [(count, 2, 2)]
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'approve'") == [(count,)]


def test_a_person_can_decide_about_waiting_exports(customer: Customer, target: Target) -> None:
    make_rule(customer, approving(target))
    pause(target)
    approved, dismissed, restored, snoozed = prepare([draft(customer, number) for number in range(4)])
    other = make_target(customer)
    transitions.approve(approved.id, customer.account_id, Approval(other.id, None), in_s(21), "user:1", POLICY)
    for export in (dismissed, restored):
        decisions.dismiss(export.id, customer.account_id, in_s(21), "user:1")
    decisions.restore(restored.id, customer.account_id, in_s(22), "user:1")
    execute("UPDATE exports SET snoozed_at = 1 WHERE id = ?", (snoozed.id,))
    resume(target)
    while ApprovalRules(POLICY).resume(in_s(40)):
        pass
    found = [queries.get(each.id) for each in (approved, dismissed, restored, snoozed)]
    assert [each.status for each in found] == ["approved", "dismissed", "prepared", "prepared"]
    assert found[0].target_id == other.id
    assert found[0].approved_by is not None
    assert found[0].approved_by.kind == "user"


def test_a_rule_that_was_turned_off_or_narrowed_approves_no_waiting_export(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target))
    pause(target)
    csp, hsts = prepare([draft(customer, 1), draft(customer, 2, rule="hsts")])
    approval_rules.change(rule.id, None, RuleChange(match=RuleMatch(rule="csp-*")), None, in_s(21), "user:1")
    resume(target)
    assert ApprovalRules(POLICY).resume(in_s(40))
    assert (queries.get(csp.id).status, queries.get(hsts.id).status) == (ExportStatus.APPROVED, ExportStatus.PREPARED)
    pause(target)
    [late] = prepare([draft(customer, 3)])
    approval_rules.change(rule.id, None, RuleChange(enabled=False), None, in_s(50), "user:1")
    assert ApprovalRules(POLICY).resume(in_s(51))
    approval_rules.change(rule.id, None, RuleChange(enabled=True), None, in_s(52), "user:1")
    resume(target)
    assert not ApprovalRules(POLICY).resume(in_s(53))
    assert queries.get(late.id).status is ExportStatus.PREPARED


def test_rules_decide_again_about_an_extended_export(customer: Customer, target: Target) -> None:
    make_rule(customer, approving(target), RuleMatch(severity_at_least="critical"))
    [export] = prepare([draft(customer)])
    execute("UPDATE exports SET severity_rank = 4, version = version + 1 WHERE id = ?", (export.id,))
    with transaction():
        ApprovalRules(POLICY).apply(customer.account_id, [export.id], in_s(11))
    assert queries.get(export.id).status is ExportStatus.APPROVED


def test_a_group_matches_a_path_with_all_its_places(
    customer: Customer, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = make_rule(customer, approving(target), RuleMatch(page_path="/checkout/*"))
    execute(
        "INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) VALUES (1, ?, 'completed', 0, 0)",
        (customer.project_id,),
    )
    statement = (
        "INSERT INTO findings (id, project_id, fingerprint, code, title, severity, page_url, location, first_scan_run_id, "
        "last_scan_run_id, first_seen_at, last_seen_at, times_seen, export_id) "
        "VALUES (?, ?, ?, 'csp', 'CSP', 'high', ?, '', 1, 1, 0, 0, 1, ?)"
    )
    groups = {"exp_01KJM8AV0G3T0M3Q9V6W2Y5Z70": "/checkout/2", "exp_01KJM8AV0G3T0M3Q9V6W2Y5Z71": "/about"}
    for number, (export_id, path) in enumerate(groups.items()):
        for each in ("/checkout/1", path):
            key = f"{number}{each}"
            execute(statement, (key, customer.project_id, key, f"https://shop.example{each}", export_id))
    made = prepare([draft(customer, source="finding", findings=2, export_id=export_id) for export_id in groups])
    assert [each.status for each in made] == [ExportStatus.APPROVED, ExportStatus.PREPARED]
    for most, parts in ((1, 2), (4, 1)):
        monkeypatch.setattr(approval_rules, "_TEST_FINDINGS", most)
        ends = itertools.count()
        tested = approval_rules.test(rule, in_s(20), ends.__next__)
        assert (tested.matched, tested.examined, next(ends)) == (1, 2, parts)


def test_a_url_that_the_policy_refuses_blocks_the_target_and_the_export_waits(customer: Customer) -> None:
    target = make_target(customer, "http://127.0.0.1:9/hook")
    make_rule(customer, approving(target))
    [export] = prepare([draft(customer)])
    assert (export.status, targets.get(target.id, None).status) == (ExportStatus.PREPARED, "blocked")
    assert not ApprovalRules(LOOPBACK_POLICY).resume(in_s(40))


def test_a_failed_validation_of_the_target_lets_the_export_wait(customer: Customer, target: Target) -> None:
    make_rule(customer, approving(target))
    execute("UPDATE targets SET validation_status = 'failed' WHERE id = ?", (target.id,))
    [export] = prepare([draft(customer)])
    assert export.status is ExportStatus.PREPARED
    execute("UPDATE targets SET validation_status = 'passed' WHERE id = ?", (target.id,))
    assert ApprovalRules(POLICY).resume(in_s(40))
    assert queries.get(export.id).status is ExportStatus.APPROVED


def test_without_a_policy_a_worker_approves(customer: Customer, target: Target) -> None:
    make_rule(customer, approving(target))
    [export] = prepare([draft(customer)], rule_evaluation.LEFT_TO_WORKERS)
    assert export.status is ExportStatus.PREPARED
    assert ApprovalRules(POLICY).resume(in_s(11))
    assert queries.get(export.id).status is ExportStatus.APPROVED


def test_workers_are_woken_once_and_after_the_commit(customer: Customer, target: Target) -> None:
    woken: list[bool] = []
    by_hand = Preparation(Ticket("By hand", "", "high", None, (), {}), None, None)
    rules = ApprovalRules(POLICY, lambda: woken.append(bool(rows("SELECT 1 FROM exports WHERE status = 'approved'"))))
    make_rule(customer, approving(target), RuleMatch(rule="csp-*"))
    make_rule(customer, approving(target), RuleMatch(rule="hsts"), in_s(1))
    with transaction():
        transitions.prepare([draft(customer, 1), draft(customer, 2, rule="hsts")], in_s(10), "scanner", rules=rules)
        assert woken == []
    assert woken == [True]
    woken.clear()
    with pytest.raises(ValidationFailed):
        transitions.prepare_by_hand(by_hand, customer.account_id, in_s(10), "user:1", NO_ROOM, rules)
    prepare([draft(customer, 4, rule="other")], rules)
    assert woken == []


def test_a_thousand_exports_are_decided_together(customer: Customer, target: Target) -> None:
    make_rule(customer, labelling("later"), RuleMatch(rule="rule-1??"))
    make_rule(customer, DISMISS, RuleMatch(rule="rule-2*"), in_s(1))
    make_rule(customer, approving(target), RuleMatch(page_path="/checkout/*"), in_s(2))
    made = prepare([draft(customer, number, rule=f"rule-{number}") for number in range(1000)])
    counts = {status: sum(each.status == status for each in made) for status in ("prepared", "dismissed", "approved")}
    assert counts == {"prepared": 100, "dismissed": 111, "approved": 789}
    assert sum("later" in each.ticket["labels"] for each in made) == 100
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'approve'") == [(789,)]


def stopped(rule_id: str) -> tuple[bool, str | None]:
    stored = rows("SELECT enabled, stopped_reason FROM approval_rules WHERE id = ?", (rule_id,))
    return bool(stored[0][0]), stored[0][1]


def test_a_rule_stops_when_its_author_is_disabled_and_stays_so(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target))
    users.disable(customer.email, in_s(5), "operator")
    assert stopped(rule.id) == (False, StoppedReason.AUTHOR_DISABLED)
    users.enable(customer.email, in_s(6), "operator")
    assert prepare([draft(customer)])[0].status is ExportStatus.PREPARED
    assert [each.action for each in audit_log.list_for_subject(rule.id, 5)] == ["stop_rule", "create_rule"]
    approval_rules.change(rule.id, None, RuleChange(enabled=True), customer.user_id, in_s(7), "user:1")
    assert prepare([draft(customer)])[0].status is ExportStatus.APPROVED


def test_a_rule_stops_when_its_author_lost_the_ability(customer: Customer, target: Target) -> None:
    rule, labels = make_rule(customer, approving(target)), make_rule(customer, labelling("x"), now=in_s(1))
    tokens.revoke_all(customer.email, in_s(2))
    assert approval_rules.get(rule.id, None, in_s(3)).stopped_reason is StoppedReason.AUTHOR_LOST_ABILITY
    tokens.create(customer.email, TokenKind.API, in_s(4), (Ability.MANAGE_RULES,), expires=timedelta(seconds=60))
    [export] = prepare([draft(customer)])
    assert (stopped(rule.id), stopped(labels.id)) == ((False, StoppedReason.AUTHOR_LOST_ABILITY), (True, None))
    assert export.ticket["labels"] == ["website-risk", "x"]
    shown = approval_rules.get(labels.id, None, in_s(65))
    assert (shown.enabled, shown.stopped_reason) == (False, StoppedReason.AUTHOR_LOST_ABILITY)


def test_without_a_token_the_role_of_its_author_limits_a_rule(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target))
    identities.sign_in(Identity("https://issuer.example", "1", customer.email, None), customer.account_id, in_s(1))
    tokens.revoke_all(customer.email, in_s(2))
    assert approval_rules.get(rule.id, None, in_s(3)).stopped_reason is None
    users.set_role(customer.email, Role.TRIAGER, in_s(4), "operator")
    assert approval_rules.get(rule.id, None, in_s(5)).stopped_reason is StoppedReason.AUTHOR_LOST_ABILITY


def test_a_token_of_an_author_counts_no_more_than_the_role(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target))
    users.set_role(customer.email, None, in_s(1), "operator")
    assert approval_rules.get(rule.id, None, in_s(2)).stopped_reason is StoppedReason.AUTHOR_LOST_ABILITY
    # Rules need a role in the account; a role in a project is not enough.
    accounts.grant_project(customer.email, make_project(customer, is_granted=False), in_s(3), Role.MANAGER)
    assert approval_rules.get(rule.id, None, in_s(4)).stopped_reason is StoppedReason.AUTHOR_LOST_ABILITY
    users.set_role(customer.email, Role.MANAGER, in_s(5), "operator")
    assert approval_rules.get(rule.id, None, in_s(6)).stopped_reason is None


def test_a_rule_stops_when_its_target_is_removed(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target))
    execute("UPDATE targets SET deleted_at = 1 WHERE id = ?", (target.id,))
    assert approval_rules.get(rule.id, None, in_s(3)).stopped_reason is StoppedReason.TARGET_REMOVED
    assert prepare([draft(customer)])[0].status is ExportStatus.PREPARED
    assert stopped(rule.id) == (False, StoppedReason.TARGET_REMOVED)


def test_waiting_exports_stay_prepared_when_the_target_is_removed(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target))
    pause(target)
    [export] = prepare([draft(customer)])
    assert rows("SELECT approved_by_rule_id FROM exports") == [(rule.id,)]
    execute("UPDATE targets SET deleted_at = 1 WHERE id = ?", (target.id,))
    assert ApprovalRules(POLICY).resume(in_s(40))
    assert not ApprovalRules(POLICY).resume(in_s(41))
    assert stopped(rule.id) == (False, StoppedReason.TARGET_REMOVED)
    assert queries.get(export.id).status is ExportStatus.PREPARED
    assert rows("SELECT approved_by_rule_id FROM exports") == [(None,)]


def test_waiting_exports_stay_prepared_when_the_author_is_disabled(customer: Customer, target: Target) -> None:
    colleague = make_colleague(customer)
    make_rule(colleague, approving(target))
    pause(target)
    [export] = prepare([draft(customer)])
    users.remove(colleague.email, in_s(21), "operator")
    resume(target)
    assert ApprovalRules(POLICY).resume(in_s(40))
    assert not ApprovalRules(POLICY).resume(in_s(41))
    assert queries.get(export.id).status is ExportStatus.PREPARED


def test_a_rule_that_is_deleted_while_a_postback_runs_decides_before_or_not_at_all(
    customer: Customer, target: Target
) -> None:
    rule = make_rule(customer, approving(target))
    deleted_at: list[float] = []

    def delete() -> None:
        with connection():
            approval_rules.delete(rule.id, None, in_s(11), "user:1")
            deleted_at.append(1)

    deleting = threading.Thread(target=delete)
    with transaction():
        [export_id] = transitions.prepare([draft(customer)], in_s(10), "scanner", rules=ApprovalRules(POLICY))
        deleting.start()
        deleting.join(0.3)
        # The decision is not committed yet, so the deletion waits for it.
        assert deleted_at == []
    deleting.join(10)
    assert deleted_at == [1]
    approved = queries.get(export_id)
    assert approved.status is ExportStatus.APPROVED
    assert approved.approved_by == ApprovedBy("rule", rule.id, None)
    assert prepare([draft(customer, 1)])[0].status is ExportStatus.PREPARED


def test_a_rule_that_changed_since_it_was_read_is_read_again(customer: Customer, target: Target) -> None:
    rule = make_rule(customer, approving(target))
    approval_rules.change(rule.id, None, RuleChange(enabled=False), None, NOW, "user:1")
    with transaction():
        assert not approval_rules.lock([rule])
        assert approval_rules.lock([approval_rules.get(rule.id, None, NOW)])
        assert approval_rules.lock([])
