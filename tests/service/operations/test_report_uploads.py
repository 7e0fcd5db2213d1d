"""The scan run ID that comes with an uploaded report is read as a whole, whatever its length."""

import json
import time
from base64 import b64decode
from typing import Final

import pytest

from schemas.base.errors import ValidationFailed
from schemas.base.fields import MAX_ID
from schemas.base.principal import TokenKind, TokenPrincipal
from schemas.intake.report_uploads import MAX_FILE_BYTES, ReportUpload
from schemas.intake.scanner import PostbackForm
from service.operations.report_uploads import ReportUploadOperations
from storage.accounts.account_limits import UNLIMITED
from storage.db.engine import rows
from storage.secrets.vault import Vault
from tests.support.database.databases import on_sqlite
from tests.support.factories import ENCRYPTION_KEY, Customer, postback, record_postback
from tests.support.scan_reports import FILES

ZAP: Final = FILES["zap"].read_bytes()


def upload(customer: Customer, scan_run_id: str, *newer_keys: bytes, content: bytes = ZAP) -> ReportUpload:
    principal = TokenPrincipal(1, customer.user_id, customer.account_id, TokenKind.API, frozenset(), may_use_webhooks=True)
    operations = ReportUploadOperations(Vault([*newer_keys, b64decode(ENCRYPTION_KEY)]), UNLIMITED)
    return operations.upload(str(customer.project_id), scan_run_id, "report.json", content, principal)


@on_sqlite
@pytest.mark.parametrize(
    "number",
    ["0", "-1", "1.5", "\u0661", str(MAX_ID + 1), f"{'0' * 19}1{'9' * 30}", f"{'0' * 19}1{'9' * 5000}", "0" * 5000],
    ids=len,
)
def test_an_invalid_scan_run_id_is_rejected(customer: Customer, number: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        upload(customer, number)
    assert [(each.path, each.code) for each in refused.value.problems] == [("/scan_run_id", "invalid_type")]
    assert rows("SELECT COUNT(*) FROM report_uploads") == [(0,)]


@on_sqlite
@pytest.mark.parametrize("number", ["42", " 42 ", "0042"])
def test_a_scan_run_id_may_have_leading_zeros_and_surrounding_spaces(customer: Customer, number: str) -> None:
    record_postback(PostbackForm().read(postback(42)), customer.project_id)
    upload(customer, number)
    assert rows("SELECT scan_run_id FROM report_uploads") == [(42,)]


@on_sqlite
def test_the_scan_run_id_of_a_file_is_stable_and_depends_on_the_encryption_key(customer: Customer) -> None:
    # Otherwise an attacker could make a file whose ID is that of a later run of the scanner, and so receive its results.
    upload(customer, "")
    upload(customer, "")
    [(number,)] = rows("SELECT DISTINCT scan_run_id FROM report_uploads")
    upload(customer, "", bytes(32))
    assert len({*rows("SELECT scan_run_id FROM report_uploads")} - {(number,)}) == 1


@on_sqlite
def test_a_file_of_empty_arrays_is_refused_before_it_stops_the_service(customer: Customer) -> None:
    content = b'{"version":"2.1.0","runs":[' + b"[[[[[]]]]]," * (MAX_FILE_BYTES // 11 - 10) + b"0]}"
    started = time.process_time()
    with pytest.raises(ValidationFailed) as refused:
        upload(customer, "", content=content)
    assert time.process_time() - started < 1  # measured: 60 ms; parsing takes 2.5 s, during which no request is served
    assert [(each.path, each.code) for each in refused.value.problems] == [("/report", "invalid_report")]
    assert "400,000 values" in refused.value.problems[0].message


@on_sqlite
def test_a_report_of_the_largest_size_is_accepted(customer: Customer) -> None:
    page = {"physicalLocation": {"artifactLocation": {"uri": "https://shop.example/"}}}
    result = {"ruleId": "a", "level": "note", "message": {"text": "A title"}, "locations": [page]}
    report = {"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "Tool"}}, "results": [result] * 32_000}]}
    content = json.dumps(report).encode()
    assert MAX_FILE_BYTES * 0.9 < len(content) < MAX_FILE_BYTES
    assert upload(customer, "", content=content).format == "sarif"
