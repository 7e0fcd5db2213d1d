"""The worker's task imports uploaded reports as if their scanner had posted the pages, and survives kills and bad files."""

import json
from collections.abc import Callable
from datetime import datetime
from itertools import count
from typing import Any

import pytest

from schemas.intake.report_uploads import ReportUpload, UploadError
from schemas.report_files.formats import recognize
from schemas.targets.target import Target
from schemas.triage.approval_rules import RuleAction, RuleActionType
from storage.db.engine import execute, rows
from storage.exports.rules.rule_evaluation import LEFT_TO_WORKERS, ApprovalRules
from storage.intake import report_uploads
from storage.intake.options import IntakeOptions
from storage.intake.report_uploads import LEASE_S
from storage.secrets.vault import Vault
from tests.support.factories import LOOPBACK_POLICY, Customer, in_s, make_report_upload, make_rule
from tests.support.scan_reports import FILES, imported
from worker.background.batches.report_uploads import ReportUploadTask

VAULT = Vault([b"A" * 32])


def clock(begin_s: float = 0) -> Callable[[], datetime]:
    """Return a clock that advances by a tenth of a second each time it is read."""
    ticks = count()
    return lambda: in_s(begin_s + next(ticks) / 10)


def task(rules: ApprovalRules = LEFT_TO_WORKERS, vault: Vault = VAULT, begin_s: float = 0) -> ReportUploadTask:
    return ReportUploadTask(vault, IntakeOptions(rules=rules), clock(begin_s))


def work(worker: ReportUploadTask) -> None:
    while worker.run_once():
        pass


def result(upload: ReportUpload, customer: Customer) -> ReportUpload:
    return report_uploads.get(upload.id, customer.account_id)


@pytest.mark.parametrize("name", FILES)
def test_each_format_is_recognized_and_imported(name: str, customer: Customer) -> None:
    content = FILES[name].read_bytes()
    assert recognize(content) == name
    upload = make_report_upload(customer, content, name)
    work(task())
    found, expected = result(upload, customer), imported(name)
    assert (found.status, found.done, found.total, found.refused) == (
        "done",
        len(expected.postbacks),
        len(expected.postbacks),
        0,
    )
    assert (found.new_findings, found.tickets) == (expected.issues, expected.issues)
    assert rows("SELECT COUNT(*) FROM findings") == [(expected.issues,)]
    assert rows("SELECT DISTINCT scan_run_id FROM page_results") == [(upload.scan_run_id,)]
    assert rows("SELECT COUNT(*) FROM report_uploads WHERE content_sealed IS NOT NULL") == [(0,)]


def test_a_file_uploaded_twice_prepares_its_tickets_once(customer: Customer) -> None:
    content = FILES["zap"].read_bytes()
    uploads = [make_report_upload(customer, content, "zap") for _ in range(2)]
    work(task())
    # Uploads of the same millisecond have no defined order.
    second, first = sorted((result(each, customer) for each in uploads), key=lambda each: each.new_findings)
    assert (second.new_findings, second.seen_findings, second.tickets) == (0, first.new_findings, 0)
    assert rows("SELECT COUNT(*), MAX(times_seen) FROM findings") == [(first.new_findings, 1)]


def test_another_worker_continues_after_a_kill(customer: Customer) -> None:
    content = FILES["nuclei"].read_bytes()
    upload = make_report_upload(customer, content, "nuclei")
    killed = task()
    # The task claims and reads the report, and stores one postback.
    assert [killed.run_once(), killed.run_once()] == [True, True]
    assert result(upload, customer).done == 1
    other = task(begin_s=LEASE_S + 1)
    work(other)
    found, expected = result(upload, customer), imported("nuclei")
    assert (found.status, found.new_findings, found.seen_findings) == ("done", expected.issues, 0)
    # If the first worker was not killed but only slow, it stores nothing more.
    work(killed)
    assert result(upload, customer) == found
    assert rows("SELECT MAX(times_seen) FROM findings") == [(1,)]


@pytest.mark.parametrize("done", [1, 500])
def test_a_report_that_another_version_read_differently_fails_and_holds_up_no_other(customer: Customer, done: int) -> None:
    begun = make_report_upload(customer, FILES["nuclei"].read_bytes(), "nuclei")
    execute("UPDATE report_uploads SET done = ?, total = 600 WHERE id = ?", (done, begun.id))
    other = make_report_upload(customer, FILES["zap"].read_bytes(), "zap")
    work(task())
    assert [result(each, customer).status for each in (begun, other)] == ["failed", "done"]


def test_an_approval_by_a_rule_wakes_the_workers(customer: Customer, target: Target) -> None:
    make_rule(customer, RuleAction(RuleActionType.APPROVE, target_id=target.id))
    upload = make_report_upload(customer, FILES["zap"].read_bytes(), "zap")
    woken: list[int] = []
    work(task(ApprovalRules(LOOPBACK_POLICY, lambda: woken.append(1))))
    assert len(woken) == result(upload, customer).done
    assert rows("SELECT COUNT(*) FROM exports WHERE status = 'approved'") == [(result(upload, customer).tickets,)]


def test_a_page_with_forbidden_content_is_refused_with_the_reason_and_the_others_are_imported(customer: Customer) -> None:
    def match(url: str, name: str) -> dict[str, Any]:
        return {"template-id": "t", "matched-at": url, "info": {"name": name, "severity": "high"}}

    # The title identifies an issue, so it is posted even though evidence with such content would be left out.
    lines = [match("https://shop.example/a", "Card 4111 1111 1111 1111"), match("https://shop.example/b", "A header")]
    upload = make_report_upload(customer, json.dumps(lines).encode(), "nuclei")
    work(task())
    found = result(upload, customer)
    assert (found.status, found.done, found.new_findings, found.refused) == ("done", 2, 1, 1)
    [[url, reason]] = found.left_out
    assert url == "https://shop.example/a"
    assert "4111" not in reason


@pytest.mark.parametrize("path", ["pay/4111111111111111", "reset/sk_live_4eC39HqLyjWDarjtT1zdp7dc"])
def test_a_page_whose_url_has_forbidden_content_is_refused_without_its_url(customer: Customer, path: str) -> None:
    match = {"template-id": "t", "matched-at": f"https://shop.example/{path}", "info": {"name": "n", "severity": "high"}}
    upload = make_report_upload(customer, json.dumps([match]).encode(), "nuclei")
    work(task())
    found = result(upload, customer)
    assert (found.status, found.refused) == ("done", 1)
    [[url, reason]] = found.left_out
    assert url == ""
    assert path.rpartition("/")[2] not in reason
    assert path not in str(rows("SELECT left_out FROM report_uploads"))


def test_a_report_without_issues_ends_at_once(customer: Customer) -> None:
    upload = make_report_upload(customer, b"[]", "nuclei")
    work(task())
    found = result(upload, customer)
    assert (found.status, found.total, found.done, found.new_findings) == ("done", 0, 0, 0)


@pytest.mark.parametrize(
    ("content", "format_", "reason"),
    [
        (b'[{"template-id": "t", "info": 7}]', "nuclei", "/0/info is not an object."),
        (b'{"site": {}}', "zap", "The file is not a ZAP report"),
    ],
)
def test_an_unreadable_report_fails_with_the_reason_and_the_next_is_imported(
    content: bytes, format_: str, reason: str, customer: Customer
) -> None:
    bad = make_report_upload(customer, content, format_)
    good = make_report_upload(customer, FILES["zap"].read_bytes(), "zap")
    work(task())
    found = result(bad, customer)
    assert (found.status, found.error) == ("failed", UploadError.UNREADABLE)
    assert reason in found.left_out[0][1]
    assert result(good, customer).status == "done"


def test_a_report_that_no_key_can_decrypt_fails(customer: Customer) -> None:
    upload = make_report_upload(customer)
    work(task(vault=Vault([b"B" * 32])))
    assert result(upload, customer).error is UploadError.KEY_MISSING


def test_without_an_upload_the_task_does_nothing(database: str) -> None:
    assert database
    assert not task().run_once()
