"""A key, its work and its response commit together: a repeat finds all three or none."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from peewee import OperationalError

from schemas.base.errors import IdempotencyConflict, IdempotencyInProgress
from storage.accounts import accounts
from storage.db.engine import connection, execute, is_sqlite, rows, transaction
from storage.db.engine import database as db
from storage.exports import idempotency
from storage.exports.idempotency import KeyedRequest, StoredResponse
from tests.support.factories import NOW

TTL = timedelta(hours=72)
REQUEST = KeyedRequest("user:1", "POST", "/api/ticket-exports/{export_id}/approve", "key-1", "a" * 64)
ANSWER = StoredResponse(202, {"Location": "/api/ticket-exports/exp_1"}, '{"id": "exp_1", "title": "é"}')


def begin(request: KeyedRequest = REQUEST, now: datetime = NOW) -> StoredResponse | None:
    with transaction():
        before = idempotency.begin(request, now, TTL)
        if before is None:
            idempotency.finish_all([(request, ANSWER)])
        return before


def test_a_repeated_request_gets_the_stored_response(database: str) -> None:
    assert begin() is None
    assert begin(now=NOW + timedelta(hours=71)) == ANSWER
    assert rows("SELECT COUNT(*) FROM idempotency_keys") == [(1,)]


def test_another_payload_under_the_key_is_a_conflict_and_keeps_the_first_response(database: str) -> None:
    begin()
    with pytest.raises(IdempotencyConflict):
        begin(replace(REQUEST, payload_sha256="b" * 64))
    assert begin() == ANSWER


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, principal="user:2"),
        replace(REQUEST, method="PUT"),
        replace(REQUEST, route="/api/scanner/results"),
        replace(REQUEST, key="key-2"),
        replace(REQUEST, key="KEY-1"),
    ],
)
def test_a_key_belongs_to_its_principal_method_and_route(database: str, other: KeyedRequest) -> None:
    begin()
    assert begin(other) is None
    assert rows("SELECT COUNT(*) FROM idempotency_keys") == [(2,)]


def test_a_key_expires_after_its_time_and_not_before(database: str) -> None:
    begin()
    assert begin(now=NOW + TTL) == ANSWER
    assert begin(replace(REQUEST, payload_sha256="b" * 64), NOW + TTL + timedelta(milliseconds=1)) is None
    assert rows("SELECT COUNT(*), MIN(payload_sha256) FROM idempotency_keys") == [(1, "b" * 64)]


def test_a_key_that_is_erased_while_its_request_is_repeated_is_new(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recall = idempotency.recall

    def erased(request: KeyedRequest, now: datetime, ttl: timedelta) -> StoredResponse | None:
        execute("UPDATE idempotency_keys SET key = 'redacted:1'")
        return recall(request, now, ttl)

    begin()
    monkeypatch.setattr(idempotency, "recall", erased)
    assert begin() is None
    monkeypatch.undo()
    assert begin() == ANSWER


def test_work_that_fails_stores_no_idempotency_key(database: str) -> None:
    def work_and_fail() -> None:
        with transaction():
            assert idempotency.begin(REQUEST, NOW, TTL) is None
            accounts.add_account("One", NOW)
            raise LookupError

    with pytest.raises(LookupError):
        work_and_fail()
    assert rows("SELECT COUNT(*) FROM accounts") == [(0,)]
    assert begin() is None


def test_of_simultaneous_requests_with_one_key_one_is_executed_and_all_get_its_response(database: str) -> None:
    start = threading.Barrier(8)

    def ask(_number: int) -> StoredResponse | None:
        with connection():
            start.wait()
            return begin()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert answers.count(None) == 1
    assert answers.count(ANSWER) == 7


def test_a_repeated_request_during_the_first_waits_or_gets_an_error_to_retry(database: str) -> None:
    begun, finish = threading.Event(), threading.Event()

    def first() -> None:
        with connection(), transaction():
            idempotency.begin(REQUEST, NOW, TTL)
            begun.set()
            finish.wait(10)
            idempotency.finish_all([(REQUEST, ANSWER)])

    if not is_sqlite():
        db.execute_sql("SET lock_timeout = 100")
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(first)
        assert begun.wait(10)
        if is_sqlite():
            # SQLite has one writer at a time: the repeat waits, and gets the response when the first request is done.
            threading.Timer(0.2, finish.set).start()
            began = time.monotonic()
            assert begin() == ANSWER
            assert time.monotonic() - began >= 0.1
        else:
            with pytest.raises(IdempotencyInProgress):
                begin()
        finish.set()
        work.result(10)
    assert begin() == ANSWER


def test_another_database_error_is_not_reported_as_a_request_in_progress(database: str) -> None:
    execute("ALTER TABLE idempotency_keys RENAME TO idempotency_keys_kept")
    try:
        with pytest.raises(Exception, match="idempotency_keys") as broken:
            begin()
        assert not isinstance(broken.value, IdempotencyInProgress)
        assert isinstance(broken.value, OperationalError) is is_sqlite()
    finally:
        execute("ALTER TABLE idempotency_keys_kept RENAME TO idempotency_keys")
