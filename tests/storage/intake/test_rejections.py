"""The last rejection of each source: one row per source, and the newest one of all processes stays."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest

from schemas.intake.sources import InboundSource, RejectedField, Rejection
from storage.db.engine import connection, database, rows
from storage.intake import rejections
from tests.support.database.query_plans import statements
from tests.support.factories import NOW


def refusal(source: InboundSource = InboundSource.SCANNER, at: datetime = NOW, code: str = "UNAUTHORIZED") -> Rejection:
    return Rejection(
        source, at, 401, code, (RejectedField("/X-Scanner-Secret", "missing"), RejectedField("", "invalid_key")), "req_1"
    )


def test_a_recorded_rejection_is_read_unchanged(database: str) -> None:
    recorded = [refusal(source) for source in InboundSource]
    rejections.record(recorded)
    assert rejections.last() == {each.source: each for each in recorded}


@pytest.mark.parametrize(
    ("later", "kept"),
    [
        (timedelta(seconds=1), "FORBIDDEN"),  # it is newer
        (timedelta(0), "FORBIDDEN"),  # of two in the same millisecond, the last one written
        (timedelta(seconds=-1), "UNAUTHORIZED"),  # another process has written a newer one already
        (timedelta(hours=-2), "FORBIDDEN"),  # the clock was set back
    ],
)
def test_the_newest_rejection_is_kept_whatever_the_order_of_writes(database: str, later: timedelta, kept: str) -> None:
    rejections.record([refusal()])
    rejections.record([refusal(at=NOW + later, code="FORBIDDEN")])
    assert rejections.last()[InboundSource.SCANNER].code == kept
    assert rows("SELECT COUNT(*) FROM inbound_refusals") == [(1,)]


def test_rejections_of_all_sources_are_one_statement_and_an_empty_list_is_none(database: str) -> None:
    with statements() as ran:
        rejections.record([])
    assert ran == []
    with statements() as ran:
        rejections.record([refusal(source) for source in InboundSource])
    assert len(ran) == 1


def test_processes_that_were_refused_in_different_orders_do_not_block_each_other(database: str) -> None:
    """PostgreSQL ends one of two transactions that wait for each other's rows."""
    start = threading.Barrier(4)

    def write(number: int) -> None:
        start.wait()
        for _ in range(100):
            rejections.record([refusal(source) for source in [*InboundSource][:: 1 if number % 2 else -1]])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert {*rejections.last()} == {*InboundSource}


def test_a_thread_without_a_connection_closes_the_one_that_it_opened(database: str) -> None:
    left_open = []

    def write() -> None:
        rejections.record([refusal()])
        left_open.append(not is_closed())

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(30)
    assert left_open == [False]
    with connection():
        assert InboundSource.SCANNER in rejections.last()


def is_closed() -> bool:
    return bool(database.is_closed())
