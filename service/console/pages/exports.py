"""`/console/exports`: every export of the account in one table, and a page for each with ticket, attempts and timeline.

Only the operator sees the address, the worker and the response of an attempt; other users see the same as in the API.
"""

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.base.timestamps import from_ms
from schemas.exports.record import Export, as_shown
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.triage.export_filter import ExportQuery, ListPosition
from service.console.choices import offered_targets
from service.console.layout import CONSOLE, ConsolePage, list_content
from service.console.pages.audit import emails_by_actor
from service.console.preferences import last_target_id
from service.console.sessions import ConsoleUser
from service.console.triage.attempts import shown_attempts
from service.console.triage.ticket_view import ticket_content
from service.http.paging import Matching, PageRequest, next_page, read_page
from storage.accounts import audit_log, projects
from storage.accounts.audit_log import AuditEntry
from storage.db import identifiers
from storage.exports import queries
from storage.exports.events import queries as events
from storage.exports.search import export_list
from storage.targets import summaries

EXPORTS: Final = f"{CONSOLE}/exports"
#: Maximum number of timeline entries: far more than a full retry schedule and some manual retries produce.
MAX_ENTRIES: Final = 200
#: Maximum number of ticket events. Each scan run creates at most one; the API lists all.
MAX_EVENTS: Final = 20
#: The statuses of exports that the inbox lists.
_INBOX_STATUSES: Final = (ExportStatus.PREPARED, ExportStatus.DISMISSED)


_FILTERS: Final[Mapping[str, Container[str]]] = {
    "status": tuple(ExportStatus),
    "source": tuple(sorted(SOURCE_TYPES)),
    "target": Matching(lambda text: identifiers.is_id(identifiers.TARGET, text)),
}


class ExportsPage(ConsolePage):
    """Lists the account's exports, newest first."""

    path = EXPORTS
    template = "exports.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the exports with their targets."""
        page = read_page(req, identifiers.EXPORT, _FILTERS)
        now = utc_now()
        found = [as_shown(export, now) for export in _list(page, user.account_id)]
        offered = offered_targets(user, page.filters.get("target", ""))
        known = {target.id: target for target in offered}
        older = {export.target_id for export in found[: page.limit] if export.target_id} - {*known}
        targets = known | summaries.by_id(older, user.account_id)
        return {**list_content(page, found), "choices": _FILTERS, "offered": offered, "targets": targets}


def _list(page: PageRequest, account_id: int) -> list[Export]:
    """Return up to `page.fetch_limit` exports that match the filters."""
    statuses, sources, target_ids = (
        (page.filters[name],) if name in page.filters else () for name in ("status", "source", "target")
    )
    query = ExportQuery(account_id, statuses=statuses, sources=sources, target_ids=target_ids)
    after = None if page.before is None else ListPosition(page.before)
    return export_list.list_page(query, limit=page.fetch_limit, after=after)


class ExportPage(ConsolePage):
    """Shows one export of the account."""

    path = f"{CONSOLE}/exports/{{export_id}}"
    template = "export.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the export, its ticket, its timeline and one page of its attempts. Raises ExportNotFound."""
        page = read_page(req, identifiers.ATTEMPT)
        now = utc_now()
        export = as_shown(queries.get(ids["export_id"], user.account_id), now)
        found = shown_attempts(export.id, user, page.fetch_limit, page.before)
        entries = audit_log.list_for_subject(export.id, MAX_ENTRIES + 1)
        return {
            **ticket_content(export, user, last_target_id(req, [export.project_id]), self._settings.artifacts_base_url, now),
            "in_list": False,
            "is_in_inbox": export.status in _INBOX_STATUSES,
            "here": "",
            "then": "",
            "position": None,
            "project_name": _project_name(export),
            "timeline": _timeline(entries[:MAX_ENTRIES], user),
            "is_cut": len(entries) > MAX_ENTRIES,
            "most_entries": MAX_ENTRIES,
            "attempts": found[: page.limit],
            "events": events.list_page(export.id, None, MAX_EVENTS),
            "next": next_page(page, [details.attempt.id for details, _ in found]),
            "is_first": page.before is None,
        }


class ExportReceipt(ConsolePage):
    """Downloads the delivery receipt of an export, with the same content as in the API."""

    path = f"{CONSOLE}/exports/{{export_id}}/receipt"

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Respond with the file. Raises ExportNotFound, Conflict."""
        user = self._reader(req, resp, ids)
        resp.content_type = falcon.MEDIA_JSON
        resp.data = json.dumps(self._operations.exports.receipt(ids["export_id"], user.principal), indent=2).encode()
        resp.downloadable_as = f"receipt-{ids['export_id']}.json"


def _project_name(export: Export) -> str | None:
    return None if export.project_id is None else projects.get_project(export.project_id, export.account_id).name


def _timeline(entries: Sequence[AuditEntry], user: ConsoleUser) -> list[dict[str, Any]]:
    """Return audit entries for display, each with the id of the recovery that caused it.

    A worker's name contains its host name, which only the operator may see.
    """
    people = emails_by_actor(entry.actor for entry in entries)
    shown = []
    for entry in entries:
        kind, reason = entry.actor.partition(":")[0], entry.reason or ""
        actor = people.get(entry.actor, entry.actor if kind == "user" or user.is_operator else kind)
        recovery_id = reason if reason.startswith(f"{identifiers.RECOVERY}_") else None
        shown.append({"entry": entry, "at": from_ms(entry.at_ms), "actor": actor, "recovery_id": recovery_id})
    return shown
