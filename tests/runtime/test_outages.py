"""An outage is logged at its start, once a minute while it lasts, and at its end; flickering is one outage."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.outages import REMIND_S, STABLE_FOR_S, Outage
from tests.support.fakes import FakeMonotonic

GONE, BACK = "it is away", "it is back"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[logging.Logger]:
    with caplog.at_level(logging.INFO, "riskrelay.test"):
        yield logging.getLogger("riskrelay.test")


@pytest.mark.parametrize(
    ("met", "logged"),
    [
        # available all the time
        ([(0, "there"), (9, "there")], []),
        # several failures at almost the same time
        ([(0, "missed"), (0, "missed"), (0.1, "missed")], [GONE]),
        # fails for long: logged again after a minute, not before
        ([(0, "missed"), (REMIND_S - 1, "missed"), (REMIND_S, "missed"), (REMIND_S + 1, "missed")], [GONE, GONE]),
        # available again, which is logged once
        ([(0, "missed"), (STABLE_FOR_S, "there"), (STABLE_FOR_S, "there")], [GONE, BACK]),
        # some requests succeed, others fail: the outage goes on
        ([(0, "missed"), (1, "there"), (2, "missed"), (3, "there"), (4, "missed")], [GONE]),
        # fails again soon after the recovery was logged: a new outage is logged
        ([(0, "missed"), (STABLE_FOR_S, "there"), (STABLE_FOR_S + 1, "missed")], [GONE, BACK, GONE]),
    ],
)
def test_an_outage_is_logged_as_listed(
    met: list[tuple[float, str]], logged: list[str], log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeMonotonic()
    outage = Outage(log, GONE, BACK, clock)
    for at_s, what in met:
        clock.now = 1000.0 + at_s
        if what == "missed":
            outage.record_failure(OSError("hunter2"))
        else:
            outage.record_success()
    assert caplog.messages == logged
    kinds: set[Any] = {vars(record).get("error") for record in caplog.records if record.message == GONE}
    assert kinds <= {"OSError"}
    assert "hunter2" not in caplog.text
