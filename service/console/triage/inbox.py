"""`/console/inbox`: tickets that wait for a decision, snoozed tickets and dismissed tickets."""

from dataclasses import replace
from typing import Final

from markupsafe import Markup

from schemas.exports.record import Export
from schemas.exports.state_machine import ExportStatus
from schemas.triage.export_filter import ExportSort
from service.console.layout import CONSOLE
from service.console.triage.list_address import ListAddress
from service.console.triage.ticket_list import ListView, TicketListPage, TicketRow, snoozed, waiting
from service.console.triage.ticket_view import REASONS
from service.console.untrusted_text import visible
from service.console.wording import ago, moment

INBOX: Final = "/inbox"

INBOX_VIEWS: Final = (
    ListView("waiting", "Waiting", waiting, ("dismiss", "approve"), ExportSort.SEVERITY, "waiting for a decision"),
    ListView("snoozed", "Snoozed", snoozed, ("dismiss", "approve"), ExportSort.SEVERITY, "snoozed"),
    ListView(
        "dismissed",
        "Dismissed",
        lambda query, _now: replace(query, statuses=(ExportStatus.DISMISSED.value,)),
        ("restore",),
        ExportSort.NEWEST,
        "dismissed",
    ),
)


class InboxPage(TicketListPage):
    """Lists tickets that wait for a decision, by severity, with one ticket beside the list."""

    path = f"{CONSOLE}{INBOX}"
    template = "inbox.html"
    views = INBOX_VIEWS
    page_title = "Inbox"

    def row(self, export: Export, address: ListAddress) -> TicketRow:
        """Return the row of an export: if dismissed, with reason and time; if snoozed, with the end of the snooze."""
        row = super().row(export, address)
        view, dismissal, snooze = address.params.get("view"), export.dismissal, export.snooze
        if view == "dismissed" and dismissal is not None:
            why = f"{REASONS[dismissal.reason.value]} " if dismissal.reason else ""
            return row._replace(line=Markup(" · ").join(filter(None, (why + ago(dismissal.at), visible(row.line)))))
        if view == "snoozed" and snooze is not None:
            until = Markup("until ") + moment(snooze.until) if snooze.until else Markup("until it is seen again")
            return row._replace(line=Markup(" · ").join(filter(None, (until, visible(row.line)))), at=snooze.until)
        return row
