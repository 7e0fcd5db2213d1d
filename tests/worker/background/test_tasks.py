"""Background tasks share one database: its outage is logged once, not by each of them at each attempt."""

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

import peewee
import pytest

from runtime.outages import Outage
from tests.support.processes.workers import wait_until
from worker.background.tasks import BackgroundTask, TaskThread


def test_many_tasks_log_an_outage_of_the_database_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage(logging.getLogger("riskrelay.test"), "it is away")
    asked = [0] * 4
    tasks = [TaskThread(BackgroundTask(f"task-{number}", outage_run(asked, number), 0.01, outage)) for number in range(4)]
    for task in tasks:
        task.start()
    wait_until(lambda: min(asked) >= 5)
    for task in tasks:
        task.stop()
        task.join(5)
    assert caplog.messages == ["it is away"]


def test_a_task_that_fails_is_logged_by_its_name_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[bool] = []

    def run_once() -> bool:
        runs.append(True)
        if len(runs) == 1:
            raise LookupError("hunter2")
        return False

    task = TaskThread(BackgroundTask("recoveries", run_once, 0.01))
    task.start()
    wait_until(lambda: len(runs) >= 2)
    task.stop()
    task.join(5)
    assert [record.message for record in caplog.records if record.exc_info] == ["background task recoveries failed"]


def test_wake_ups_run_only_the_tasks_that_react_to_them() -> None:
    runs = Counter[bool]()

    def run_once(takes_wake_ups: bool) -> bool:
        runs[takes_wake_ups] += 1
        return False

    tasks = [BackgroundTask(f"{each}", partial(run_once, each), 60, takes_wake_ups=each) for each in (True, False)]
    thread = TaskThread(*tasks)
    thread.start()
    wait_until(lambda: runs == {True: 1, False: 1})
    thread.wake()
    wait_until(lambda: runs[True] == 2)
    thread.stop()
    thread.join(5)
    assert runs[False] == 1


def test_tasks_of_a_thread_take_turns_and_a_wake_up_during_a_run_is_not_lost() -> None:
    order: list[str] = []

    def long() -> bool:
        order.append("long")
        return len(order) < 20

    def short() -> bool:
        order.append("short")
        if order.count("short") == 1:
            # As if work arrived after this task has looked for it.
            tasks[1].wake()
        return False

    tasks = [BackgroundTask("long", long, 60), BackgroundTask("short", short, 60)]
    thread = TaskThread(*tasks)
    thread.start()
    wait_until(lambda: len(order) == 20)
    thread.stop()
    thread.join(5)
    assert order == ["long", "short"] * 2 + ["long"] * 16


def outage_run(asked: list[int], number: int) -> Callable[[], bool]:
    def run_once() -> bool:
        asked[number] += 1
        raise peewee.OperationalError("hunter2")

    return run_once
