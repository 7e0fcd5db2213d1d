"""`/console/recoveries`: jobs that retry a target's failed and blocked exports, with their progress."""

from collections.abc import Mapping
from typing import Any, Final

import falcon

from schemas.exports.recoveries import RecoveryStatus
from schemas.targets.target import ENABLED
from service.console.form_fields import Fields
from service.console.layout import CONSOLE, Action, ConsolePage, Redirect, list_content
from service.console.sessions import ConsoleUser
from service.console.targets.pages import TARGET
from service.http.paging import read_page
from service.operations import recoveries as operations
from storage.db import identifiers
from storage.exports import recoveries
from storage.targets import summaries

RECOVERIES: Final = f"{CONSOLE}/recoveries"
RECOVERY: Final = f"{RECOVERIES}/{{recovery_id}}"


class RecoveriesPage(ConsolePage):
    """Lists the recoveries of the account's targets, newest first."""

    path = RECOVERIES
    template = "recoveries.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the recoveries with their targets."""
        page = read_page(req, identifiers.RECOVERY)
        found = recoveries.list_account_page(user.account_id, page.fetch_limit, page.before)
        shown_targets = {each.target_id for each in found[: page.limit]}
        return {**list_content(page, found), "targets": summaries.by_id(shown_targets, user.account_id)}


class RecoveryPage(ConsolePage):
    """Shows the progress of one recovery."""

    path = RECOVERY
    template = "recovery.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the recovery and its target, which may have been removed. Raises NotFound."""
        recovery = recoveries.get(ids["recovery_id"], user.account_id)
        target = summaries.by_id([recovery.target_id], user.account_id)[recovery.target_id]
        is_running = recovery.status is RecoveryStatus.RUNNING
        return {
            "recovery": recovery,
            "target": target,
            "is_running": is_running,
            "is_halted": is_running and target.status not in ENABLED,
        }


class Recover(Action):
    """Starts a recovery of a target."""

    path = f"{TARGET}/recover"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Start the recovery, then notify the workers. Raises TargetNotFound, Conflict, ValidationFailed."""
        recovery = operations.begin(ids["target_id"], form.get("since", ""), user.principal)
        self._operations.wake_workers()
        return Redirect(f"/recoveries/{recovery.id}", "recovery_begun")


class CancelRecovery(Action):
    """Cancels a running recovery; exports that it has already retried stay queued."""

    path = f"{RECOVERY}/cancel"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Cancel the recovery. Raises NotFound, Conflict."""
        cancelled = operations.cancel(ids["recovery_id"], user.principal)
        return Redirect(f"/recoveries/{cancelled.id}", "recovery_cancelled")
