"""A scanner's report file that a user uploads at the console, and the progress of its import."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

#: A report of a thousand pages; a service and a worker take ten times its size in memory. `import-scan` reads larger ones.
MAX_FILE_BYTES: Final = 5 * 1024 * 1024
#: Maximum number of JSON values of a report; one of MAX_FILE_BYTES has half as many. The service reads it while other
#: requests wait, and 5 MiB of empty arrays took 2.5 s.
MAX_FILE_VALUES: Final = 400_000
#: The longest file name of common file systems.
MAX_FILE_NAME: Final = 255


class ReportUploadStatus(StrEnum):
    """The status of an upload."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class UploadError(StrEnum):
    """Why an import failed."""

    UNREADABLE = "unreadable_report"
    KEY_MISSING = "secret_unreadable"
    USER_DISABLED = "user_disabled"
    RUN_TAKEN = "scan_run_of_another_project"
    ERASED = "erased"


@dataclass(frozen=True, slots=True)
class ReportUpload:
    """An uploaded report: of `total` postbacks, `done` were processed; `total` is None until a worker has read the file.

    `left_out` lists what was refused or skipped, up to a limit: each time the page's URL, or "", and the reason. `refused`
    counts postbacks.
    """

    id: str
    project_id: int
    file_name: str
    format: str
    scan_run_id: int
    status: ReportUploadStatus
    total: int | None
    done: int
    new_findings: int
    seen_findings: int
    tickets: int
    refused: int
    left_out: Sequence[Sequence[str]]
    error: UploadError | None
    created_at: datetime
    finished_at: datetime | None
