"""Every page and form of the console, on one screen."""

from typing import Any

import falcon

from schemas.errors import RiskRelayError
from schemas.settings import Settings
from service.console.audit import Audit
from service.console.compliance import Compliance
from service.console.entrance import Entrance
from service.console.export import ExportPage
from service.console.exports import Approve, Dismiss, Exports, Retry
from service.console.files import ConsoleFiles
from service.console.findings import Findings
from service.console.frame import CONSOLE, Frame
from service.console.integrations import Integrations
from service.console.overview import Overview, WithSlash
from service.console.queue import Queue
from service.console.recoveries import CancelRecovery, Recover, Recoveries, RecoveryPage
from service.console.sessions import SessionRevocation, Sessions
from service.console.settings import SettingsPage
from service.console.sign_in import SignIn, SignOut
from service.console.targets import PingTarget, Resume, SetSecret, TargetPage, Targets, Turn, Validate
from service.export_decisions import ExportDecisions
from service.health import Checks
from service.limits import Limits
from service.target_moves import TargetMoves
from service.targets import AddressCheck
from storage.doorbell import Doorbell
from storage.vault import Vault


class Console:
    """The console over the verbs that the API has; `resources` are its routes.

    `bell` is rung, once it is committed, for whatever becomes due.
    """

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        vault: Vault,
        bell: Doorbell,
        check: AddressCheck,
        moves: TargetMoves,
        decisions: ExportDecisions,
    ) -> None:
        self._frame = frame = Frame(Entrance(settings, limits))
        self.resources: tuple[Any, ...] = (
            ConsoleFiles(),
            SignIn(frame),
            SignOut(frame),
            WithSlash(frame),
            Sessions(frame),
            SessionRevocation(frame),
            Overview(frame, Checks(bell, vault)),
            Exports(frame),
            ExportPage(frame),
            Approve(frame, decisions, bell),
            Retry(frame, decisions, bell),
            Dismiss(frame, decisions),
            Findings(frame),
            Targets(frame, vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None),
            TargetPage(frame, moves),
            Validate(frame, moves),
            PingTarget(frame, moves),
            Turn("pause", frame, moves),
            Resume(frame, moves, bell),
            Turn("disable", frame, moves),
            SetSecret(frame, moves, vault),
            Recover(frame, bell),
            Recoveries(frame),
            RecoveryPage(frame, moves),
            CancelRecovery(frame),
            Integrations(frame, settings, vault),
            Compliance(frame),
            Audit(frame),
            Queue(frame, bell),
            SettingsPage(frame, settings, vault),
        )

    def show_error(self, req: falcon.Request, resp: falcon.Response, error: RiskRelayError) -> bool:
        """Answer with an error as a page, where it is one of the console's that was asked for; tell whether it was."""
        is_page = req.path == CONSOLE or req.path.startswith(f"{CONSOLE}/")
        if is_page:
            self._frame.show_error(req, resp, error)
        return is_page
