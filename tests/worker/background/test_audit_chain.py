"""The worker's task adds entries to the chain seconds after they were written, and logs an anchor once a day."""

import logging
from datetime import datetime, timedelta
from threading import Thread
from typing import Final

import pytest

from schemas.audit.chain import ChainVerification
from schemas.base.timestamps import to_ms
from storage.accounts import audit_chain, audit_log
from storage.accounts.audit_log import AuditEntry
from storage.db import locks
from storage.db.engine import transaction
from storage.db.locks import Lock
from tests.support.factories import NOW
from worker.background.audit_chain import AuditChainTask

LOGGER: Final = "worker.background.audit_chain"


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> datetime:
        return self.at


def append(count: int) -> None:
    with transaction():
        audit_log.append_all([AuditEntry(to_ms(NOW), "operator", "did", f"exp_{number}") for number in range(count)])


def test_a_run_chains_all_entries_batch_after_batch(database: str) -> None:
    append(audit_chain.BATCH + 1)
    task = AuditChainTask(lambda: NOW)
    assert [task.run_once(), task.run_once()] == [True, False]
    assert audit_chain.count_unchained() == 0
    assert len(list(audit_chain.lines(ChainVerification({})))) == audit_chain.BATCH + 1


def test_a_worker_does_not_chain_entries_while_another_process_does(database: str) -> None:
    append(1)
    task = AuditChainTask(lambda: NOW)
    with locks.exclusive(Lock.AUDIT):
        other = Thread(target=task.run_once)
        other.start()
        other.join()
    assert audit_chain.count_unchained() == 1
    assert not task.run_once()
    assert audit_chain.count_unchained() == 0


def test_the_anchor_is_logged_at_the_start_once_a_day_and_after_a_step_back_of_the_clock(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with caplog.at_level(logging.INFO, LOGGER):
        task = AuditChainTask(clock)
        task.run_once()
        assert caplog.messages == []
        anchors = []
        for hours in (1, 2, 24, 25, 26, -5):
            append(1)
            clock.at = NOW + timedelta(hours=hours)
            task.run_once()
            anchors.append(audit_chain.head())
    assert caplog.messages == [
        f"audit log anchor {each.position}:{each.hash}" for each in (anchors[0], anchors[3], anchors[5])
    ]
    logged = dict(message.removeprefix("audit log anchor ").split(":") for message in caplog.messages)
    list(audit_chain.lines(ChainVerification({int(position): hash_ for position, hash_ in logged.items()})))
