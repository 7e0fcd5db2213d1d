"""Receipts of real deliveries: they are valid, every change of one is found, and none contains a secret."""

import copy
import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import pytest

from bin.commands.exports.receipt import _forms as forms
from bin.commands.exports.receipt import _signature_check as signature_check
from schemas.audit.chain import ChainVerification
from schemas.base.errors import Conflict, ExportNotFound
from schemas.exports.receipt import ReceiptReport, attempt_digest, verify_receipt
from schemas.exports.tickets.ticket import digest
from storage.accounts import audit_chain
from storage.db.engine import execute, rows, transaction
from storage.exports import queries, receipts, transitions
from storage.secrets.vault import Vault
from storage.targets import webhook_secrets
from storage.triage import targeting
from tests.support.factories import (
    DEFAULT_SECRET,
    LOOPBACK_POLICY,
    NOW,
    WEBHOOK_SECRET,
    Customer,
    make_approved,
    make_customer,
    make_target,
)
from tests.support.worker.receipts import ANSWER, KEY, WORKER, attempt_once, deliver, receipt_of

STANDARD_SECRET: Final = f"whsec_{b64encode(b's' * 32).decode()}"


def report_of(receipt: Any, secret: str | None = None, log: Any = None) -> ReceiptReport:
    check = None if secret is None else signature_check(receipt["export_id"], secret)
    return verify_receipt(receipt, forms, check, log)


def log() -> list[dict[str, Any]]:
    return list(audit_chain.lines(ChainVerification({})))


def test_a_receipt_shows_what_was_approved_sent_and_accepted(customer: Customer) -> None:
    export_id = deliver(customer)
    receipt, export = receipt_of(export_id), queries.get(export_id)
    body = queries.get_frozen_body(export_id, customer.account_id).body or b""
    assert receipt["ticket_digest"] == export.ticket_digest == digest(json.loads(receipt["body"])["ticket"])
    assert (receipt["approved_by"], receipt["body"].encode()) == ("user:test", body)
    assert [each["response_status"] for each in receipt["attempts"]] == [503, 201]
    for attempt in receipt["attempts"]:
        assert attempt["body_sha256"] == receipt["body_sha256"] == hashlib.sha256(body).hexdigest()
        assert attempt["response_sha256"] == hashlib.sha256(ANSWER).hexdigest()
        assert attempt["address_class"] == "address_documentation"
    actions = [entry["action"] for entry in receipt["audit_entries"]]
    assert actions == ["prepare", "approve", "claim", "reschedule", "claim", "deliver"]
    assert receipt["audit_entries"][-1]["digest"] == attempt_digest(receipt["attempts"][-1])
    report = report_of(receipt, WEBHOOK_SECRET, log())
    assert (report.problems, report.notes, report.signatures) == ([], [], 2)


def test_signatures_need_the_secret_that_signed(customer: Customer) -> None:
    receipt = receipt_of(deliver(customer))
    assert "Attempt 1 was not signed with this secret." in report_of(receipt, "another secret").problems
    report = report_of(receipt, STANDARD_SECRET)
    assert (report.problems, len(report.notes), report.signatures) == ([], 2, 0)


@pytest.mark.parametrize("body_format", ["cloudevents", "cloudevents-binary", "sarif", "ticket"])
def test_the_bytes_of_each_format_are_recognized(customer: Customer, body_format: str) -> None:
    target = make_target(customer)
    webhook_secrets.set_standard_secret(target.id, STANDARD_SECRET, Vault([KEY]), DEFAULT_SECRET, NOW, "operator")
    execute("UPDATE targets SET signature = 'both', format = ? WHERE id = ?", (body_format, target.id))
    receipt = receipt_of(deliver(customer, (201,), target.id))
    for secret in (WEBHOOK_SECRET, STANDARD_SECRET):
        report = report_of(receipt, secret)
        assert (report.problems, report.notes, report.signatures) == ([], [], 1)


def test_no_secret_and_no_host_reaches_a_receipt(customer: Customer) -> None:
    target = make_target(customer)
    webhook_secrets.set_standard_secret(target.id, STANDARD_SECRET, Vault([KEY]), DEFAULT_SECRET, NOW, "operator")
    execute("UPDATE targets SET signature = 'both' WHERE id = ?", (target.id,))
    text = json.dumps([receipt_of(deliver(customer, target_id=target.id)), log()])
    for secret in (WEBHOOK_SECRET, STANDARD_SECRET, STANDARD_SECRET.removeprefix("whsec_"), "for Ada alone"):
        assert secret not in text
    receipt = json.dumps(receipt_of(deliver(customer)))
    assert WORKER not in receipt
    assert "host-of-ours" not in receipt
    assert "192.0.2.1" not in receipt


def members(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value that is not an object or a list with members."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not parts:
        yield path
    for name, part in parts:
        yield from members(part, (*path, name))


def changed(receipt: Any, path: tuple[str | int, ...], new: Any) -> Any:
    made = copy.deepcopy(receipt)
    *parents, last = path
    part = made
    for name in parents:
        part = part[name]
    part[last] = new
    return made


def other_values(value: Any) -> list[Any]:
    if isinstance(value, int):
        return [value + 1, None]
    if isinstance(value, str):
        return [f"{value}x", f"{'b' if value[:1] != 'b' else 'c'}{value[1:]}", None, 7, [value]]
    return ["x", 7]


def test_every_changed_member_is_found(customer: Customer) -> None:
    receipt = receipt_of(deliver(customer))
    paths = list(members(receipt))
    assert len(paths) > 80
    # An actor may be missing: its hash is still in the receipt.
    left_out = [("audit_entries", number, "actor") for number in range(len(receipt["audit_entries"]))]
    for path in paths:
        *_, last = path
        value: Any = receipt
        for name in path:
            value = value[name]
        for new in other_values(value):
            if new is None and path in left_out and path[1] != 1:
                continue
            assert report_of(changed(receipt, path, new)).problems, (path, new)
        made = copy.deepcopy(receipt)
        parent: Any = made
        for name in path[:-1]:
            parent = parent[name]
        del parent[last]
        assert report_of(made).problems, ("without", path)
        if isinstance(parent, dict):
            assert report_of(changed(receipt, (*path[:-1], "more"), 1)).problems


def test_attempts_and_entries_are_neither_added_removed_nor_reordered(customer: Customer) -> None:
    receipt = receipt_of(deliver(customer, (503, 503, 201)))
    attempts, entries = receipt["attempts"], receipt["audit_entries"]
    assert report_of({**receipt, "attempts": attempts[1:]}).problems
    assert report_of({**receipt, "attempts": attempts[:-1]}).problems
    assert report_of({**receipt, "attempts": [*attempts, attempts[0]]}).problems
    assert report_of({**receipt, "attempts": [{**attempts[0], "nonce": "cd" * 16}, *attempts]}).problems
    assert report_of({**receipt, "audit_entries": [*entries[:2], entries[3], entries[2], *entries[4:]]}).problems
    for number in range(len(entries)):
        without = {**receipt, "audit_entries": entries[:number] + entries[number + 1 :]}
        assert report_of(without, log=log()).problems
        # Without the log, a receipt proves that nothing in it was changed, and that the approval and results are complete.
        assert bool(report_of(without).problems) is (entries[number]["digest"] is not None)


def test_a_recreated_receipt_differs_from_the_audit_log(customer: Customer) -> None:
    receipt = receipt_of(deliver(customer))
    genuine = log()
    execute("UPDATE audit_entries SET position = NULL, hash = NULL, actor = 'user:8' WHERE action = 'approve'")
    execute("UPDATE audit_entries SET position = NULL, hash = NULL")
    forged = receipt_of(receipt["export_id"])
    assert forged["approved_by"] == "user:8"
    assert report_of(forged).problems == []
    assert report_of(forged, log=genuine).problems == ["The audit log has other entries about this export."]
    assert "The audit log: " in report_of(receipt, log=genuine[1:]).problems[0]


def test_a_changed_attempt_in_the_database_is_detected_in_the_receipt(customer: Customer) -> None:
    export_id = deliver(customer)
    stored = "started_at = started_at + 1", "nonce = 'ab'", "signature = 'sha256=0'", "response_status = 200"
    more = "outcome = 'rejected'", "body_sha256 = NULL", "response_sha256 = ''", "address_class = 'public'", "number = 5"
    for change in (*stored, *more):
        before = rows("SELECT started_at, nonce, signature, response_status, outcome FROM attempts ORDER BY number")
        with transaction():
            copied = rows("SELECT * FROM attempts WHERE number = 2")
            execute(f"UPDATE attempts SET {change} WHERE number = 2")  # noqa: S608 - our own words
            assert report_of(receipt_of(export_id)).problems, change
            execute("DELETE FROM attempts WHERE number IN (2, 5)")
            execute(f"INSERT INTO attempts VALUES ({', '.join('?' * len(copied[0]))})", copied[0])  # noqa: S608 - marks
        assert rows("SELECT started_at, nonce, signature, response_status, outcome FROM attempts ORDER BY number") == before
    assert report_of(receipt_of(export_id)).problems == []


def test_only_an_exported_export_of_the_account_has_a_receipt(customer: Customer) -> None:
    waiting = make_approved(customer, make_target(customer).id)
    with pytest.raises(Conflict, match="is approved; a receipt needs the status exported"):
        receipts.read(waiting, customer.account_id)
    attempt_once(201, NOW)
    with pytest.raises(Conflict, match="not in the chain yet") as raised:
        receipts.read(waiting, customer.account_id)
    assert raised.value.retry_after_s == receipts.RETRY_AFTER_S
    audit_chain.extend_to_end()
    assert receipts.read(waiting, customer.account_id)["export_id"] == waiting
    for export_id, account_id in ((waiting, make_customer().account_id), ("exp_nothing", None)):
        with pytest.raises(ExportNotFound):
            receipts.read(export_id, account_id)


def test_a_redaction_leaves_the_hashes(customer: Customer) -> None:
    export_id = deliver(customer)
    before = receipt_of(export_id)
    with transaction():
        transitions.redact([export_id], NOW + timedelta(days=1), "cpl_1")
    receipt = receipt_of(export_id)
    assert (receipt["body"], receipt["body_sha256"], receipt["target_id"]) == (None, None, None)
    assert (receipt["ticket_digest"], receipt["attempts"]) == (before["ticket_digest"], before["attempts"])
    report = report_of(receipt, WEBHOOK_SECRET, log())
    assert report.problems == []
    assert [note.partition(":")[0] for note in report.notes] == ["Which ticket the bytes contained", "The signatures"]
    assert report_of({**receipt, "body_sha256": before["body_sha256"]}).problems
    assert report_of({**receipt, "target_id": before["target_id"]}).problems


def test_attempts_at_a_former_target_sent_other_bytes(customer: Customer) -> None:
    export_id, other = deliver(customer, (404,)), make_target(customer)
    with transaction():
        at = NOW + timedelta(hours=2)
        targeting.retry_elsewhere(export_id, customer.account_id, other.id, at, "user:test", LOOPBACK_POLICY)
    attempt_once(201, at)
    receipt = receipt_of(export_id)
    report = report_of(receipt, WEBHOOK_SECRET)
    assert (report.problems, report.signatures, len(report.notes)) == ([], 1, 1)
    assert "other bytes were sent" in report.notes[0]
    assert receipt["target_id"] == other.id


def test_a_delivery_from_before_the_upgrade_is_shown_as_unproven(customer: Customer) -> None:
    export_id = deliver(customer)
    execute("UPDATE audit_entries SET digest = NULL")
    execute("UPDATE attempts SET signature = NULL, body_sha256 = NULL, response_sha256 = NULL, address_class = NULL")
    report = report_of(receipt_of(export_id))
    assert report.problems == []
    assert len(report.notes) == 2


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        "receipt",
        {},
        {"type": "riskrelay.delivery_receipt"},
        {"attempts": 7},
        {"audit_entries": [7]},
        {"body": "[" * 100_000},
        {"body": "{}"},
        {"body": "\ud800"},
        {"audit_entries": []},
        {"attempts": []},
    ],
)
def test_any_document_that_is_not_a_receipt_is_refused(customer: Customer, content: Any) -> None:
    receipt = receipt_of(deliver(customer, (201,)))
    if isinstance(content, Mapping) and content.keys() <= receipt.keys() and content.keys() - {"type"}:
        content = {**receipt, **content}
        content["body_sha256"] = hashlib.sha256(content["body"].encode(errors="surrogatepass")).hexdigest()
    report = verify_receipt(content, forms, lambda _attempt, _body: hmac.compare_digest("a", "b"), [])
    assert report.problems
