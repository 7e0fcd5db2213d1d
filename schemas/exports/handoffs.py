"""A handoff: the record that ties an uploaded capture or diagnostic to its project, its report and its prepared export."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.exports.ticket import Source

#: The only status of a handoff; later states are those of its export.
RECEIVED: Final = "received"


@dataclass(frozen=True, slots=True)
class Handoff:
    """A handoff as it is stored; `source` is the capture or the diagnostic."""

    id: str
    source: Source
    project_id: int
    report_id: int | None
    ticket_export_id: str
    created_at: datetime
