"""All pages and forms of the console."""

from typing import Any

import falcon

from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import RiskRelayError
from schemas.settings.definitions import Settings
from service.console.layout import CONSOLE, PageLayout, RedirectRoute
from service.console.navigation import LiveCounts
from service.console.pages.alerts import AcknowledgeAlert, AlertsPage
from service.console.pages.audit import AuditPage
from service.console.pages.compliance import CompliancePage
from service.console.pages.exports import ExportPage, ExportReceipt, ExportsPage
from service.console.pages.finding_trends import FindingTrendsPage
from service.console.pages.findings import FindingPage, FindingReport, FindingsPage, SetTicketGrouping
from service.console.pages.integrations import IntegrationsPage
from service.console.pages.overview import OverviewPage
from service.console.pages.queue import QueuePage
from service.console.pages.recoveries import CancelRecovery, Recover, RecoveriesPage, RecoveryPage
from service.console.pages.report_uploads import ReportUploadPage, UploadReportPage
from service.console.pages.sessions import SessionRevocation, SessionsPage
from service.console.pages.settings import SettingsPage
from service.console.pages.sign_in import BeginOpenIdSignIn, FinishOpenIdSignIn, SignIn, SignInByLink, SignInLink, SignOut
from service.console.static_files import StaticFiles
from service.console.targets.add import AddTargetPage
from service.console.targets.forms import (
    EditTarget,
    PingTarget,
    RemoveHeader,
    RemoveTarget,
    ResumeTarget,
    SetHeader,
    SetStandardSecret,
    SetTargetSecret,
    SetWebhookOptions,
    StopTarget,
    ValidateTarget,
)
from service.console.targets.pages import TargetPage, TargetsPage
from service.console.triage.bulk import BulkJobPage, CancelBulkJob, DecideSelection, ReviewSelection
from service.console.triage.decisions import Approve, Dismiss, EditPage, Restore, Retry, Shortcuts, SnoozeTicket, Split
from service.console.triage.deliveries import DELIVERIES, DeliveriesPage
from service.console.triage.inbox import INBOX, InboxPage
from service.console.triage.rules import NewRulePage, RemoveRule, RulePage, RulesPage, RuleTestPage, SwitchRule
from service.http.limits.rate_limits import RateLimits
from service.operations.wiring import Operations
from storage.secrets.vault import Vault


class Console:
    """The console, built on the operations that the API uses; `resources` are its routes."""

    def __init__(
        self, settings: Settings, limits: RateLimits, vault: Vault, wake_ups: WakeUpQueue, operations: Operations
    ) -> None:
        self._layout = layout = PageLayout(settings, limits, vault, wake_ups, operations)
        openid = layout.openid
        self.resources: tuple[Any, ...] = (
            StaticFiles(),
            SignIn(layout),
            *([BeginOpenIdSignIn(layout, openid), FinishOpenIdSignIn(layout, openid)] if openid else []),
            *([SignInLink(layout), SignInByLink(layout)] if settings.console_sign_in_links else []),
            SignOut(layout),
            RedirectRoute("", "/inbox", layout),
            RedirectRoute("/", "/inbox", layout),
            InboxPage(layout),
            DeliveriesPage(layout),
            *(ReviewSelection(path, layout) for path in (INBOX, DELIVERIES)),
            *(DecideSelection(path, layout) for path in (INBOX, DELIVERIES)),
            RulesPage(layout),
            NewRulePage(layout),
            RulePage(layout),
            RuleTestPage(layout),
            SwitchRule("enable", layout),
            SwitchRule("disable", layout),
            RemoveRule(layout),
            BulkJobPage(layout),
            CancelBulkJob(layout),
            Shortcuts("on", layout),
            Shortcuts("off", layout),
            LiveCounts(layout.gate, layout.navigation),
            SessionsPage(layout),
            SessionRevocation(layout),
            OverviewPage(layout),
            AlertsPage(layout),
            AcknowledgeAlert(layout),
            ExportsPage(layout),
            ExportPage(layout),
            ExportReceipt(layout),
            Approve(layout),
            Retry(layout),
            Dismiss(ExportPage, layout),
            Restore(layout),
            SnoozeTicket(ExportPage, layout),
            Split(layout),
            EditPage(layout),
            FindingsPage(layout),
            FindingReport(layout),
            FindingTrendsPage(layout),
            FindingPage(layout),
            SetTicketGrouping(layout),
            UploadReportPage(layout),
            ReportUploadPage(layout),
            TargetsPage(layout),
            TargetPage(layout),
            ValidateTarget(layout),
            PingTarget(layout),
            StopTarget("pause", layout),
            ResumeTarget(layout),
            StopTarget("disable", layout),
            SetTargetSecret(layout),
            AddTargetPage(layout),
            EditTarget(layout),
            RemoveTarget(layout),
            SetWebhookOptions(layout),
            SetHeader(layout),
            RemoveHeader(layout),
            SetStandardSecret(layout),
            Recover(layout),
            RecoveriesPage(layout),
            RecoveryPage(layout),
            CancelRecovery(layout),
            IntegrationsPage(layout),
            CompliancePage(layout),
            AuditPage(layout),
            QueuePage(layout),
            SettingsPage(layout),
        )

    def show_error(self, req: falcon.Request, resp: falcon.Response, error: RiskRelayError) -> bool:
        """Respond to a console request with an error page; return False for other requests."""
        is_page = req.path == CONSOLE or req.path.startswith(f"{CONSOLE}/")
        if is_page:
            self._layout.render_error(req, resp, error)
        return is_page
