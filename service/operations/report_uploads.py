"""Use cases of uploaded reports: recognize and store a report, read the progress of its import."""

import hashlib
import logging
from dataclasses import dataclass
from typing import Final

from runtime.clock import utc_now
from schemas.base.errors import FieldProblem, NoEncryptionKey, ServiceUnavailable, ValidationFailed, WrongEncryptionKey
from schemas.base.fields import MAX_ID
from schemas.base.principal import Actor, TokenPrincipal
from schemas.content_policy import rules
from schemas.intake.report_uploads import MAX_FILE_NAME, MAX_FILE_VALUES, ReportUpload
from schemas.report_files.document import UnreadableReport
from schemas.report_files.formats import recognize
from schemas.report_files.pages import run_number
from service.operations.accounts import projects
from service.operations.accounts.authority import whole_number
from storage.accounts.account_limits import AccountLimits
from storage.db import engine
from storage.intake import report_uploads
from storage.intake.report_uploads import NewReportUpload
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

#: Stored in place of a file name with forbidden content, such as an access token.
_HIDDEN_NAME: Final = "report"

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReportUploadOperations:
    """Stores uploaded reports; a worker imports them."""

    vault: Vault
    limits: AccountLimits

    def upload(
        self, project_id: str, scan_run_id: str, file_name: str, content: bytes, principal: TokenPrincipal
    ) -> ReportUpload:
        """Store a report of the caller's account; with an empty `scan_run_id` it gets a scan run derived from the file.

        The same file of the same project gets the same scan run. Raises ValidationFailed, NotFound, Conflict, and
        ServiceUnavailable without this installation's key.
        """
        project = projects.get(project_id, principal)
        try:
            check_keys(self.vault, utc_now())
        except (NoEncryptionKey, WrongEncryptionKey) as wrong:
            _log.error("report not stored: %s", wrong.message)
            raise ServiceUnavailable("Nothing was stored, because ENCRYPTION_KEYS lacks this installation's key.") from None
        given = _run_number(scan_run_id)
        # Reading a large report takes a moment, so no connection is held during this time.
        engine.release()
        try:
            format_ = recognize(content, MAX_FILE_VALUES)
        except UnreadableReport as unreadable:
            raise ValidationFailed(FieldProblem("/report", "invalid_report", str(unreadable))) from None
        # All accounts share the numbers of scan runs, so the same file in another project must get another run. The number
        # is keyed. Otherwise a user could try files until one gets the number of a later run of the scanner, and that run's
        # results would go to the user's project.
        own = run_number(self.vault.pseudonym(f"{project.id}|{hashlib.sha256(content).hexdigest()}").encode())
        is_named = not rules.find([file_name], frozenset())
        new = NewReportUpload(
            account_id=principal.account_id,
            project_id=project.id,
            user_id=principal.user_id,
            file_name=(file_name if is_named else "")[:MAX_FILE_NAME] or _HIDDEN_NAME,
            format=format_,
            content=content,
            scan_run_id=given or own,
            is_new_run=given is None,
            actor=principal.key,
        )
        return report_uploads.create(new, utc_now(), self.vault, self.limits)

    def get(self, upload_id: str, actor: Actor) -> ReportUpload:
        """Return an upload of the caller's account. Raises NotFound."""
        return report_uploads.get(upload_id, actor.account_id or 0)


def _run_number(text: str) -> int | None:
    """Return the number of a scan run; None for an empty text. Raises ValidationFailed."""
    digits = text.strip()
    if not digits:
        return None
    if (number := whole_number(digits.lstrip("0"), MAX_ID)) is None:
        message = "This is not the number of a scan run. Enter a whole number, or leave the field empty."
        raise ValidationFailed(FieldProblem("/scan_run_id", "invalid_type", message))
    return number
