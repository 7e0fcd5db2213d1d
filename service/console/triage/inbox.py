"""`/console/inbox`: what waits for a decision, what is snoozed and what was dismissed."""

from dataclasses import replace
from typing import Final

from schemas.exports.state_machine import ExportStatus
from schemas.triage.export_filter import ExportSort
from service.console.layout import CONSOLE
from service.console.triage.ticket_list import ListView, TicketListPage, snoozed, waiting

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
    """Lists what waits for a decision, by severity, with one ticket beside the list."""

    path = f"{CONSOLE}{INBOX}"
    template = "inbox.html"
    views = INBOX_VIEWS
    page_title = "Inbox"
