"""`/console/exports`: tickets on their way; find one, decide about it.

A list is of one account. Of one target, only what failed or was blocked is listed: for those there is an index.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import falcon

from schemas.base.errors import ExportNotFound, FieldProblem, ValidationFailed
from schemas.base.fields import problem
from schemas.exports.record import ApprovalForm, Export
from schemas.exports.state_machine import ExportStatus
from schemas.exports.ticket import SOURCE_TYPES
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE, Action, Frame, Page
from service.console.sessions import Visitor
from service.http.paging import PageRequest, next_page, read_page
from service.operations.exports import ExportOperations
from storage.db import identifiers
from storage.exports import transitions
from storage.targets import summaries
from storage.targets.summaries import TargetSummary

#: More than this nobody looks through in a drop-down.
MOST_TARGETS: Final = 200

EXPORTS: Final = f"{CONSOLE}/exports"
#: What is listed of one target.
_UNSENT: Final = (ExportStatus.FAILED, ExportStatus.BLOCKED)


class _TargetIds(frozenset[str]):
    """Every text that has the form of a target's id."""

    def __contains__(self, text: object) -> bool:
        return identifiers.is_id(identifiers.TARGET, str(text))


_FILTERS: Final[Mapping[str, Collection[str]]] = {
    "status": tuple(ExportStatus),
    "source": tuple(sorted(SOURCE_TYPES)),
    "target": _TargetIds(),
}


class Exports(Page):
    """Lists the account's exports, the newest first; `?id=` leads to one."""

    path = EXPORTS
    template = "exports.html"
    family = RouteFamily.CONSOLE

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Show the list, or go to the export whose id was typed. Raises ExportNotFound."""
        sought = req.params.get("id")
        if sought:
            self._frame.go(resp, f"/exports/{_sought(str(sought), self._frame.entrance.visitor(req, resp))}")
        else:
            super().on_get(req, resp, **ids)

    on_head = on_get

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return a page of the list, and the filters that lead to it."""
        page = read_page(req, identifiers.EXPORT, _FILTERS)
        _require_indexed(page)
        found = _found(page, visitor.account_id)
        offered = summaries.list_page(visitor.account_id, MOST_TARGETS)
        named = {export.target_id for export in found[: page.limit]} | {page.filters.get("target")}
        known = {target.id: target for target in offered}
        other = summaries.by_id({each for each in named if each} - {*known}, visitor.account_id)
        return {
            "shown": found[: page.limit],
            "filters": page.filters,
            "choices": _FILTERS,
            "offered": _with_chosen(offered, other.get(page.filters.get("target", ""))),
            "targets": {**known, **other},
            "waiting": (ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED),
            "next": next_page(page, [export.id for export in found]),
            "is_first": page.before is None,
        }


class Approve(Action):
    """Approves a ticket, as it was seen, for a target."""

    path = f"{EXPORTS}/{{export_id}}/approve"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, exports: ExportOperations) -> None:
        super().__init__(frame)
        self._exports = exports

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Freeze the ticket, make it due, and notify the workers once that is committed."""
        if not form.get("ticket_digest"):
            raise ValidationFailed(problem("/ticket_digest", "required"))
        approval = ApprovalForm().read({name: form[name] for name in ("target_id", "ticket_digest") if name in form})
        export = self._exports.approve(ids["export_id"], visitor.principal, approval)
        self._exports.wake_workers()
        self._frame.go(resp, f"/exports/{export.id}", done="approved")


class Retry(Action):
    """Delivers a failed or blocked export after all; a blocked target's address is looked at anew."""

    path = f"{EXPORTS}/{{export_id}}/retry"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, exports: ExportOperations) -> None:
        super().__init__(frame)
        self._exports = exports

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Make it due, and notify the workers once that is committed."""
        validation = self._exports.check_blocked_target(ids["export_id"], visitor.principal)
        export = self._exports.retry(ids["export_id"], visitor.principal, validation)
        self._exports.wake_workers()
        self._frame.go(resp, f"/exports/{export.id}", done="retried")


class Dismiss(Action):
    """Puts a prepared export aside for good."""

    path = f"{EXPORTS}/{{export_id}}/dismiss"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, exports: ExportOperations) -> None:
        super().__init__(frame)
        self._exports = exports

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Dismiss it."""
        export = self._exports.dismiss(ids["export_id"], visitor.principal)
        self._frame.go(resp, f"/exports/{export.id}", done="dismissed")


def _sought(text: str, visitor: Visitor) -> str:
    """Return the id of the export that somebody looks for."""
    try:
        return transitions.get(text.strip(), visitor.account_id).id
    except ExportNotFound:
        raise ExportNotFound("No export here has this id. An id is exp_ and 26 letters and digits; copy it whole.") from None


def _require_indexed(page: PageRequest) -> None:
    if "target" in page.filters and page.filters.get("status", _UNSENT[0]) not in _UNSENT:
        message = "Of one target, what failed or was blocked is listed: choose one of these statuses, or all."
        raise ValidationFailed(FieldProblem("/target", "not_allowed", message))


def _found(page: PageRequest, account_id: int) -> list[Export]:
    """Return up to `page.look_for` exports."""
    status, source, target_id = (page.filters.get(name) for name in ("status", "source", "target"))
    if target_id is not None:
        return transitions.newest_unsent(target_id, account_id, page.fetch_limit, page.before, status, source)
    return transitions.newest(account_id, page.fetch_limit, page.before, [status] if status else [], source)


def _with_chosen(offered: list[TargetSummary], chosen: TargetSummary | None) -> list[TargetSummary]:
    """Return what a drop-down offers: what was chosen is in it, however old the target is."""
    return offered if chosen is None else [*offered, chosen]
