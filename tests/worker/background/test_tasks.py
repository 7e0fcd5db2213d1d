"""Errands share one database: when it is away that is told once, not by each of them at each look."""

import logging
from collections.abc import Callable

import peewee
import pytest

from runtime.outages import Outage
from tests.support.workers import wait_until
from worker.background.tasks import Errand


def test_many_errands_tell_once_that_the_database_is_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage(logging.getLogger("riskrelay.test"), "it is away")
    asked = [0] * 4
    errands = [Errand(f"errand-{number}", away(asked, number), 0.01, outage) for number in range(4)]
    for errand in errands:
        errand.start()
    wait_until(lambda: min(asked) >= 5)
    for errand in errands:
        errand.stop()
        errand.join(5)
    assert caplog.messages == ["it is away"]


def test_an_errand_that_breaks_is_told_by_its_name_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    looks: list[bool] = []

    def carry_out_next() -> bool:
        looks.append(True)
        if len(looks) == 1:
            raise LookupError("hunter2")
        return False

    errand = Errand("recoveries", carry_out_next, 0.01)
    errand.start()
    wait_until(lambda: len(looks) >= 2)
    errand.stop()
    errand.join(5)
    assert [record.message for record in caplog.records if record.exc_info] == ["errand recoveries broke off"]


def away(asked: list[int], number: int) -> Callable[[], bool]:
    def carry_out_next() -> bool:
        asked[number] += 1
        raise peewee.OperationalError("hunter2")

    return carry_out_next
