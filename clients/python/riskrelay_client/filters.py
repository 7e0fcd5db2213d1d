"""The filters of lists; a filter with several values finds records with any of them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, TypedDict

Severity = Literal["info", "low", "medium", "high", "critical"]
ExportStatus = Literal["prepared", "approved", "delivering", "exported", "retry_scheduled", "failed", "blocked", "dismissed"]
SourceType = Literal["finding", "evidence_capture", "diagnostics", "inbound_email", "manual"]
FindingState = Literal["open", "fixed", "dismissed", "snoozed"]
Role = Literal["viewer", "triager", "manager", "owner"]
TicketGrouping = Literal["rule", "finding"]
DismissalReason = Literal["false_positive", "wont_fix", "duplicate", "test", "other"]


class ExportFilter(TypedDict, total=False):
    """Filters for exports; `rule` and `host` are exact, `q` has whole words, `created_before` is exclusive."""

    status: ExportStatus | Iterable[ExportStatus]
    severity: Severity | Iterable[Severity]
    project_id: int | Iterable[int]
    source: SourceType | Iterable[SourceType]
    rule: str | Iterable[str]
    target_id: str | Iterable[str]
    host: str | Iterable[str]
    q: str
    created_after: datetime | str
    created_before: datetime | str


class SortedExportFilter(ExportFilter, total=False):
    """Filters for exports, and their order."""

    sort: Literal["-created_at", "created_at", "-severity", "-findings"]


class FindingFilter(TypedDict, total=False):
    """Filters for findings."""

    project_id: int | Iterable[int]
    state: FindingState | Iterable[FindingState]
    severity: Severity | Iterable[Severity]
    rule: str | Iterable[str]
    host: str | Iterable[str]
    q: str


class AuditFilter(TypedDict, total=False):
    """Filters for entries of the audit log; `account_id` needs the ability `admin`."""

    actor: str
    action: str
    object: str
    created_after: datetime | str
    created_before: datetime | str
    account_id: int
