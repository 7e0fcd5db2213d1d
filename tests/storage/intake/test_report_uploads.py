"""An uploaded report is imported once, one postback at a time, even if its worker is killed; then its content is erased."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from schemas.base.errors import Conflict, NotFound, ValidationFailed, WrongEncryptionKey
from schemas.content_policy.checked_form import read_checked
from schemas.intake.report_uploads import ReportUpload, ReportUploadStatus, UploadError
from schemas.intake.scanner import PostbackForm
from storage.accounts import users
from storage.accounts.account_limits import UNLIMITED, AccountLimits, Limited
from storage.compliance.erasure import ERASABLE_TABLES
from storage.db.engine import execute, rows, transaction
from storage.db.leases import JobLease, LeasedJobs
from storage.db.models import ReportUploadRow
from storage.intake import findings, report_uploads
from storage.intake.options import IntakeOptions
from storage.intake.report_uploads import LEASE_S, MAX_WAITING, NewReportUpload, RefusedPostback
from storage.secrets.vault import Vault
from tests.support.factories import NOW, Customer, in_s, issue, make_customer, make_project, make_report_upload, postback

VAULT = Vault([b"A" * 32])
CONTENT = '[{"a": "\N{LATIN SMALL LETTER E WITH ACUTE}"}]'.encode() + bytes(range(256))
REFUSED = RefusedPostback("https://shop.example/refused", "This value contains a payment card number.")


def new(customer: Customer, **changes: Any) -> NewReportUpload:
    members: dict[str, Any] = {
        "account_id": customer.account_id,
        "project_id": customer.project_id,
        "user_id": customer.user_id,
        "file_name": "zap.json",
        "format": "zap",
        "content": CONTENT,
        "scan_run_id": 7,
        "is_new_run": True,
        "actor": f"user:{customer.user_id}",
    }
    return NewReportUpload(**{**members, **changes})


def claimed(now: datetime = NOW) -> JobLease:
    lease = report_uploads.claim_next(now)
    assert lease is not None
    return lease


def posted(customer: Customer, upload: ReportUpload, *codes: str) -> findings.PreparedPostback:
    body = postback(upload.scan_run_id, [issue(code) for code in codes])
    return findings.prepare_postback(read_checked(PostbackForm(), body), customer.project_id)


def record(lease: JobLease, number: int, total: int, page: Any, now: datetime = NOW, limits: Any = UNLIMITED) -> bool:
    return report_uploads.record(lease, number, total, page, now, IntakeOptions(limits))


def counts(upload_id: str, customer: Customer) -> tuple[Any, ...]:
    found = report_uploads.get(upload_id, customer.account_id)
    return found.status, found.total, found.done, found.new_findings, found.seen_findings, found.tickets, found.refused


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Require that an upload is refused with this message."""
    with pytest.raises(ValidationFailed) as failed:
        yield
    assert message in failed.value.problems[0].message


def stored_content(upload_id: str) -> Any:
    return rows("SELECT content_sealed FROM report_uploads WHERE id = ?", (upload_id,))[0][0]


def test_a_report_is_stored_encrypted_and_read_by_its_holder_alone(customer: Customer) -> None:
    upload = report_uploads.create(new(customer), NOW, VAULT, UNLIMITED)
    assert (upload.status, upload.total, upload.done) == (ReportUploadStatus.WAITING, None, 0)
    assert CONTENT[:8] not in bytes(stored_content(upload.id))
    lease = claimed()
    assert report_uploads.claim_next(NOW) is None
    assert report_uploads.content(lease, VAULT) == CONTENT
    with pytest.raises(WrongEncryptionKey):
        report_uploads.content(lease, Vault([b"B" * 32]))
    assert report_uploads.held(JobLease(upload.id, "lse_other")) is None


def test_postbacks_their_counts_and_refusals_are_stored_and_the_content_is_erased(customer: Customer) -> None:
    upload = report_uploads.create(new(customer), NOW, VAULT, UNLIMITED)
    lease = claimed()
    assert report_uploads.begin(lease, 3, ["2 issues without a valid http or https URL"], NOW)
    assert record(lease, 0, 3, posted(customer, upload, "a", "b"), in_s(1))
    assert record(lease, 1, 3, REFUSED, in_s(2))
    assert not record(lease, 2, 3, posted(customer, upload, "b", "c"), in_s(3))
    assert counts(upload.id, customer) == ("done", 3, 3, 3, 1, 3, 1)
    ended = report_uploads.get(upload.id, customer.account_id)
    assert ended.left_out == [["", "2 issues without a valid http or https URL"], [REFUSED.url, REFUSED.reason]]
    assert (ended.finished_at, stored_content(upload.id)) == (in_s(3), None)
    assert not LeasedJobs(ReportUploadRow).any_waiting(in_s(1000))
    audited = rows("SELECT action FROM audit_entries WHERE subject_id = ? ORDER BY id", (upload.id,))
    assert [row[0] for row in audited] == ["upload_report", "finish_report_import"]


def test_another_worker_continues_where_a_killed_one_stopped_and_nothing_counts_twice(customer: Customer) -> None:
    upload = report_uploads.create(new(customer), NOW, VAULT, UNLIMITED)
    killed = claimed()
    report_uploads.begin(killed, 2, ["skipped"], NOW)
    first, second = posted(customer, upload, "a"), posted(customer, upload, "b")
    assert record(killed, 0, 2, first)
    assert report_uploads.claim_next(in_s(LEASE_S - 1)) is None
    lease = claimed(in_s(LEASE_S))
    held = report_uploads.held(lease)
    assert held is not None
    assert held.done == 1
    assert report_uploads.begin(lease, 2, ["skipped"], in_s(LEASE_S))
    # A stored postback is not stored again, neither by the former holder of the lease nor by the present one.
    assert not record(killed, 1, 2, second, in_s(LEASE_S))
    assert not record(lease, 0, 2, first, in_s(LEASE_S))
    assert counts(upload.id, customer) == ("running", 2, 1, 1, 0, 1, 0)
    assert not record(lease, 1, 2, second, in_s(LEASE_S + 1))
    assert counts(upload.id, customer) == ("done", 2, 2, 2, 0, 2, 0)
    assert rows("SELECT COUNT(*), MAX(times_seen) FROM findings") == [(2, 1)]


def test_a_page_at_the_accounts_limit_is_refused_with_the_reason_and_the_others_go_on(customer: Customer) -> None:
    upload = report_uploads.create(new(customer), NOW, VAULT, UNLIMITED)
    lease = claimed()
    report_uploads.begin(lease, 2, [], NOW)
    limits = AccountLimits({Limited.FINDINGS: 1})
    assert record(lease, 0, 2, posted(customer, upload, "a", "b"), in_s(1), limits)
    assert not record(lease, 1, 2, posted(customer, upload, "c"), in_s(5), limits)
    assert counts(upload.id, customer) == ("done", 2, 2, 1, 0, 1, 1)
    [[_, reason]] = report_uploads.get(upload.id, customer.account_id).left_out
    assert "MAX_FINDINGS_PER_ACCOUNT" in reason


def test_a_scan_run_of_another_project_is_never_written(customer: Customer) -> None:
    other = make_customer()
    report_uploads.create(new(other), NOW, VAULT, UNLIMITED)
    for is_new_run in (True, False):
        with refused("has no scan run 7"):
            report_uploads.create(new(customer, is_new_run=is_new_run), NOW, VAULT, UNLIMITED)
    with refused("has no scan run 8"):
        report_uploads.create(new(customer, scan_run_id=8, is_new_run=False), NOW, VAULT, UNLIMITED)
    with pytest.raises(NotFound):
        report_uploads.create(new(customer, project_id=other.project_id), NOW, VAULT, UNLIMITED)
    assert rows("SELECT account_id FROM report_uploads") == [(other.account_id,)]


def test_an_import_stops_once_its_run_is_another_projects(customer: Customer) -> None:
    upload = report_uploads.create(new(customer), NOW, VAULT, UNLIMITED)
    lease, page = claimed(), posted(customer, upload, "a")
    report_uploads.begin(lease, 1, [], NOW)
    execute("UPDATE scan_runs SET project_id = ?", (make_project(customer),))
    assert not record(lease, 0, 1, page)
    assert report_uploads.get(upload.id, customer.account_id).error is UploadError.RUN_TAKEN
    assert rows("SELECT COUNT(*) FROM findings") == [(0,)]


def test_an_import_stops_once_its_user_is_disabled(customer: Customer) -> None:
    upload = report_uploads.create(new(customer), NOW, VAULT, UNLIMITED)
    lease, page = claimed(), posted(customer, upload, "a")
    report_uploads.begin(lease, 1, [], NOW)
    users.disable(customer.email, NOW, "operator")
    assert not record(lease, 0, 1, page)
    assert counts(upload.id, customer)[0] == "failed"
    assert stored_content(upload.id) is None


def test_few_reports_of_an_account_wait_and_uploads_of_a_day_are_limited(customer: Customer) -> None:
    for _ in range(MAX_WAITING):
        make_report_upload(customer)
    with pytest.raises(Conflict, match="5 uploaded reports"):
        make_report_upload(customer)
    other = make_customer()
    limits = AccountLimits({Limited.UPLOADS: 1})
    report_uploads.create(new(other), NOW, VAULT, limits)
    with refused("MAX_UPLOADS_PER_DAY"):
        report_uploads.create(new(other), NOW, VAULT, limits)
    used = {account: usage[0].used for account, usage in limits.usage([customer.account_id, other.account_id], NOW).items()}
    assert used == {customer.account_id: MAX_WAITING, other.account_id: 1}


def test_an_upload_is_visible_only_to_its_account(customer: Customer) -> None:
    upload, other = make_report_upload(customer), make_customer()
    with pytest.raises(NotFound):
        report_uploads.get(upload.id, other.account_id)
    assert [each.id for each in report_uploads.list_newest(customer.account_id, 5)] == [upload.id]
    assert report_uploads.list_newest(other.account_id, 5) == []


def test_a_redaction_erases_the_content_of_a_waiting_upload_and_ends_its_import(customer: Customer) -> None:
    upload = make_report_upload(customer)
    lease = claimed()
    [table] = [each for each in ERASABLE_TABLES if each.name == "report_uploads"]
    with transaction():
        assert table.erase([upload.id], in_s(1), "compliance") == {"report_uploads": 1}
    found = report_uploads.get(upload.id, customer.account_id)
    assert (found.status, found.error, found.file_name) == ("failed", UploadError.ERASED, "")
    assert stored_content(upload.id) is None
    assert not report_uploads.begin(lease, 1, [], in_s(2))
