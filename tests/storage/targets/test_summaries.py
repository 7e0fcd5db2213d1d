"""Summaries contain only the account's own targets."""

from schemas.targets.target import TargetStatus
from storage.targets import summaries, targets
from storage.targets.summaries import TargetSummary
from tests.support.factories import NOW, Customer, make_customer, make_target


def test_targets_are_reported_by_name_host_and_status(customer: Customer) -> None:
    target = make_target(customer, "https://tracker.example.com:8443/hook?a=1", "Ours")
    reported = summaries.by_id([target.id, "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"], customer.account_id)
    assert reported == {target.id: TargetSummary(target.id, "Ours", "tracker.example.com:8443", TargetStatus.ACTIVE)}
    assert summaries.by_id([target.id], make_customer().account_id) == {}
    assert summaries.by_id([], customer.account_id) == {}


def test_the_newest_come_first_in_the_statuses_that_are_asked_for(customer: Customer) -> None:
    made = [make_target(customer) for _ in range(4)]
    make_target(make_customer())
    targets.change_status(made[1].id, "pause", NOW, "operator")
    targets.change_status(made[2].id, "disable", NOW, "operator")
    ids = [target.id for target in made]

    def newest(limit: int, *statuses: TargetStatus) -> list[str]:
        found = summaries.list_page(customer.account_id, limit, *([statuses] if statuses else []))
        return [destination.id for destination in found]

    assert newest(10) == ids[::-1]
    assert newest(2) == ids[:1:-1]
    assert newest(10, TargetStatus.ACTIVE, TargetStatus.PAUSED) == [ids[3], ids[1], ids[0]]
