"""`/console/report-uploads`: a form to upload a scanner's report, then the progress and the result of its import."""

from collections.abc import Mapping
from typing import Any, Final

import falcon

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.intake.report_uploads import MAX_FILE_BYTES, ReportUploadStatus, UploadError
from schemas.report_files.formats import FORMATS
from service.console.choices import offered_projects
from service.console.form_fields import Fields, Problems, by_path
from service.console.layout import CONSOLE, ConsolePage, Content, FormPage, PageLayout, Redirect
from service.console.sessions import ConsoleUser
from service.http.form_bodies import MultipartFields, read_multipart
from service.http.limits.large_body_limiter import MAX_BUFFERED_BYTES, ByteBudget
from storage.accounts import projects
from storage.intake import report_uploads

UPLOADS: Final = f"{CONSOLE}/report-uploads"
#: Maximum number of uploads that the form lists.
_MAX_LISTED: Final = 10

_ERRORS: Final[Mapping[UploadError, str]] = {
    UploadError.UNREADABLE: "The report cannot be read.",
    UploadError.KEY_MISSING: (
        "The stored report cannot be decrypted. Ask the operator whether ENCRYPTION_KEYS changed, then upload it again."
    ),
    UploadError.USER_DISABLED: "The user who uploaded the report was disabled.",
    UploadError.RUN_TAKEN: "The scan run now belongs to another project. Upload the report again.",
    UploadError.ERASED: "The report was erased by a compliance request.",
}


class UploadReportPage(FormPage):
    """Accepts a report file for a project."""

    path = UPLOADS
    template = "report_upload_new.html"

    def __init__(self, layout: PageLayout) -> None:
        super().__init__(layout)
        self._budget = ByteBudget(MAX_BUFFERED_BYTES)

    def read(self, req: falcon.Request) -> Fields:
        """Return the fields of a form with its file. Raises LargeBodyOverload, and what `read_fields` raises."""
        return self._layout.gate.read_fields(req, lambda sent: read_multipart(sent, MAX_FILE_BYTES, self._budget))

    def form(self, req: falcon.Request, user: ConsoleUser, typed: Fields | None, problems: Problems, **_ids: str) -> Content:
        """Return the form with the projects to choose from, and the newest uploads."""
        typed = typed or {"project": req.get_param("project") or ""}
        chosen = typed.get("project", "")
        return {
            "projects": offered_projects(user, chosen),
            "chosen": chosen,
            "scan_run_id": typed.get("scan_run_id", ""),
            "formats": [each.title for each in FORMATS.values()],
            "max_mib": MAX_FILE_BYTES // 1024**2,
            "uploads": report_uploads.list_newest(user.account_id, _MAX_LISTED),
            "problems": by_path(problems),
        }

    def act(self, user: ConsoleUser, form: Fields, **_ids: str) -> Redirect:
        """Store the report. Raises ValidationFailed."""
        if not isinstance(form, MultipartFields) or not form.content:
            raise ValidationFailed(FieldProblem("/report", "required", "Choose a report file that is not empty."))
        project_id, run = form.get("project", ""), form.get("scan_run_id", "")
        made = self._operations.report_uploads.upload(project_id, run, form.file_name, form.content, user.principal)
        return Redirect(f"/report-uploads/{made.id}", "report_uploaded")


class ReportUploadPage(ConsolePage):
    """Shows the progress of one import, then its result."""

    path = f"{UPLOADS}/{{upload_id}}"
    template = "report_upload.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the upload. Raises NotFound."""
        upload = self._operations.report_uploads.get(ids["upload_id"], user.principal)
        return {
            "upload": upload,
            "format_title": FORMATS[upload.format].title,
            "project": projects.get_project(upload.project_id, user.account_id),
            "is_running": upload.status in {ReportUploadStatus.WAITING, ReportUploadStatus.RUNNING},
            "error": _ERRORS[upload.error] if upload.error else "",
        }
