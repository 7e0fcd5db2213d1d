"""Recipients of tickets that a compliance request redacted: what they confirmed, and what the operator has to check."""

from datetime import timedelta

import pytest

from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.compliance.recipients import Recipient
from schemas.exports.delivery import Outcome, Timings
from schemas.exports.record import Approval
from schemas.exports.state_machine import Transition
from schemas.exports.tickets.ticket_events import TicketEventStatus
from schemas.targets.target import TargetEdit
from storage.accounts.audit_log import append
from storage.compliance import erasure, recipients
from storage.compliance.erasure import ERASABLE_TABLES
from storage.db.engine import execute, rows, transaction
from storage.exports import transitions
from storage.targets import changes
from storage.triage import targeting
from tests.support.database.many_rows import analyze, many_finished, many_targets
from tests.support.database.query_plans import GROWING, full_scans, indexes_read, plan_of, statements
from tests.support.factories import DEFAULT_SECRET, LOOPBACK_POLICY, NOW, Customer, make_exports, make_target
from tests.worker.background.test_ticket_events import EventWorker

REQUEST = "cpl_01KJM8C3D5E7F9G1H2J4K6M8N0"
EXPORTS = ERASABLE_TABLES[-1]
#: Exports of other requests: so many that PostgreSQL, which reads small tables completely, prefers an index.
MANY = 20_000


def delivered(customer: Customer, *events: str, status: str = "exported", attempts: int = 1) -> str:
    target = make_target(customer, "http://127.0.0.1:9/hook")
    changes.edit(target.id, TargetEdit(events=events), DEFAULT_SECRET, NOW, "user:1")
    [export_id] = make_exports(customer, 1)
    transitions.approve(export_id, customer.account_id, Approval(target.id, None), NOW, "user:1", LOOPBACK_POLICY)
    finished = "UPDATE exports SET status = ?, attempts = ?, due_at = NULL, finished_at = 0, lease = NULL WHERE id = ?"
    execute(finished, (status, attempts, export_id))
    return export_id


def redact(*export_ids: str) -> None:
    with transaction():
        EXPORTS.erase(sorted(export_ids), NOW + timedelta(hours=1), REQUEST)


def leave(customer: Customer, export_id: str, *events: str, was_tried: bool = True, target_id: str | None = None) -> str:
    """Let the target of an export refuse it, and deliver it to another target; return this target's ID."""
    if was_tried:
        append(NOW, "worker", Transition.CLAIM.value, export_id)
    execute("UPDATE exports SET status = 'failed' WHERE id = ?", (export_id,))
    elsewhere = target_id or make_target(customer, "http://127.0.0.1:9/other").id
    changes.edit(elsewhere, TargetEdit(events=events), DEFAULT_SECRET, NOW, "user:1")
    targeting.retry_elsewhere(export_id, customer.account_id, elsewhere, NOW, "user:1", LOOPBACK_POLICY)
    execute("UPDATE exports SET status = 'exported', due_at = NULL, finished_at = 0 WHERE id = ?", (export_id,))
    return elsewhere


def all_found() -> list[Recipient]:
    return recipients.of_requests([REQUEST], 10).get(REQUEST, [])


def found() -> dict[str, Recipient]:
    return {each.export_id: each for each in recipients.of_requests([REQUEST], 10).get(REQUEST, [])}


@pytest.mark.parametrize("is_accepted", [True, False])
def test_the_audit_log_names_the_targets_that_accepted_a_redaction(customer: Customer, is_accepted: bool) -> None:
    subscribed, silent = delivered(customer, *ALL_EVENTS), delivered(customer, "ticket.fixed")
    redact(subscribed, silent)
    assert [(each.status, each.task) for each in found().values() if each.export_id == subscribed] == [
        (TicketEventStatus.PENDING, None)
    ]
    EventWorker(Outcome(status=200 if is_accepted else 422, timings=Timings(total_ms=1))).run()
    first = found()[subscribed]
    assert first.status is (TicketEventStatus.DELIVERED if is_accepted else TicketEventStatus.FAILED)
    assert (first.task is None) is is_accepted
    assert (first.proof is not None) is is_accepted
    if first.proof is not None:
        assert first.proof["response_status"] == 200
        assert len(first.proof["body_sha256"]) == 64
        assert first.proof["signature"].startswith("sha256=")
    assert found()[silent].record()["status"] == "not_asked_for"
    assert "Ask the recipient" in str(found()[silent].task)


def test_an_issue_that_the_tracker_does_not_find_is_to_be_checked(customer: Customer) -> None:
    export_id = delivered(customer, *ALL_EVENTS)
    redact(export_id)
    execute("UPDATE ticket_events SET status = 'failed', error_code = 'issue_not_found'")
    assert "Check that the issue was deleted" in str(found()[export_id].task)


def test_a_ticket_that_was_never_sent_has_no_recipient_and_a_failed_one_may_have(customer: Customer) -> None:
    unsent = delivered(customer, *ALL_EVENTS, status="failed", attempts=0)
    failed = delivered(customer, *ALL_EVENTS, status="failed")
    redact(unsent, failed)
    assert {export_id: each.is_delivered for export_id, each in found().items()} == {failed: False}
    assert found()[failed].task is not None


def test_a_redaction_at_a_former_target_is_a_task_of_the_operator(customer: Customer) -> None:
    export_id = delivered(customer, *ALL_EVENTS)
    [[former]] = rows("SELECT target_id FROM exports")
    present = leave(customer, export_id, *ALL_EVENTS)
    redact(export_id)
    EventWorker(Outcome(status=200, timings=Timings(total_ms=1))).run()
    shown = {each.target_id: (each.export_id, each.is_delivered, each.status, each.task is None) for each in all_found()}
    assert shown == {former: (export_id, False, None, False), present: (export_id, True, TicketEventStatus.DELIVERED, True)}


def test_a_request_with_many_recipients_does_not_shorten_the_lists_of_others(customer: Customer) -> None:
    newer = REQUEST.replace("M8N0", "M8N1")
    for request_id, count in ((newer, 4), (REQUEST, 1)):
        made = sorted(delivered(customer) for _ in range(count))
        with transaction():
            EXPORTS.erase(made, NOW + timedelta(hours=1), request_id)
    found = recipients.of_requests([newer, REQUEST], 2)
    assert {request_id: len(each) for request_id, each in found.items()} == {newer: 2, REQUEST: 1}


def test_a_target_that_was_replaced_twice_is_named_once(customer: Customer) -> None:
    export_id = delivered(customer)
    [[first]] = rows("SELECT target_id FROM exports")
    second = leave(customer, export_id)
    leave(customer, export_id, target_id=first)
    leave(customer, export_id, target_id=second)
    third = leave(customer, export_id)
    redact(export_id)
    assert sorted(each.target_id for each in all_found()) == sorted([first, second, third])


def test_a_target_that_was_replaced_and_used_again_is_named_once(customer: Customer) -> None:
    export_id = delivered(customer)
    [[first]] = rows("SELECT target_id FROM exports")
    second = leave(customer, export_id)
    leave(customer, export_id, target_id=first)
    redact(export_id)
    assert {each.target_id: each.is_delivered for each in all_found()} == {first: True, second: False}
    assert len(all_found()) == 2


def test_a_target_that_was_replaced_before_any_attempt_is_no_recipient(customer: Customer) -> None:
    export_id = delivered(customer)
    present = leave(customer, export_id, was_tried=False)
    redact(export_id)
    assert [each.target_id for each in all_found()] == [present]


def test_recipients_are_found_by_indexes(customer: Customer) -> None:
    target_id = make_target(customer).id
    many_finished(customer, 0, MANY, (0, len(many_targets(customer, 0, 1_000, "https://tracker.example.com/hook"))), NOW)
    execute(
        "INSERT INTO audit_entries (at, actor, action, subject_id, reason) SELECT created_at, 'worker', 'retry', id, "
        "CAST(? AS TEXT) FROM exports",
        (target_id,),
    )
    execute(
        "INSERT INTO redactions (request_id, table_name, row_id, redacted_at) SELECT 'cpl_' || id, 'exports', id, 0 "
        "FROM exports"
    )
    execute(
        "INSERT INTO ticket_events (id, account_id, export_id, target_id, number, type, status, attempts, attempt_records, "
        "is_outcome_unknown, created_at) SELECT 'evt_' || id, account_id, id, target_id, 1, 'ticket.fixed', 'delivered', 1, "
        "'[]', ?, 0 FROM exports",
        (False,),
    )
    export_id = delivered(customer, *ALL_EVENTS)
    leave(customer, export_id)
    redact(export_id)
    analyze()
    with statements() as ran:
        assert len(all_found()) == 2
    [statement] = ran
    assert full_scans(statement, GROWING | {"redactions", "ticket_events", "targets"}) == [], plan_of(statement)
    assert {"redactions_request", "audit_entries_subject"} <= indexes_read(statement), plan_of(statement)


def test_a_request_without_recipients_has_none(customer: Customer) -> None:
    assert recipients.of_requests([], 10) == {}
    assert recipients.of_requests([REQUEST], 10) == {}
    assert erasure.is_known("nobody.example") is False
