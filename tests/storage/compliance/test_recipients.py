"""Recipients of tickets that a compliance request redacted: what they accepted, and what is left to the operator."""

from datetime import timedelta

import pytest

from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.compliance.recipients import Recipient
from schemas.exports.delivery import Outcome, Timings
from schemas.exports.record import Approval
from schemas.exports.tickets.ticket_events import TicketEventStatus
from schemas.targets.target import TargetEdit
from storage.compliance import erasure, recipients
from storage.compliance.erasure import ERASABLE_TABLES
from storage.db.engine import execute, transaction
from storage.exports import transitions
from storage.targets import changes
from tests.support.factories import DEFAULT_SECRET, LOOPBACK_POLICY, NOW, Customer, make_exports, make_target
from tests.worker.background.test_ticket_events import EventWorker

REQUEST = "cpl_01KJM8C3D5E7F9G1H2J4K6M8N0"
EXPORTS = ERASABLE_TABLES[-1]


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


def found() -> dict[str, Recipient]:
    return {each.export_id: each for each in recipients.of_requests([REQUEST], 10).get(REQUEST, [])}


@pytest.mark.parametrize("is_accepted", [True, False])
def test_the_ledger_names_who_accepted_a_redaction(customer: Customer, is_accepted: bool) -> None:
    asking, silent = delivered(customer, *ALL_EVENTS), delivered(customer, "ticket.fixed")
    redact(asking, silent)
    assert [(each.status, each.task) for each in found().values() if each.export_id == asking] == [
        (TicketEventStatus.PENDING, None)
    ]
    EventWorker(Outcome(status=200 if is_accepted else 422, timings=Timings(total_ms=1))).run()
    first = found()[asking]
    assert first.status is (TicketEventStatus.DELIVERED if is_accepted else TicketEventStatus.FAILED)
    assert (first.task is None) is is_accepted
    assert (first.proof is not None) is is_accepted
    if first.proof is not None:
        assert first.proof["response_status"] == 200
        assert len(first.proof["body_sha256"]) == 64
        assert first.proof["signature"].startswith("sha256=")
    assert found()[silent].record()["status"] == "not_asked_for"
    assert "Ask the recipient" in str(found()[silent].task)


def test_a_ticket_that_was_never_sent_has_no_recipient_and_a_failed_one_may_have(customer: Customer) -> None:
    unsent = delivered(customer, *ALL_EVENTS, status="failed", attempts=0)
    failed = delivered(customer, *ALL_EVENTS, status="failed")
    redact(unsent, failed)
    assert {export_id: each.is_delivered for export_id, each in found().items()} == {failed: False}
    assert found()[failed].task is not None


def test_a_request_without_recipients_has_none(customer: Customer) -> None:
    assert recipients.of_requests([], 10) == {}
    assert recipients.of_requests([REQUEST], 10) == {}
    assert erasure.is_known("nobody.example") is False
