"""Erasure replay: a restore repeats every erasure and request of the replaced database."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.compliance.requests import ComplianceResult, Topic
from storage.compliance import erasure, erasure_log, erasure_replay
from storage.compliance import requests as compliance_requests
from storage.compliance.erasure_log import CLIENT_KEYS, ErasedRow
from storage.compliance.erasure_replay import DamagedReplay
from storage.db.engine import execute, rows
from storage.secrets.vault import Vault
from tests.support.database.query_plans import rolled_back
from tests.support.factories import NOW, Customer
from tests.support.http.storefront import (
    ADA,
    BOB,
    PersonDataSeeder,
    cloud_client,
    give_shop,
    order,
    receive,
    stored,
    traces_of,
)
from tests.support.worker.compliance_work import run_compliance_tasks

VAULT = Vault([b"A" * 32])
#: A request as a replay file contains it, done by the replaced database.
ORDER = {
    "id": "cpl_01JNA0000000000000000000AA",
    "topic": "customers/redact",
    "shop_domain": "snow.shops.example",
    "body_sha256": "aa",
    "subject_pseudonym": "ps:1",
    "subject_sealed": None,
    "status": "done",
    "result": "redacted",
    "counts": '{"exports":1}',
    "report_sealed": None,
    "attempts": 1,
    "last_error": None,
    "due_at": 2,
    "created_at": 1,
    "finished_at": 2,
}
OPEN = {"status": "received", "result": None, "finished_at": None, "subject_sealed": "c2VhbGVk"}


@pytest.fixture
def shop(customer: Customer) -> Customer:
    return give_shop(customer)


@pytest.fixture
def client(shop: Customer, tmp_path: Path) -> TestClient:
    return cloud_client(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "redactions"


def write(file: Path, *recorded: Any) -> Path:
    lines = [{"riskrelay": "redactions", "version": 1}, *recorded, {"end": len(recorded)}]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def sealed(report: bytes | None) -> str | None:
    return None if report is None else base64.b64encode(report).decode()


def stored_requests() -> list[tuple[Any, ...]]:
    asked = "SELECT id, status, result, next_run_at IS NULL, report_sealed FROM compliance_requests ORDER BY id"
    return [(*row[:3], bool(row[3]), None if row[4] is None else bytes(row[4])) for row in rows(asked)]


def logged() -> list[ErasedRow]:
    return [line for page in erasure_log.pages() for line in page]


# --- the erasure log


def test_the_erasure_log_names_every_erased_row(client: TestClient, shop: Customer) -> None:
    made = PersonDataSeeder(client, shop).plant(ADA)
    kept = {*PersonDataSeeder(client, shop).plant(BOB).values()}
    held = {
        "evidence_captures": {row[0] for row in rows("SELECT id FROM evidence_captures WHERE page_url LIKE ?", ("%Ada%",))},
        "findings": {row[0] for row in rows("SELECT id FROM findings WHERE page_url LIKE ?", ("%88191167%",))},
        "page_results": {str(row[0]) for row in rows("SELECT id FROM page_results WHERE url LIKE ?", ("%88191167%",))},
        "inbound_emails": {row[0] for row in rows("SELECT id FROM inbound_emails WHERE sender LIKE ?", ("%Ada%",))},
        "attempts": {row[0] for row in rows("SELECT id FROM attempts WHERE answer LIKE ?", ("%Ada%",))},
    }
    request_id = receive(Topic.CUSTOMER_REDACT, VAULT, ADA)
    run_compliance_tasks(VAULT)
    named = logged()
    assert {line.request_id for line in named} == {request_id}
    assert all(held.values())
    for table, ids in held.items():
        assert {line.row_id for line in named if line.table == table} == ids
    exports = {line.row_id for line in named if line.table == "exports"}
    assert exports == {*made.values()}
    assert not exports & kept
    counts = compliance_requests.get(request_id).counts
    assert len([line for line in named if line.table == "idempotency_keys"]) == counts["idempotency_keys"]
    assert len([line for line in named if line.table == "diagnostics"]) == counts["diagnostics"]
    assert {line.row_id for line in named if line.table == CLIENT_KEYS} == {
        str(row[0]) for row in rows("SELECT id FROM idempotency_keys WHERE key LIKE ?", ("redacted:%",))
    }
    assert traces_of(ADA, "\n".join(map(repr, named)).lower()) == []


def test_an_erasure_that_is_rolled_back_is_not_logged(client: TestClient, shop: Customer) -> None:
    made = PersonDataSeeder(client, shop).plant(ADA)
    with rolled_back():
        erasure.ERASABLE_TABLES[-1].erase([made["approved"]], NOW, "cpl_1")
        assert logged() == [ErasedRow("cpl_1", "exports", made["approved"], to_ms(NOW))]
    assert logged() == []


def test_a_repeated_erasure_leaves_the_same_log(client: TestClient, shop: Customer, file: Path) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    receive(Topic.CUSTOMER_REDACT, VAULT, ADA)
    run_compliance_tasks(VAULT)
    before = logged()
    erasure_replay.save(file)
    execute("DELETE FROM redactions")
    assert erasure_replay.apply(file, utc_now())["redactions"] == len(before)
    assert sorted(map(repr, logged())) == sorted(map(repr, before))
    after = stored()
    assert erasure_replay.apply(file, utc_now())["redactions"] == 0
    assert stored() == after


def test_a_row_created_after_the_erasure_with_the_same_id_is_a_different_row(
    client: TestClient, shop: Customer, file: Path
) -> None:
    """After a restore, numeric IDs continue where the backup stopped, so a new row may have the ID of an erased one."""
    PersonDataSeeder(client, shop).plant(ADA)
    [(page_id, received_at)] = rows("SELECT id, received_at FROM page_results")
    long_ago = received_at - to_ms(NOW + erasure.CLOCKS_APART) + to_ms(NOW) - 1
    write(file, {"redaction": ["cpl_1", "page_results", str(page_id), long_ago]})
    assert erasure_replay.apply(file, utc_now())["redactions"] == 1
    assert rows("SELECT id FROM page_results") == [(page_id,)]
    # The erasure is logged anyway, because another backup may still contain the row that was meant.
    assert logged() == [ErasedRow("cpl_1", "page_results", str(page_id), long_ago)]
    write(file, {"redaction": ["cpl_1", "page_results", str(page_id), received_at]})
    erasure_replay.apply(file, utc_now())
    assert rows("SELECT id FROM page_results") == []


def test_an_idempotency_key_is_erased_only_where_the_log_says_so(client: TestClient, shop: Customer, file: Path) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    first, second = (row[0] for row in rows("SELECT id FROM idempotency_keys ORDER BY id LIMIT 2"))
    keys = dict(rows("SELECT id, key FROM idempotency_keys"))
    at = to_ms(utc_now())
    lines = [["idempotency_keys", first], [CLIENT_KEYS, first], ["idempotency_keys", second]]
    write(file, *({"redaction": ["cpl_1", table, str(row_id), at]} for table, row_id in lines))
    erasure_replay.apply(file, utc_now())
    recorded = {row[0]: row[1:] for row in rows("SELECT id, key, response_body FROM idempotency_keys")}
    assert recorded[first] == (f"redacted:{first}", erasure.ERASED_RESPONSE)
    assert recorded[second] == (keys[second], erasure.ERASED_RESPONSE)
    assert sum(body == erasure.ERASED_RESPONSE for _, body in recorded.values()) == 2


# --- the requests


@pytest.mark.parametrize(
    ("stored", "in_file", "becomes"),
    [
        # unknown in the restored database: open requests are added and run
        (None, OPEN, ("received", None)),
        # the erasure log has repeated a person's erasure already
        (None, {}, ("done", "redacted")),
        # the erasure of a shop runs again
        (None, {"topic": "shop/redact"}, ("received", None)),
        (None, {"topic": "customers/data_request", "result": "reported"}, ("done", "reported")),
        # an erasure that is open in the restored database runs there
        (OPEN, {}, ("received", None)),
        # a report is not made again
        (
            OPEN | {"topic": "customers/data_request"},
            {"topic": "customers/data_request", "result": "reported"},
            ("done", "reported"),
        ),
        # the replaced database may be the older one
        ({}, OPEN, ("done", "redacted")),
        ({}, {}, ("done", "redacted")),
    ],
)
def test_requests_take_the_newer_state_of_the_database_and_the_file(
    database: str, file: Path, stored: dict[str, Any] | None, in_file: dict[str, Any], becomes: tuple[str, str | None]
) -> None:
    if stored is not None:
        erasure_replay.apply(write(file, {"request": ORDER | stored}), NOW)
    for _ in range(2):
        erasure_replay.apply(write(file, {"request": ORDER | in_file}), NOW)
        [(_, status, result, waits_for_nothing, _)] = stored_requests()
        assert (status, result) == becomes
        assert waits_for_nothing == (status == "done")
    held = compliance_requests.claim_next(NOW)
    assert (held is not None) == (becomes[0] == "received")


@pytest.mark.parametrize(
    ("in_file", "due_at", "status"),
    [
        ({}, 2, "done"),
        # the replaced database may be the older one
        (OPEN, 1, "done"),
        # the shop came back after the backup: if its erasure was requested again, open or done, it runs here again
        (OPEN, 3, "received"),
        ({}, 3, "received"),
    ],
)
def test_a_second_erasure_of_a_shop_after_the_backup_is_repeated(
    database: str, file: Path, in_file: dict[str, Any], due_at: int, status: str
) -> None:
    of_shop = ORDER | {"topic": "shop/redact"}
    erasure_replay.apply(write(file, {"request": of_shop}), NOW)
    execute("UPDATE compliance_requests SET status = 'done', result = 'redacted', finished_at = 2, next_run_at = NULL")
    for _ in range(2):
        erasure_replay.apply(write(file, {"request": of_shop | in_file | {"due_at": due_at}}), NOW)
        assert [row[1] for row in stored_requests()] == [status]
    assert (compliance_requests.claim_next(NOW) is not None) == (status == "received")


@pytest.mark.parametrize(
    ("in_file", "is_redacted_in_file", "left"),
    [
        # both reports are the same
        (b"whole", False, b"whole"),
        # erased in the replaced database
        (None, True, None),
        # without the records of a person who was erased since
        (b"part", True, b"part"),
        # the replaced database is the older one
        (b"other", False, b"whole"),
    ],
)
def test_of_two_versions_of_a_report_the_one_redacted_later_is_kept(
    database: str, file: Path, in_file: bytes | None, is_redacted_in_file: bool, left: bytes | None
) -> None:
    asked = ORDER | {"topic": "customers/data_request", "result": "reported"}
    erasure_replay.apply(write(file, {"request": asked | {"report_sealed": sealed(b"whole")}}), NOW)
    line = {"redaction": ["cpl_2", "compliance_requests", ORDER["id"], to_ms(NOW)]}
    other = {"request": asked | {"report_sealed": sealed(in_file)}}
    for _ in range(2):
        erasure_replay.apply(write(file, other, *([line] if is_redacted_in_file else [])), NOW)
        assert [row[4] for row in stored_requests()] == [left]


def test_requests_about_two_orders_may_have_the_same_bytes(database: str, file: Path) -> None:
    first = compliance_requests.receive(*order(Topic.SHOP_REDACT), VAULT, NOW, "storefront")
    in_file = ORDER | {"topic": "shop/redact", "body_sha256": rows("SELECT body_sha256 FROM compliance_requests")[0][0]}
    erasure_replay.apply(write(file, {"request": in_file}), NOW)
    assert [row[0] for row in stored_requests()] == sorted([str(first), str(ORDER["id"])])
    assert compliance_requests.receive(*order(Topic.SHOP_REDACT), VAULT, NOW + timedelta(hours=1), "storefront") is None


def test_the_encrypted_subject_of_an_imported_request_can_be_read(database: str, file: Path) -> None:
    request_id = receive(Topic.CUSTOMER_REDACT, VAULT, ADA)
    erasure_replay.save(file)
    assert traces_of(ADA, file.read_text().lower()) == []
    execute("DELETE FROM compliance_requests")
    assert erasure_replay.apply(file, NOW) == {"requests": 1, "open": 1}
    held = compliance_requests.claim_next(utc_now())
    assert held is not None
    assert (held.id, compliance_requests.subject_of(held, VAULT)) == (request_id, ADA.subject)


def test_an_open_shop_erasure_from_the_file_is_completed(client: TestClient, shop: Customer, file: Path) -> None:
    in_file = ORDER | {"topic": "shop/redact"}
    PersonDataSeeder(client, shop).plant(ADA)
    erasure_replay.apply(write(file, {"request": in_file}), utc_now())
    run_compliance_tasks(VAULT)
    line = compliance_requests.get(str(ORDER["id"]))
    assert (line.result, line.attempts) == (ComplianceResult.REDACTED, 1)
    assert traces_of(ADA, stored()) == []


# --- the replay file


def test_the_file_is_readable_only_by_its_owner_and_complete(client: TestClient, shop: Customer, file: Path) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    receive(Topic.CUSTOMER_REDACT, VAULT, ADA)
    run_compliance_tasks(VAULT)
    receive(Topic.CUSTOMER_REDACT, VAULT, BOB)
    count = erasure_replay.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.glob("*redactions*")] == [file.name]
    erasure_replay.require_intact(file)
    assert list(erasure_replay.erasures_in(file)) == logged()
    assert count == len(logged()) + 2 == len(file.read_text().splitlines()) - 2
    assert traces_of(ADA, file.read_text().lower()) == []


def damaged() -> Iterator[tuple[str, str]]:
    whole = ['{"riskrelay":"redactions","version":1}\n', '{"redaction":["cpl_1","exports","exp_1",1]}\n', '{"end":1}\n']
    yield "".join(whole[:2]), "cut off"
    yield "", "cut off"
    yield whole[0] + whole[1][:20], "line 2 is damaged"
    yield "".join(whole[1:]), "begin"
    yield whole[0] + whole[2], "lines are missing"
    yield whole[0] + '{"redaction":["cpl_1","accounts","1",1]}\n{"end":1}\n', "line 2 is damaged"
    yield whole[0] + '{"redaction":["cpl_1","exports"]}\n{"end":1}\n', "line 2 is damaged"
    yield whole[0] + '{"request":{"id":"cpl_1"}}\n{"end":1}\n', "line 2 is damaged"
    yield whole[0] + "[1]\n", "line 2 is damaged"
    yield '{"riskrelay":"redactions","version":2}\n{"end":0}\n', "begin"
    yield "\x00\xff", "line 1 is damaged"


@pytest.mark.parametrize(("text", "why"), list(damaged()), ids=range(11))
def test_an_incomplete_file_is_rejected(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    with pytest.raises(DamagedReplay, match=why):
        erasure_replay.require_intact(file)


def test_bytes_that_are_not_text_are_rejected(file: Path) -> None:
    file.write_bytes(b"PGDMP\xff\xfe\x00")
    with pytest.raises(DamagedReplay):
        erasure_replay.require_intact(file)


def test_a_long_erasure_log_is_read_and_repeated_slice_by_slice(database: str, file: Path) -> None:
    lines = [ErasedRow("cpl_1", "exports", f"exp_{number:05}", 1) for number in range(3 * erasure.SLICE + 1)]
    write(file, *({"redaction": [line.request_id, line.table, line.row_id, line.erased_at_ms]} for line in lines))
    assert erasure_replay.apply(file, NOW)["redactions"] == len(lines)
    assert logged() == lines
    assert erasure_log.missing([*lines, replace(lines[0], row_id="exp_new")]) == [replace(lines[0], row_id="exp_new")]
