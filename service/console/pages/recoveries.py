"""`/console/recoveries`: what failed at a target, put back on its way by a worker while somebody watches."""

from collections.abc import Mapping
from typing import Any, Final

import falcon

from schemas.exports.recoveries import RecoveryStatus
from schemas.settings.definitions import RouteFamily
from schemas.targets.target import APPROVABLE, host_of
from service.console.layout import CONSOLE, Action, Frame, Page
from service.console.pages.targets import TARGET, require_webhooks
from service.console.sessions import Visitor
from service.http.paging import next_page, read_page
from service.operations.recoveries import RecoveryOperations
from service.operations.targets import TargetOperations
from storage.db import identifiers
from storage.exports import recoveries
from storage.exports.recoveries import AlreadyRecovering
from storage.targets import summaries

RECOVERIES: Final = f"{CONSOLE}/recoveries"
RECOVERY: Final = f"{RECOVERIES}/{{recovery_id}}"


class Recoveries(Page):
    """Lists the recoveries of the account's targets, the newest first."""

    path = RECOVERIES
    template = "recoveries.html"
    family = RouteFamily.CONSOLE

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return a page of the list, with the targets that are named in it."""
        page = read_page(req, identifiers.RECOVERY)
        found = recoveries.list_account_page(visitor.account_id, page.fetch_limit, page.before)
        shown = found[: page.limit]
        return {
            "shown": shown,
            "targets": summaries.by_id({each.target_id for each in shown}, visitor.account_id),
            "next": next_page(page, [each.id for each in found]),
            "is_first": page.before is None,
        }


class RecoveryPage(Page):
    """Shows how far a recovery is."""

    path = RECOVERY
    template = "recovery.html"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, targets: TargetOperations) -> None:
        super().__init__(frame)
        self._targets = targets

    def content(self, req: falcon.Request, visitor: Visitor, **ids: str) -> Mapping[str, Any]:
        """Return the recovery and its target. Raises NotFound."""
        recovery = recoveries.get(ids["recovery_id"], visitor.account_id)
        target = self._targets.get(recovery.target_id, visitor.principal)
        is_running = recovery.status is RecoveryStatus.RUNNING
        return {
            "recovery": recovery,
            "target": target,
            "host": host_of(target.base_url),
            "is_running": is_running,
            "is_halted": is_running and target.status not in APPROVABLE,
            "may_cancel": is_running and visitor.principal.may_use_webhooks,
        }


class Recover(Action):
    """Begins a recovery of a target; where one runs, leads to that one."""

    path = f"{TARGET}/recover"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, operations: RecoveryOperations) -> None:
        super().__init__(frame)
        self._recoveries = operations

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Begin it, and notify the workers. Raises TargetNotFound, Conflict, ValidationFailed, Forbidden."""
        require_webhooks(visitor)
        target_id = ids["target_id"]
        try:
            recovery = self._recoveries.begin(target_id, form.get("since", ""), visitor.principal)
        except AlreadyRecovering as running:
            resp.status = falcon.HTTP_409
            content = {"running": running, "target_id": target_id}
            self._frame.show(req, resp, "recovery_running.html", content, visitor)
            return
        self._recoveries.wake_workers()
        self._frame.go(resp, f"/recoveries/{recovery.id}", done="recovery_begun")


class CancelRecovery(Action):
    """Ends a running recovery; what is put back stays so."""

    path = f"{RECOVERY}/cancel"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, operations: RecoveryOperations) -> None:
        super().__init__(frame)
        self._recoveries = operations

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Cancel it. Raises NotFound, Conflict, Forbidden."""
        require_webhooks(visitor)
        cancelled = self._recoveries.cancel(ids["recovery_id"], visitor.principal)
        self._frame.go(resp, f"/recoveries/{cancelled.id}", done="recovery_cancelled")
