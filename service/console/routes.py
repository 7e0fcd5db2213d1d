"""Every page and form of the console, on one screen."""

from typing import Any

import falcon

from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import RiskRelayError
from schemas.settings.definitions import Settings
from service.api.health import ReadinessChecks
from service.console.layout import CONSOLE, Frame
from service.console.pages.audit import Audit
from service.console.pages.compliance import Compliance
from service.console.pages.export import ExportPage
from service.console.pages.exports import Approve, Dismiss, Exports, Retry
from service.console.pages.findings import Findings
from service.console.pages.integrations import Integrations
from service.console.pages.overview import Overview, WithSlash
from service.console.pages.queue import Queue
from service.console.pages.recoveries import CancelRecovery, Recover, Recoveries, RecoveryPage
from service.console.pages.sessions import SessionRevocation, Sessions
from service.console.pages.settings import SettingsPage
from service.console.pages.sign_in import SignIn, SignOut
from service.console.pages.targets import PingTarget, Resume, SetSecret, TargetPage, Targets, Turn, Validate
from service.console.sessions import Entrance
from service.console.static_files import ConsoleFiles
from service.http.rate_limits import RateLimits
from service.operations.address_check import AddressCheck
from service.operations.exports import ExportOperations
from service.operations.targets import TargetOperations
from storage.secrets.vault import Vault


class Console:
    """The console over the verbs that the API has; `resources` are its routes.

    `wake_ups` is notified, once that is committed, of whatever becomes due.
    """

    def __init__(
        self,
        settings: Settings,
        limits: RateLimits,
        vault: Vault,
        wake_ups: WakeUpQueue,
        check: AddressCheck,
        moves: TargetOperations,
        decisions: ExportOperations,
    ) -> None:
        self._frame = frame = Frame(Entrance(settings, limits))
        self.resources: tuple[Any, ...] = (
            ConsoleFiles(),
            SignIn(frame),
            SignOut(frame),
            WithSlash(frame),
            Sessions(frame),
            SessionRevocation(frame),
            Overview(frame, ReadinessChecks(wake_ups, vault)),
            Exports(frame),
            ExportPage(frame),
            Approve(frame, decisions, wake_ups),
            Retry(frame, decisions, wake_ups),
            Dismiss(frame, decisions),
            Findings(frame),
            Targets(frame, vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None),
            TargetPage(frame, moves),
            Validate(frame, moves),
            PingTarget(frame, moves),
            Turn("pause", frame, moves),
            Resume(frame, moves, wake_ups),
            Turn("disable", frame, moves),
            SetSecret(frame, moves, vault),
            Recover(frame, wake_ups),
            Recoveries(frame),
            RecoveryPage(frame, moves),
            CancelRecovery(frame),
            Integrations(frame, settings, vault),
            Compliance(frame),
            Audit(frame),
            Queue(frame, wake_ups),
            SettingsPage(frame, settings, vault),
        )

    def show_error(self, req: falcon.Request, resp: falcon.Response, error: RiskRelayError) -> bool:
        """Answer with an error as a page, where it is one of the console's that was asked for; tell whether it was."""
        is_page = req.path == CONSOLE or req.path.startswith(f"{CONSOLE}/")
        if is_page:
            self._frame.show_error(req, resp, error)
        return is_page
