"""All pages and forms of the console."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import falcon

from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import RiskRelayError
from schemas.settings.definitions import RouteFamily, Settings
from service.console.layout import CONSOLE, ConsoleRoute, PageLayout, RedirectRoute
from service.console.navigation import LiveCounts
from service.console.pages import (
    alerts,
    audit,
    compliance,
    exports,
    findings,
    integrations,
    overview,
    queue,
    recoveries,
    report_uploads,
    sessions,
    sign_in,
)
from service.console.pages import settings as settings_page
from service.console.targets import add, forms
from service.console.targets import pages as targets
from service.console.triage import bulk, decisions, deliveries, inbox, rules
from service.http.limits.rate_limits import RateLimits
from service.http.static_files import StaticFiles
from service.operations.wiring import Operations
from storage.secrets.vault import Vault

#: The folder of the style sheets and the scripts.
_STATIC: Final = Path(__file__).parent / "static"
_STATIC_FILES: Final = {name: _STATIC / name for name in ("console.css", "console.js", "triage.css", "triage.js")}
#: The pages and forms of every installation, one row per subject.
_ROUTES: Final[tuple[tuple[Callable[[PageLayout], ConsoleRoute], ...], ...]] = (
    (partial(RedirectRoute, "", "/inbox"), partial(RedirectRoute, "/", "/inbox")),
    (sign_in.SignIn, sign_in.SignOut),
    (inbox.InboxPage, partial(bulk.ReviewSelection, inbox.INBOX), partial(bulk.DecideSelection, inbox.INBOX)),
    (deliveries.DeliveriesPage,),
    (partial(bulk.ReviewSelection, deliveries.DELIVERIES), partial(bulk.DecideSelection, deliveries.DELIVERIES)),
    (bulk.BulkJobPage, bulk.CancelBulkJob),
    (rules.RulesPage, rules.NewRulePage, rules.RulePage, rules.RuleTestPage),
    (partial(rules.SwitchRule, "enable"), partial(rules.SwitchRule, "disable"), rules.RemoveRule),
    (partial(decisions.Shortcuts, "on"), partial(decisions.Shortcuts, "off")),
    (sessions.SessionsPage, sessions.SessionRevocation),
    (overview.OverviewPage,),
    (alerts.AlertsPage, alerts.AcknowledgeAlert),
    (exports.ExportsPage, exports.ExportPage, exports.ExportReceipt),
    (decisions.Approve, decisions.Retry, decisions.Restore, decisions.Split, decisions.EditPage),
    (partial(decisions.Dismiss, exports.ExportPage), partial(decisions.SnoozeTicket, exports.ExportPage)),
    (
        findings.FindingsPage,
        findings.FindingPage,
        findings.FindingReport,
        findings.SetTicketGrouping,
        findings.FindingTrendsPage,
    ),
    (report_uploads.UploadReportPage, report_uploads.ReportUploadPage),
    (targets.TargetsPage, targets.TargetPage, add.AddTargetPage, forms.EditTarget, forms.RemoveTarget),
    (partial(forms.StopTarget, "pause"), forms.ResumeTarget, partial(forms.StopTarget, "disable")),
    (forms.ValidateTarget, forms.PingTarget, forms.SetTargetSecret),
    (forms.SetWebhookOptions, forms.SetHeader, forms.RemoveHeader, forms.SetStandardSecret),
    (recoveries.Recover, recoveries.RecoveriesPage, recoveries.RecoveryPage, recoveries.CancelRecovery),
    (integrations.IntegrationsPage, compliance.CompliancePage, audit.AuditPage, queue.QueuePage, settings_page.SettingsPage),
)
_OPENID_ROUTES: Final = (sign_in.BeginOpenIdSignIn, sign_in.FinishOpenIdSignIn)
_LINK_ROUTES: Final = (sign_in.SignInLink, sign_in.SignInByLink)


class Console:
    """The console, built on the operations that the API uses; `resources` are its routes."""

    def __init__(
        self, settings: Settings, limits: RateLimits, vault: Vault, wake_ups: WakeUpQueue, operations: Operations
    ) -> None:
        self._layout = layout = PageLayout(settings, limits, vault, wake_ups, operations)
        self.resources: tuple[Any, ...] = (
            StaticFiles(f"{CONSOLE}/static/{{file}}", RouteFamily.CONSOLE, _STATIC_FILES),
            LiveCounts(layout.gate, layout.navigation),
            *(route(layout, layout.openid) for route in _OPENID_ROUTES if layout.openid),
            *(route(layout) for route in _LINK_ROUTES if settings.console_sign_in_links),
            *(route(layout) for row in _ROUTES for route in row),
        )

    def show_error(self, req: falcon.Request, resp: falcon.Response, error: RiskRelayError) -> bool:
        """Respond to a console request with an error page; return False for other requests."""
        is_page = req.path == CONSOLE or req.path.startswith(f"{CONSOLE}/")
        if is_page:
            self._layout.render_error(req, resp, error)
        return is_page
