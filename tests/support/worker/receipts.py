"""Exports that are delivered by real attempts, without a network, and their receipts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.exports.delivery import Outcome
from storage.accounts import audit_chain
from storage.exports import claims_sql, receipts
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from tests.support.factories import NOW, WEBHOOK_SECRET, Customer, claim_due, make_approved, make_target
from tests.support.fakes import NO_TRACKERS
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.outcomes import Schedule

#: The body of the receiver's response. A receiver can send any text, including personal data.
ANSWER: Final = b'{"id": "T-1", "note": "for Ada alone"}'
WORKER: Final = "worker:host-of-ours:7:abcd"
KEY: Final = b"A" * 32


def deliver(customer: Customer, statuses: Sequence[int] = (503, 201), target_id: str | None = None) -> str:
    """Approve an export, and make one attempt for each status that its receiver returns; return the export's id."""
    export_id, at = make_approved(customer, target_id or make_target(customer).id), NOW
    for status in statuses:
        attempt_once(status, at)
        at += timedelta(hours=1)
    return export_id


class _Post:
    """Responds to every request with the same status."""

    def __init__(self, status: int) -> None:
        self._status = status

    def __call__(self, *_: Any, **__: Any) -> Outcome:
        return Outcome(status=self._status, body=ANSWER, address="192.0.2.1")


def attempt_once(status: int, at: datetime) -> None:
    """Make and record an attempt for the due export."""
    options = AttemptOptions(DefaultSecret(WEBHOOK_SECRET), Schedule((5,) * 9, timedelta(days=9)), lambda: at)
    [claim] = claim_due(1, at, 6.0, WORKER)
    made = AttemptRunner(_Post(status), Vault([KEY]), options, NO_TRACKERS).run(claim)
    assert made is not None
    assert claims_sql.record_attempts([made], at, WORKER) == {claim.export_id}


def receipt_of(export_id: str) -> dict[str, Any]:
    """Extend the audit chain to the newest entry, and return the receipt of an export."""
    assert audit_chain.extend_to_end() == 0
    return receipts.read(export_id, None)
