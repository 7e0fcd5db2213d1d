"""Summaries contain only the account's own targets."""

from collections.abc import Callable
from typing import Final

from schemas.targets.approval import ApprovalState
from schemas.targets.target import TargetStatus
from schemas.targets.validations import PASSED, Validation
from storage.db.engine import execute
from storage.targets import summaries, targets
from storage.targets.summaries import TargetSummary
from tests.support.factories import NOW, Customer, make_customer, make_target

ACTIVE: Final = ApprovalState(TargetStatus.ACTIVE, None, PASSED, None)


def test_targets_are_reported_by_name_host_and_status(customer: Customer) -> None:
    target = make_target(customer, "https://tracker.example.com:8443/hook?a=1", "Ours")
    reported = summaries.by_id([target.id, "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"], customer.account_id)
    assert reported == {target.id: TargetSummary(target.id, "Ours", "tracker.example.com:8443", ACTIVE)}
    assert summaries.by_id([target.id], make_customer().account_id) == {}
    assert summaries.by_id([], customer.account_id) == {}


def test_the_newest_targets_come_first_and_those_without_approvals_are_listed_separately(customer: Customer) -> None:
    made = [make_target(customer) for _ in range(6)]
    make_target(make_customer())
    targets.change_status(made[1].id, "pause", NOW, "operator")
    targets.change_status(made[2].id, "disable", NOW, "operator")
    targets.record_validation(made[3].id, None, Validation("tls_failed"), NOW, "worker")
    execute("UPDATE targets SET validation_status = NULL WHERE id = ?", (made[4].id,))
    ids = [target.id for target in made]

    def newest(limit: int, listed: Callable[[int, int], list[TargetSummary]] = summaries.list_page) -> list[str]:
        return [destination.id for destination in listed(customer.account_id, limit)]

    assert newest(10) == ids[::-1]
    assert newest(2) == ids[:3:-1]
    assert newest(10, summaries.list_approvable) == [ids[5], ids[4], ids[0]]
    assert newest(1, summaries.list_approvable) == [ids[5]]
    assert newest(10, summaries.list_unapprovable) == [ids[3], ids[1]]
    assert newest(1, summaries.list_unapprovable) == [ids[3]]
    assert [each.approval.problem for each in summaries.list_approvable(customer.account_id, 10)] == [None] * 3
    unavailable = [each.approval.problem for each in summaries.list_unapprovable(customer.account_id, 10)]
    assert [each and each.code for each in unavailable] == ["target_unavailable", "target_not_active"]
