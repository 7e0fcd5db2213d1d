"""While the database is unavailable, locked or full, requests get 503, never a success; then the service recovers."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from falcon.testing import TestClient

from service.app import create_app
from storage.db.engine import close_database, connection, execute, is_sqlite, open_database, rows, transaction
from tests.service.conftest import LogLines
from tests.support.factories import (
    SCANNER_SECRET,
    Customer,
    environment,
    make_customer,
    make_settings,
    make_target,
    postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token
from tests.support.http.raw_http import (
    EXPORTS,
    JSON,
    RESULTS,
    SCANNER,
    TARGETS,
    Call,
    assert_is_error,
    prepared,
    target_request,
)
from tests.support.processes.gunicorn_process import Service
from tests.support.servers.redis_and_postgres import PostgresServer


def calls(customer: Customer, export_id: str, target_id: str) -> list[Call]:
    """Return one request for every route that needs the database."""
    bearer = (*customer.bearer.items(), *JSON.items())
    return [
        Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(postback()),
        Call("POST", TARGETS, bearer).with_json(target_request()),
        Call("POST", TARGETS, (*bearer, ("Idempotency-Key", "k"))).with_json(target_request()),
        Call("POST", f"{EXPORTS}/{export_id}/approve", bearer).with_json({"target_id": target_id}),
        Call("GET", f"{EXPORTS}/{export_id}", bearer),
    ]


def test_an_outage_of_postgresql_is_reported_and_its_end_is_detected(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path, log_lines: LogLines
) -> None:
    open_database(postgres_url)
    customer = make_customer()
    settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id)})
    wake_ups = FakeWakeUpQueue()
    client = TestClient(create_app(settings, wake_ups, FakeResolver({"tracker.example.com": ["93.184.215.14"]})))
    every = calls(customer, prepared(client), make_target(customer).id)

    postgres_server.stop()
    try:
        refused = [call.send(client) for call in every for _ in range(2)]
        alive, ready = Call("GET", "/healthz").send(client), Call("GET", "/readyz").send(client)
    finally:
        postgres_server.start()
    served = [call.send(client) for call in every]
    ready_again = Call("GET", "/readyz").send(client)
    close_database()

    for answer in refused:
        assert_is_error(answer, 503, "SERVICE_UNAVAILABLE")
        assert answer.json["error"]["message"] == "Service unavailable"
    assert wake_ups.notifications == 1
    assert alive.status_code == 200
    assert (ready.status_code, ready.json["checks"]["database"]) == (503, "unavailable")
    assert [answer.status_code for answer in served] == [202, 201, 201, 202, 200]
    assert (ready_again.status_code, ready_again.json["checks"]["database"]) == (200, "ok")
    assert customer.token not in log_lines.text


def test_a_database_that_cannot_be_opened_is_an_outage(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url)
    customer = make_customer()
    settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id)})
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
    every = calls(customer, prepared(client), make_target(customer).id)
    open_database(f"sqlite:///{tmp_path / 'gone' / 'riskrelay.db'}")

    answers = [call.send(client) for call in every]
    ready = Call("GET", "/readyz").send(client)
    close_database()

    for answer in answers:
        assert_is_error(answer, 503, "SERVICE_UNAVAILABLE")
    assert (ready.status_code, ready.json["checks"]["database"]) == (503, "unavailable")


def test_a_read_only_postgresql_is_an_outage_for_writing_requests(postgres_url: str, tmp_path: Path) -> None:
    """Like a primary that became a standby; requests that only read still succeed."""
    open_database(postgres_url)
    customer = make_customer()
    settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id)})
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({"tracker.example.com": ["93.184.215.14"]})))
    *writing, reading = calls(customer, export_id := prepared(client), make_target(customer).id)
    person = ConsoleBrowser(client)
    person.sign_in(make_console_token(customer))
    open_database(f"{postgres_url}?options=-c%20default_transaction_read_only%3Don")

    refused = [call.send(client) for call in writing]
    read, page = reading.send(client), person.get(f"/exports/{export_id}")
    form = person.post(f"/exports/{export_id}/dismiss")
    thief = ConsoleBrowser(client, "Another browser")
    thief.cookie = person.cookie
    stolen = thief.get("/exports")
    close_database()

    for answer in refused:
        assert_is_error(answer, 503, "SERVICE_UNAVAILABLE")
    assert (read.status_code, page.status_code) == (200, 200)
    assert (form.status_code, stolen.status_code) == (503, 503)
    assert "<code>bin/riskrelay doctor</code>, which shows the failed component" in form.text
    assert "<h1><bdi>Service unavailable</bdi></h1>" in form.text


def fill_disk() -> None:
    """Leave the open database no space: SQLite's file cannot grow, and PostgreSQL raises its error for a full disk."""
    if is_sqlite():
        with transaction():
            [(pages,)] = rows("PRAGMA page_count")
            execute(f"PRAGMA max_page_count = {pages}")
        return
    with transaction():
        execute(
            "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
        )
        for table in ("exports", "targets", "scan_runs"):
            execute(f"CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON {table} EXECUTE FUNCTION no_room()")


def free_disk() -> None:
    """Give the open database space again."""
    with transaction():
        if is_sqlite():
            execute("PRAGMA max_page_count = 1000000")
        else:
            execute("DROP FUNCTION no_room CASCADE")


def test_with_a_full_disk_writing_requests_are_refused_with_the_reason(
    database_url: str, tmp_path: Path, log_lines: LogLines
) -> None:
    open_database(database_url)
    customer = make_customer()
    settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id)})
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({"tracker.example.com": ["93.184.215.14"]})))
    export_id = prepared(client)
    *_, reading = calls(customer, export_id, make_target(customer).id)
    ticket = {"ticket": {"title": "T", "description": "x" * 19_000}}
    writing = Call("POST", EXPORTS, (*customer.bearer.items(), *JSON.items())).with_json(ticket)

    fill_disk()
    try:
        answers = (writing.send(client) for _ in range(20))
        refused, read = next(answer for answer in answers if answer.status_code != 201), reading.send(client)
        ready, metrics = Call("GET", "/readyz").send(client), client.simulate_get("/metrics").text
    finally:
        free_disk()
    stored = writing.send(client)
    close_database()

    assert_is_error(refused, 503, "SERVICE_UNAVAILABLE")
    assert (refused.json["error"]["message"], refused.headers["Retry-After"]) == ("Service unavailable", "60")
    assert read.status_code == 200
    assert (ready.status_code, ready.json["checks"]["disk"], ready.json["checks"]["database"]) == (503, "full", "ok")
    assert "riskrelay_disk_full 1.0" in metrics
    assert "the disk is full, nothing can be stored" in log_lines.text
    assert stored.status_code == 201


@pytest.fixture
def sqlite_customer(sqlite_url: str) -> Customer:
    open_database(sqlite_url)
    with connection():
        customer = make_customer()
    close_database()
    return customer


def test_a_locked_sqlite_refuses_writers_within_their_timeout_and_no_readers(
    sqlite_url: str, sqlite_customer: Customer, tmp_path: Path
) -> None:
    """Twelve writers wait for a lock that is never released; each waits its own 5 s, not one after the other."""
    settings = environment(
        tmp_path, DATABASE_URL=sqlite_url, DEFAULT_PROJECT_ID=str(sqlite_customer.project_id), WEB_PROCESSES="1"
    )
    with Service(settings) as service:
        headers = {"X-Scanner-Secret": SCANNER_SECRET}
        export_id = service.request("POST", RESULTS, headers, postback(1)).json["ticket_exports"][0]
        # This process holds the lock that the service waits for; with isolation_level None, we send BEGIN ourselves.
        holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(12) as pool:
            began = time.monotonic()
            writers = [pool.submit(service.request, "POST", RESULTS, headers, postback(number)) for number in range(2, 14)]
            time.sleep(0.5)
            alive = service.request("GET", "/healthz")
            read = service.request("GET", f"{EXPORTS}/{export_id}", sqlite_customer.bearer)
            others_took_s = time.monotonic() - began
            refused = [writer.result() for writer in writers]
            writers_took_s = time.monotonic() - began
        holder.execute("ROLLBACK")
        holder.close()
        again = service.request("POST", RESULTS, headers, postback(2))

    assert (alive.status, read.status) == (200, 200)
    assert others_took_s < 4
    assert {answer.status for answer in refused} == {503}
    assert {answer.json["error"]["code"] for answer in refused} == {"SERVICE_UNAVAILABLE"}
    assert writers_took_s < 11
    assert again.status == 202
