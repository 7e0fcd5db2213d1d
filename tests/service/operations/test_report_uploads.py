"""The number of a scan run that comes with an uploaded report is read as a whole, whatever its length."""

from base64 import b64decode
from typing import Final

import pytest

from schemas.base.errors import ValidationFailed
from schemas.base.fields import MAX_ID
from schemas.base.principal import TokenKind, TokenPrincipal
from schemas.intake.report_uploads import ReportUpload
from schemas.intake.scanner import PostbackForm
from service.operations.report_uploads import ReportUploadOperations
from storage.accounts.account_limits import UNLIMITED
from storage.db.engine import rows
from storage.secrets.vault import Vault
from tests.support.database.databases import on_sqlite
from tests.support.factories import ENCRYPTION_KEY, Customer, postback, record_postback
from tests.support.scan_reports import FILES

ZAP: Final = FILES["zap"].read_bytes()


def upload(customer: Customer, scan_run_id: str, *newer_keys: bytes) -> ReportUpload:
    principal = TokenPrincipal(1, customer.user_id, customer.account_id, TokenKind.API, frozenset(), may_use_webhooks=True)
    operations = ReportUploadOperations(Vault([*newer_keys, b64decode(ENCRYPTION_KEY)]), UNLIMITED)
    return operations.upload(str(customer.project_id), scan_run_id, "zap.json", ZAP, principal)


@on_sqlite
@pytest.mark.parametrize(
    "number",
    ["0", "-1", "1.5", "\u0661", str(MAX_ID + 1), f"{'0' * 19}1{'9' * 30}", f"{'0' * 19}1{'9' * 5000}", "0" * 5000],
    ids=len,
)
def test_what_is_no_number_of_a_scan_run_is_refused(customer: Customer, number: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        upload(customer, number)
    assert [(each.path, each.code) for each in refused.value.problems] == [("/scan_run_id", "invalid_type")]
    assert rows("SELECT COUNT(*) FROM report_uploads") == [(0,)]


@on_sqlite
@pytest.mark.parametrize("number", ["42", " 42 ", "0042"])
def test_a_scan_run_may_be_named_with_zeros_and_spaces_before_it(customer: Customer, number: str) -> None:
    record_postback(PostbackForm().read(postback(42)), customer.project_id)
    upload(customer, number)
    assert rows("SELECT scan_run_id FROM report_uploads") == [(42,)]


@on_sqlite
def test_a_file_has_one_scan_run_which_nobody_can_compute_without_the_first_key(customer: Customer) -> None:
    # Otherwise a file could be made whose number is that of a later run of the scanner, whose results it would get.
    upload(customer, "")
    upload(customer, "")
    [(number,)] = rows("SELECT DISTINCT scan_run_id FROM report_uploads")
    upload(customer, "", bytes(32))
    assert len({*rows("SELECT scan_run_id FROM report_uploads")} - {(number,)}) == 1
