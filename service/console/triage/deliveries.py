"""`/console/deliveries`: exports in delivery, failed ones and delivered ones, with their attempts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import falcon
from markupsafe import Markup

from schemas.exports.record import Export
from schemas.exports.state_machine import IN_PROGRESS, ExportStatus
from schemas.triage.export_filter import ExportQuery, ExportSort
from service.console.layout import CONSOLE
from service.console.sessions import ConsoleUser
from service.console.triage.attempts import shown_attempts
from service.console.triage.list_address import ListAddress
from service.console.triage.ticket_list import ListView, TicketListPage, TicketRow
from service.console.untrusted_text import visible
from service.console.wording import ago
from storage.targets import summaries
from storage.targets.summaries import TargetSummary

DELIVERIES: Final = "/deliveries"
#: Maximum number of attempts beside the list; the export's own page shows all of them.
FEW_ATTEMPTS: Final = 10


def _in(*statuses: ExportStatus) -> Callable[[ExportQuery, datetime], ExportQuery]:
    return lambda query, _now: replace(query, statuses=tuple(sorted(status.value for status in statuses)))


DELIVERY_VIEWS: Final = (
    ListView("moving", "On their way", _in(*IN_PROGRESS), (), ExportSort.NEWEST, "on the way"),
    ListView(
        "failed", "Failed", _in(ExportStatus.FAILED, ExportStatus.BLOCKED), ("retry",), ExportSort.NEWEST, "not delivered"
    ),
    ListView("delivered", "Delivered", _in(ExportStatus.EXPORTED), (), ExportSort.NEWEST, "delivered"),
)


class DeliveriesPage(TicketListPage):
    """Lists deliveries, with the attempts of the open one beside the list."""

    path = f"{CONSOLE}{DELIVERIES}"
    template = "deliveries.html"
    views = DELIVERY_VIEWS
    page_title = "Deliveries"

    def ticket(self, req: falcon.Request, export: Export, user: ConsoleUser, now: datetime) -> Mapping[str, Any]:
        """Return the variables of the open ticket, with its newest attempts."""
        found = shown_attempts(export.id, user, FEW_ATTEMPTS, None)
        return {**super().ticket(req, export, user, now), "attempts": found}

    def rows(self, exports: Sequence[Export], address: ListAddress, user: ConsoleUser) -> list[TicketRow]:
        """Return the rows of exports, each with the target, its response and the next step."""
        targets = summaries.by_id({each.target_id for each in exports if each.target_id}, user.account_id)
        return [
            row._replace(
                line=delivery_line(row.export, targets.get(row.export.target_id or "")), status=row.export.status.value
            )
            for row in super().rows(exports, address, user)
        ]


def delivery_line(export: Export, target: TargetSummary | None) -> Markup:
    """Return a line with the last event of an export and its time, the target, and the next step."""
    last = export.last_attempt
    # After the status `retry scheduled`, readers would take a time alone for the time of the retry.
    tried = Markup("tried ") if last and not export.finished_at else Markup("")
    parts = [
        tried + ago(export.finished_at or (last.at if last else export.approved_at)),
        visible(target.name if target else ""),
        visible((export.status_reason or "").replace("_", " ")),
        f"HTTP {last.response_status}" if last and last.response_status else "",
        f"{export.attempts} attempt{'s' if export.attempts != 1 else ''}" if export.attempts else "",
        Markup("due ") + ago(export.due_at) if export.due_at and export.status is not ExportStatus.DELIVERING else "",
    ]
    return Markup(" · ").join(filter(None, parts))
