"""What an app sees of its upload, by the status of the export."""

import pytest

from schemas.exports.handoffs import HandoffStatus, handoff_status
from schemas.exports.state_machine import ExportStatus

#: Every status of an export, with that of its handoff without findings, and with two that are both fixed.
STATUSES = {
    "prepared": ("prepared", "prepared"),
    "approved": ("approved", "approved"),
    "delivering": ("approved", "approved"),
    "retry_scheduled": ("approved", "approved"),
    "exported": ("delivered", "fixed"),
    "failed": ("failed", "failed"),
    "blocked": ("failed", "failed"),
    "dismissed": ("dismissed", "dismissed"),
}


@pytest.mark.parametrize("status", ExportStatus)
def test_each_status_of_an_export_is_one_of_the_handoff(status: ExportStatus) -> None:
    without, fixed = STATUSES[status]
    assert (handoff_status(status, None, None), handoff_status(status, 2, 2)) == (without, fixed)
    assert handoff_status(status, 2, 1) == handoff_status(status, 2, None) == without


def test_every_status_of_a_handoff_is_one_of_an_export_but_the_first() -> None:
    assert {*sum(STATUSES.values(), ())} == {*HandoffStatus} - {HandoffStatus.RECEIVED}
