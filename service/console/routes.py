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
from service.operations.wiring import Operations
from storage.secrets.vault import Vault


class Console:
    """The console, over the same use cases as the API; `resources` are its routes."""

    def __init__(
        self,
        settings: Settings,
        limits: RateLimits,
        vault: Vault,
        wake_ups: WakeUpQueue,
        operations: Operations,
    ) -> None:
        exports, targets, recoveries = operations.exports, operations.targets, operations.recoveries
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
            Approve(frame, exports),
            Retry(frame, exports),
            Dismiss(frame, exports),
            Findings(frame),
            Targets(frame, targets),
            TargetPage(frame, targets),
            Validate(frame, targets),
            PingTarget(frame, targets),
            Turn("pause", frame, targets),
            Resume(frame, targets),
            Turn("disable", frame, targets),
            SetSecret(frame, targets, vault),
            Recover(frame, recoveries),
            Recoveries(frame),
            RecoveryPage(frame, targets),
            CancelRecovery(frame, recoveries),
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
