"""A handoff: the record that ties an uploaded capture or diagnostic to its project, its report and its prepared export."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from schemas.base.principal import Ability
from schemas.base.strict_json import canonical
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import Source
from schemas.intake.diagnostics import Diagnostics, Platform, submitted_facts
from schemas.intake.evidence import Capture, captured_facts
from schemas.intake.page_url import page_key


class HandoffStatus(StrEnum):
    """The state of an upload, as its app sees it: `received` in the response to the upload, then the state of its export."""

    RECEIVED = "received"
    PREPARED = "prepared"
    APPROVED = "approved"
    DELIVERED = "delivered"
    FAILED = "failed"
    DISMISSED = "dismissed"
    FIXED = "fixed"


#: The only status of a handoff's row; later states are those of its export.
RECEIVED: Final = HandoffStatus.RECEIVED.value

#: Statuses of exports that have another name for apps.
_STATUSES: Final[Mapping[ExportStatus, HandoffStatus]] = {
    ExportStatus.DELIVERING: HandoffStatus.APPROVED,
    ExportStatus.RETRY_SCHEDULED: HandoffStatus.APPROVED,
    ExportStatus.EXPORTED: HandoffStatus.DELIVERED,
    # Only a person can retry a blocked export, as after a failure.
    ExportStatus.BLOCKED: HandoffStatus.FAILED,
}
#: The ability that uploads of each kind need; a capture has no platform.
_ABILITIES: Final[Mapping[str | None, Ability]] = {
    None: Ability.UPLOAD_EVIDENCE,
    Platform.CMS_COMMERCE: Ability.UPLOAD_CMS_DIAGNOSTICS,
    Platform.STOREFRONT: Ability.UPLOAD_STOREFRONT_DIAGNOSTICS,
}
#: Fields of an upload that are ignored, or that are compared separately: the page by its key, and the selected text.
_NOT_COMPARED: Final = frozenset(
    {"page_url", "site_url", "selected_text", "captured_at", "extension_version", "plugin_version", "app_version"}
)


@dataclass(frozen=True, slots=True)
class Handoff:
    """A handoff as it is stored; `source` is the capture or the diagnostic."""

    id: str
    source: Source
    project_id: int
    report_id: int | None
    ticket_export_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class HandoffProgress:
    """A handoff with the state of its export; `platform` is the source of diagnostics, None for a capture."""

    id: str
    source_type: str
    source_id: str
    platform: str | None
    project_id: int
    report_id: int | None
    created_at: datetime
    export_status: ExportStatus
    findings_total: int | None
    findings_fixed: int | None
    provider_ticket_id: str | None
    provider_ticket_url: str | None

    @property
    def ability(self) -> Ability:
        """The ability that the upload needed."""
        return _ABILITIES[self.platform]

    def record(self) -> dict[str, Any]:
        """Return the handoff as clients poll it; `provider_ticket` is absent until the receiver has named a ticket."""
        record: dict[str, Any] = {
            "id": self.id,
            "source": {"type": self.source_type, "id": self.source_id},
            "project_id": self.project_id,
            "report_id": self.report_id,
            "created_at": self.created_at,
            "status": handoff_status(self.export_status, self.findings_total, self.findings_fixed),
        }
        if self.provider_ticket_id or self.provider_ticket_url:
            record["provider_ticket"] = {"id": self.provider_ticket_id, "url": self.provider_ticket_url}
        return record


def handoff_status(export: ExportStatus, findings: int | None, fixed: int | None) -> HandoffStatus:
    """Return the status of a handoff by the status of its export and by how many of its `findings`, if any, are `fixed`."""
    if export is ExportStatus.EXPORTED and findings and findings == fixed:
        return HandoffStatus.FIXED
    return _STATUSES.get(export) or HandoffStatus(export.value)


def natural_key(upload: Capture | Diagnostics) -> str:
    """Return 64 hex digits that two uploads share if they are about the same thing.

    Such uploads have the same project, report, page and selected text. Without a selected text, as in diagnostics,
    everything that was reported is compared, except times and versions.
    """
    if isinstance(upload, Capture):
        page, selected, facts = upload.page_url, upload.selected_text or "", captured_facts(upload)
    else:
        page, selected, facts = upload.site_url or "", "", submitted_facts(upload)
    said: Any = " ".join(selected.split()) or {name: fact for name, fact in facts.items() if name not in _NOT_COMPARED}
    return hashlib.sha256(canonical([upload.project_id, upload.report_id, page_key(page), said])).hexdigest()
