"""Uploaded reports: stored encrypted by the console, imported one postback at a time by the holder of a lease.

A postback's findings, the counts and the progress commit together: the next holder continues after the last postback. The
content is erased when the import ends. An import acts for its user, and stops when the user is disabled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from schemas.base.errors import Conflict, FieldProblem, ValidationFailed, WrongEncryptionKey
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.report_uploads import ReportUpload, ReportUploadStatus, UploadError
from storage.accounts import projects
from storage.accounts.account_limits import AccountLimits, Limited
from storage.accounts.audit_log import append
from storage.db import identifiers
from storage.db.columns import columns, get_by_id, read, read_first, values_of
from storage.db.engine import savepoint, transacted, transaction
from storage.db.leases import JobLease, LeasedJobs, compare_and_swap
from storage.db.models import ReportUploadRow, ScanRunRow, UserRow
from storage.db.queries import newest_first
from storage.intake import findings
from storage.intake.findings import PreparedPostback
from storage.intake.options import IntakeOptions
from storage.secrets.encrypted_columns import UPLOADED_REPORT
from storage.secrets.vault import Vault

#: Every postback renews the lease. Longer than reading and checking the largest report takes on a small, busy machine.
LEASE_S: Final = 60.0
#: The most waiting and running reports of an account: the table contains at most this many times MAX_FILE_BYTES for it.
MAX_WAITING: Final = 5
#: How many reasons are stored; `refused` counts all refused postbacks.
MAX_LEFT_OUT: Final = 50

_IS_UNFINISHED: Final = ReportUploadRow.status.in_([ReportUploadStatus.WAITING.value, ReportUploadStatus.RUNNING.value])

_jobs: Final = LeasedJobs(ReportUploadRow)


@dataclass(frozen=True, slots=True)
class NewReportUpload:
    """A recognized report for a project; with `is_new_run`, its scan run is registered if the project does not have it."""

    account_id: int
    project_id: int
    user_id: int
    file_name: str
    format: str
    content: bytes
    scan_run_id: int
    is_new_run: bool
    actor: str


@dataclass(frozen=True, slots=True)
class HeldUpload:
    """An upload with the data that its import needs."""

    project_id: int
    user_id: int
    format: str
    scan_run_id: int
    done: int
    #: The number of postbacks of the report when its import began.
    total: int | None
    #: The pages that were left out, each with the reason.
    left_out: list[list[str]]
    actor: str


@dataclass(frozen=True, slots=True)
class RefusedPostback:
    """A postback that is not accepted, and the reason."""

    url: str
    reason: str


def create(new: NewReportUpload, now: datetime, vault: Vault, limits: AccountLimits) -> ReportUpload:
    """Store a report, which any worker may claim at once.

    Raises NotFound for a project of another account, Conflict for an account with MAX_WAITING reports, ValidationFailed for
    a scan run that the project does not have and at the account's limit, NoEncryptionKey.
    """
    upload_id = identifiers.new_id(identifiers.REPORT_UPLOAD, now)
    # Latin-1 maps every byte to one character.
    sealed = vault.seal(new.content.decode("latin-1"), UPLOADED_REPORT.context(upload_id))
    with transaction():
        projects.get_project(new.project_id, new.account_id)
        if new.is_new_run:
            projects.register_scan_run(new.scan_run_id, new.project_id, "running", now)
        run = ScanRunRow.select().where(ScanRunRow.id == new.scan_run_id, ScanRunRow.project == new.project_id)
        if not run.exists():
            message = f"The project has no scan run {new.scan_run_id}. Leave the field empty for a new scan run."
            raise ValidationFailed(FieldProblem("/scan_run_id", "unknown_scan_run", message))
        counts = dict.fromkeys(("done", "new_findings", "seen_findings", "tickets", "refused"), 0)
        status = ReportUploadStatus.WAITING.value
        row = values_of(ReportUploadRow, new, id=upload_id, status=status, left_out=[], next_run_at=now, created_at=now)
        ReportUploadRow.insert(row | counts, content_sealed=sealed).execute()
        if _jobs.count_unfinished(ReportUploadRow.account == new.account_id) > MAX_WAITING:
            raise Conflict(
                f"The account has {MAX_WAITING} uploaded reports that wait for their import; wait until one is imported."
            )
        limits.require_room(new.account_id, Limited.UPLOADS, 1, now)
        append(now, new.actor, "upload_report", upload_id)
        return get(upload_id, new.account_id)


def get(upload_id: str, account_id: int) -> ReportUpload:
    """Return an upload of an account. Raises NotFound."""
    query = _uploads(account_id).where(ReportUploadRow.id == upload_id)
    return get_by_id(ReportUpload, query, identifiers.REPORT_UPLOAD, upload_id, "There is no such uploaded report.")


def list_newest(account_id: int, limit: int) -> list[ReportUpload]:
    """Return up to `limit` uploads of an account, the newest first."""
    return read(ReportUpload, newest_first(_uploads(account_id), ReportUploadRow.id, limit))


def claim_next(now: datetime) -> JobLease | None:
    """Claim the upload that has waited longest; None if none waits. The claim expires LEASE_S after its last postback."""
    return _jobs.claim_oldest(now, LEASE_S, status=ReportUploadStatus.RUNNING.value)


def held(lease: JobLease) -> HeldUpload | None:
    """Return the upload of a lease; None for a stale lease."""
    query = ReportUploadRow.select(*columns(HeldUpload, ReportUploadRow))
    return read_first(HeldUpload, query.where(ReportUploadRow.id == lease.id, ReportUploadRow.lease == lease.lease))


def content(lease: JobLease, vault: Vault) -> bytes:
    """Return the bytes of a held report. Raises WrongEncryptionKey, NoEncryptionKey."""
    query = ReportUploadRow.select(ReportUploadRow.content_sealed).where(ReportUploadRow.id == lease.id)
    sealed = query.scalar()
    if sealed is None:
        raise WrongEncryptionKey
    return vault.open(sealed, UPLOADED_REPORT.context(lease.id)).encode("latin-1")


def begin(lease: JobLease, total: int, skipped: Sequence[str], now: datetime) -> bool:
    """Store the number of postbacks and what the report's reader skipped; end an import without postbacks.

    Returns whether the lease was still valid. If the call is repeated after the worker was killed, the stored counts do not
    change.
    """
    with transaction():
        if not _jobs.renew(lease.id, lease.lease, now, LEASE_S):
            return False
        is_first = ReportUploadRow.total.is_null()
        compare_and_swap(ReportUploadRow, lease.id, is_first, total=total, left_out=[["", each] for each in skipped])
        if not total:
            _end(lease.id, ReportUploadStatus.DONE, now)
        return True


@transacted
def record(
    lease: JobLease,
    number: int,
    total: int,
    postback: PreparedPostback | RefusedPostback,
    now: datetime,
    options: IntakeOptions,
) -> bool:
    """Store postback `number` of `total`, counted from 0, with its progress, and end the import after the last one.

    Returns whether the import continues: a stale lease changes nothing, and a disabled user ends it.
    """
    if not _jobs.renew(lease.id, lease.lease, now, LEASE_S, ReportUploadRow.done == number):
        return False
    upload = held(lease)
    assert upload is not None  # noqa: S101 - the lease was just renewed
    stopped = _stop_reason(upload)
    if stopped is not None:
        _end(lease.id, ReportUploadStatus.FAILED, now, stopped)
        return False
    result = postback if isinstance(postback, RefusedPostback) else _recorded(postback, upload, now, options)
    compare_and_swap(ReportUploadRow, lease.id, done=number + 1, **_counts(upload, result, now))
    if number + 1 < total:
        return True
    _end(lease.id, ReportUploadStatus.DONE, now)
    return False


def fail(lease: JobLease, error: UploadError, reason: str, now: datetime) -> None:
    """End an import that cannot continue, with a reason for its user; a stale lease changes nothing."""
    with transaction():
        if _jobs.renew(lease.id, lease.lease, now, LEASE_S, left_out=[["", reason]] if reason else []):
            _end(lease.id, ReportUploadStatus.FAILED, now, error)


def _uploads(account_id: int) -> Any:
    return ReportUploadRow.select(*columns(ReportUpload, ReportUploadRow)).where(ReportUploadRow.account == account_id)


def _stop_reason(upload: HeldUpload) -> UploadError | None:
    if UserRow.select().where(UserRow.id == upload.user_id, UserRow.disabled_at.is_null(False)).exists():
        return UploadError.USER_DISABLED
    # Scan run ids are unique over all accounts: another project may have registered an id that was deleted meanwhile.
    taken = ScanRunRow.select().where(ScanRunRow.id == upload.scan_run_id, ScanRunRow.project != upload.project_id)
    return UploadError.RUN_TAKEN if taken.exists() else None


def _recorded(
    postback: PreparedPostback, upload: HeldUpload, now: datetime, options: IntakeOptions
) -> PostbackResult | RefusedPostback:
    try:
        with savepoint():
            return findings.record(postback, upload.project_id, now, upload.actor, options)
    except ValidationFailed as failed:
        return RefusedPostback(postback.postback.page.url, failed.problems[0].message)


def _counts(upload: HeldUpload, result: PostbackResult | RefusedPostback, now: datetime) -> dict[str, Any]:
    row = ReportUploadRow
    if isinstance(result, RefusedPostback):
        added = [[result.url, result.reason]] if len(upload.left_out) < MAX_LEFT_OUT else []
        return {"refused": row.refused + 1, "left_out": upload.left_out + added}
    # Older exports existed before, and were only extended now.
    oldest = identifiers.first_id(identifiers.EXPORT, now)
    return {
        "new_findings": row.new_findings + result.new,
        "seen_findings": row.seen_findings + result.seen + result.reopened,
        "tickets": row.tickets + sum(each >= oldest for each in result.ticket_exports),
    }


def _end(upload_id: str, status: ReportUploadStatus, now: datetime, error: UploadError | None = None) -> None:
    """End a waiting or running import, and erase the report."""
    if _jobs.end(upload_id, _IS_UNFINISHED, status.value, now, error=error, content_sealed=None):
        actor = ReportUploadRow.select(ReportUploadRow.actor).where(ReportUploadRow.id == upload_id).scalar()
        action = "finish_report_import" if status is ReportUploadStatus.DONE else "fail_report_import"
        append(now, actor, action, upload_id, error)
