"""The worker's task approves exports that waited for the target of a rule, also after a worker was killed."""

from schemas.targets.target import Target
from schemas.triage.approval_rules import RuleAction, RuleActionType
from schemas.url_policy.policy import TargetPolicy
from storage.db.engine import rows
from storage.exports.rules.rule_evaluation import RESUME_BATCH, ApprovalRules
from storage.targets import targets
from tests.support.factories import DEFAULT_SECRET, Customer, in_s, make_exports, make_rule
from worker.background.approval_rules import decide_waiting


def approved() -> int:
    found: int = rows("SELECT COUNT(*) FROM exports WHERE status = 'approved'")[0][0]
    return found


def waiting(customer: Customer, target: Target, count: int) -> None:
    """Store exports that wait for the target of a rule, and resume the target."""
    make_rule(customer, RuleAction(RuleActionType.APPROVE, target_id=target.id))
    targets.change_status(target.id, "pause", in_s(1), "user:test")
    make_exports(customer, count, in_s(2))
    assert approved() == 0
    targets.change_status(target.id, "resume", in_s(3), "user:test", default=DEFAULT_SECRET)


def test_a_task_approves_batch_after_batch_and_wakes_the_workers(customer: Customer, target: Target) -> None:
    waiting(customer, target, RESUME_BATCH + 1)
    woken: list[int] = []
    rules = ApprovalRules(TargetPolicy(), lambda: woken.append(approved()))
    while decide_waiting(rules, lambda: in_s(4)):
        pass
    assert woken == [RESUME_BATCH, RESUME_BATCH + 1]


class _WorkerKilled(BaseException):
    """Ends a task between two batches."""


def test_another_worker_continues_where_a_killed_one_stopped(customer: Customer, target: Target) -> None:
    waiting(customer, target, RESUME_BATCH + 1)

    def kill() -> None:
        raise _WorkerKilled

    try:
        decide_waiting(ApprovalRules(TargetPolicy(), kill), lambda: in_s(4))
    except _WorkerKilled:
        assert approved() == RESUME_BATCH
    other = ApprovalRules(TargetPolicy())
    assert [decide_waiting(other, lambda: in_s(5)), decide_waiting(other, lambda: in_s(5))] == [True, False]
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'approve'") == [(RESUME_BATCH + 1,)]
