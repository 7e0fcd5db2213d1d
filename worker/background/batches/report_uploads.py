"""Imports reports that users uploaded at the console, a postback at a time, as if their scanner had posted the pages.

The report is read once for each claim; the postbacks that an earlier holder stored are left out by the stored count.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from schemas.base.errors import NoEncryptionKey, ValidationFailed, WrongEncryptionKey
from schemas.content_policy.checked_form import read_checked
from schemas.content_policy.rules import find
from schemas.intake.report_uploads import UploadError
from schemas.intake.scanner import PostbackForm
from schemas.report_files.document import UnreadableReport
from schemas.report_files.formats import read_report
from schemas.report_files.pages import PagePostback, PreparedImport, prepare
from storage.db.engine import OUTAGES, connection
from storage.db.leases import JobLease
from storage.intake import findings, report_uploads
from storage.intake.findings import PreparedPostback
from storage.intake.options import IntakeOptions
from storage.intake.report_uploads import HeldUpload, RefusedPostback
from storage.secrets.vault import Vault

#: How long a user waits at most for the first postback, and the report of a killed worker after its lease has expired.
POLL_S: Final = 2.0

_READER_CHANGED: Final = "The report was begun by another version of RiskRelay, which read it differently; upload it again."
_READER_FAILED: Final = "The report cannot be read: its values have an unexpected form."

_log: Final = logging.getLogger(__name__)
_form: Final = PostbackForm()


@dataclass
class _Import:
    """The report that this worker imports; `done` counts postbacks."""

    lease: JobLease
    project_id: int
    prepared: PreparedImport
    done: int


@dataclass(slots=True)
class ReportUploadTask:
    """Imports uploaded reports, one after the other."""

    vault: Vault
    options: IntakeOptions
    now: Callable[[], datetime]
    _current: _Import | None = field(default=None, init=False)

    def run_once(self) -> bool:
        """Import the next postback, or claim a report and read it; return whether there was work."""
        if self._current is not None:
            try:
                self._advance(self._current)
            except Exception as failed:
                if not isinstance(failed, OUTAGES):
                    # Leave this report: until its lease expires, the other reports come first.
                    self._current = None
                raise
            return True
        with connection():
            lease = report_uploads.claim_next(self.now())
        if lease is None:
            return False
        _log.info("uploaded report %s claimed", lease.id)
        self._read(lease)
        return True

    def _read(self, lease: JobLease) -> None:
        with connection():
            upload = report_uploads.held(lease)
            if upload is None:
                return
            try:
                content = report_uploads.content(lease, self.vault)
            except (WrongEncryptionKey, NoEncryptionKey):
                report_uploads.fail(lease, UploadError.KEY_MISSING, "", self.now())
                return
        # No connection is held: reading a report takes seconds.
        prepared = _prepared(content, upload)
        if not isinstance(prepared, str) and upload.total not in {None, len(prepared.postbacks)}:
            # Another version of the reader began this import, and made a different number of postbacks.
            prepared = _READER_CHANGED
        with connection():
            if isinstance(prepared, str):
                report_uploads.fail(lease, UploadError.UNREADABLE, prepared, self.now())
            elif report_uploads.begin(lease, len(prepared.postbacks), prepared.skipped, self.now()) and prepared.postbacks:
                self._current = _Import(lease, upload.project_id, prepared, upload.done)

    def _advance(self, current: _Import) -> None:
        postbacks = current.prepared.postbacks
        checked = _checked(postbacks[current.done], current.project_id)
        with connection():
            goes_on = report_uploads.record(current.lease, current.done, len(postbacks), checked, self.now(), self.options)
        current.done += 1
        if not goes_on:
            self._current = None


def _prepared(content: bytes, upload: HeldUpload) -> PreparedImport | str:
    """Return the postbacks of a report, or why it cannot be read."""
    try:
        report = read_report(content, upload.format)
        return prepare(report.issues, upload.scan_run_id, content, report.visited)
    except UnreadableReport as unreadable:
        return str(unreadable)
    except Exception as error:  # noqa: BLE001 - an error of a reader would occur again in every attempt
        _log.warning("a reader failed on an uploaded report", extra={"reason": type(error).__name__})
        return _READER_FAILED


def _checked(postback: PagePostback, project_id: int) -> PreparedPostback | RefusedPostback:
    """Check a postback as the API does, and prepare it before the transaction that records it."""
    body: Mapping[str, Any] = postback.body
    try:
        return findings.prepare_postback(read_checked(_form, body), project_id)
    except ValidationFailed as failed:
        # Name the page to the user, unless its URL contains text that must not be stored.
        url = "" if find([postback.url], frozenset()) else postback.url
        return RefusedPostback(url, failed.problems[0].message)
