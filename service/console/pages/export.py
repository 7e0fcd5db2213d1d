"""`/console/exports/<export_id>`: one export with its ticket, attempts, events and timeline.

Only the operator sees the address, the worker and the response of an attempt; other users see what the API returns.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.base.timestamps import from_ms
from schemas.exports.record import as_shown
from schemas.exports.state_machine import ExportStatus
from service.console.layout import CONSOLE, ConsolePage, PageLayout
from service.console.preferences import last_target_id
from service.console.sessions import ConsoleUser
from service.console.triage.attempts import shown_attempts
from service.console.triage.ticket_view import ticket_content
from service.http.paging import next_page, read_page
from service.operations.exports import ExportOperations
from storage.accounts import audit_log
from storage.accounts.audit_log import AuditEntry
from storage.db import identifiers
from storage.exports import queries
from storage.exports.events import queries as events

#: Far more entries than an export gets from a full retry schedule and some manual retries.
MOST_ENTRIES: Final = 200
#: Each scan run makes one at most; the API lists all.
MOST_EVENTS: Final = 20
#: The list that an export is in.
_INBOX_STATUSES: Final = (ExportStatus.PREPARED, ExportStatus.DISMISSED)


class TimelineEntry(NamedTuple):
    """An audit entry of the export; `recovery_id` is the recovery that caused it, if any."""

    entry: AuditEntry
    at: datetime
    actor: str
    recovery_id: str | None


class ExportPage(ConsolePage):
    """Shows one export of the account."""

    path = f"{CONSOLE}/exports/{{export_id}}"
    template = "export.html"

    def __init__(self, layout: PageLayout, artifacts_base_url: str) -> None:
        super().__init__(layout)
        self._artifacts_base_url = artifacts_base_url

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the export, its ticket, its timeline and one page of its attempts. Raises ExportNotFound."""
        page = read_page(req, identifiers.ATTEMPT)
        now = utc_now()
        export = as_shown(queries.get(ids["export_id"], user.account_id), now)
        found = shown_attempts(export.id, user, page.fetch_limit, page.before)
        entries = audit_log.list_for_subject(export.id, MOST_ENTRIES + 1)
        return {
            **ticket_content(export, user, last_target_id(req), self._artifacts_base_url, now),
            "in_list": False,
            "is_in_inbox": export.status in _INBOX_STATUSES,
            "here": "",
            "then": "",
            "position": None,
            "project_name": None,
            "timeline": [_timeline_entry(entry, user) for entry in entries[:MOST_ENTRIES]],
            "is_cut": len(entries) > MOST_ENTRIES,
            "most_entries": MOST_ENTRIES,
            "attempts": found[: page.limit],
            "events": events.list_page(export.id, None, MOST_EVENTS),
            "next": next_page(page, [trace.attempt.id for trace, _ in found]),
            "is_first": page.before is None,
        }


class ExportReceipt(ConsolePage):
    """Downloads the delivery receipt of an export, as the API returns it."""

    path = f"{CONSOLE}/exports/{{export_id}}/receipt"

    def __init__(self, layout: PageLayout, exports: ExportOperations) -> None:
        super().__init__(layout)
        self._exports = exports

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Respond with the file. Raises ExportNotFound, Conflict."""
        user = self._layout.gate.authenticate(req, resp)
        self._layout.require_permission(self, user, ids)
        resp.content_type = falcon.MEDIA_JSON
        resp.data = json.dumps(self._exports.receipt(ids["export_id"], user.principal), indent=2).encode()
        resp.downloadable_as = f"receipt-{ids['export_id']}.json"

    on_head = on_get


def _timeline_entry(entry: AuditEntry, user: ConsoleUser) -> TimelineEntry:
    """Return an audit entry for display. A worker's name contains its host, which only the operator sees."""
    kind = entry.actor.partition(":")[0]
    actor = entry.actor if kind == "user" or user.is_operator else kind
    is_recovery = (entry.reason or "").startswith(f"{identifiers.RECOVERY}_")
    return TimelineEntry(
        entry,
        from_ms(entry.at_ms),
        user.session.email if actor == user.principal.key else actor,
        entry.reason if is_recovery else None,
    )
