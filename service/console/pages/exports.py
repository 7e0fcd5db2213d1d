"""`/console/exports`: every export of the account in one table.

For a single target, only its failed and blocked exports are listed, because only those have an index.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.base.errors import ExportNotFound, FieldProblem, ValidationFailed
from schemas.exports.record import Export, as_shown
from schemas.exports.state_machine import ExportStatus
from schemas.exports.ticket import SOURCE_TYPES
from schemas.triage.export_filter import ExportQuery, ListPosition
from service.console.layout import CONSOLE, ConsolePage, list_content
from service.console.sessions import ConsoleUser
from service.console.triage.ticket_view import MOST_TARGETS
from service.http.paging import PageRequest, read_page
from storage.db import identifiers
from storage.exports import queries
from storage.exports.search import export_list
from storage.targets import summaries
from storage.targets.summaries import TargetSummary

EXPORTS: Final = f"{CONSOLE}/exports"
#: The statuses that are listed for a single target.
_UNSENT: Final = (ExportStatus.FAILED, ExportStatus.BLOCKED)


class _TargetIds(frozenset[str]):
    """Contains every text that is well-formed as a target's id."""

    def __contains__(self, text: object) -> bool:
        return identifiers.is_id(identifiers.TARGET, str(text))


_FILTERS: Final[Mapping[str, Collection[str]]] = {
    "status": tuple(ExportStatus),
    "source": tuple(sorted(SOURCE_TYPES)),
    "target": _TargetIds(),
}


class ExportsPage(ConsolePage):
    """Lists the account's exports, newest first; `?id=` redirects to one."""

    path = EXPORTS
    template = "exports.html"

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Show the list, or redirect to the export with the entered id. Raises ExportNotFound."""
        entered = req.params.get("id")
        if entered:
            user = self._layout.gate.authenticate(req, resp)
            self._layout.require_permission(self, user, {})
            export = _find(str(entered), user)
            self._layout.redirect(resp, f"/exports/{export.id}")
        else:
            super().on_get(req, resp, **ids)

    on_head = on_get

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the exports with their targets."""
        page = read_page(req, identifiers.EXPORT, _FILTERS)
        _require_indexed(page)
        now = utc_now()
        found = [as_shown(export, now) for export in _list(page, user.account_id)]
        offered = summaries.list_page(user.account_id, MOST_TARGETS)
        named = {export.target_id for export in found[: page.limit]} | {page.filters.get("target")}
        known = {target.id: target for target in offered}
        other = summaries.by_id({each for each in named if each} - {*known}, user.account_id)
        return {
            **list_content(page, found),
            "choices": _FILTERS,
            "offered": _with_chosen(offered, other.get(page.filters.get("target", ""))),
            "targets": {**known, **other},
        }


def _find(entered_id: str, user: ConsoleUser) -> Export:
    """Return the export with an entered id. Raises ExportNotFound."""
    try:
        return queries.get(entered_id.strip(), user.account_id)
    except ExportNotFound:
        raise ExportNotFound(
            "No export has this ID. An export ID is exp_ and 26 letters and digits; copy it whole."
        ) from None


def _require_indexed(page: PageRequest) -> None:
    if "target" in page.filters and page.filters.get("status", _UNSENT[0]) not in _UNSENT:
        message = "For a single target, only failed and blocked exports are listed. Select one of these statuses, or all."
        raise ValidationFailed(FieldProblem("/target", "not_allowed", message))


def _list(page: PageRequest, account_id: int) -> list[Export]:
    """Return up to `page.fetch_limit` exports."""
    status, source, target_id = (page.filters.get(name) for name in ("status", "source", "target"))
    if target_id is not None:
        return queries.list_undelivered(target_id, account_id, page.fetch_limit, page.before, status, source)
    query = ExportQuery(account_id, statuses=(status,) if status else (), sources=(source,) if source else ())
    after = None if page.before is None else ListPosition(page.before)
    return export_list.list_page(query, limit=page.fetch_limit, after=after)


def _with_chosen(offered: list[TargetSummary], chosen: TargetSummary | None) -> list[TargetSummary]:
    """Return the targets of the drop-down, including the selected one if it is too old to be offered."""
    return offered if chosen is None else [*offered, chosen]
