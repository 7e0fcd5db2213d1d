"""All pages and forms of the console."""

from typing import Any

import falcon

from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import RiskRelayError
from schemas.settings.definitions import Settings
from service.api.health import ReadinessChecks
from service.console.layout import CONSOLE, Moved, PageLayout
from service.console.navigation import LiveCounts, Navigation
from service.console.openid_connect import OpenIdConnect
from service.console.pages.alerts import AcknowledgeAlert, AlertsPage
from service.console.pages.audit import AuditPage
from service.console.pages.compliance import CompliancePage
from service.console.pages.export import ExportPage, ExportReceipt
from service.console.pages.exports import ExportsPage
from service.console.pages.finding_trends import FindingTrendsPage
from service.console.pages.findings import FindingPage, FindingReport, FindingsPage, SetTicketGrouping
from service.console.pages.integrations import IntegrationsPage
from service.console.pages.link_sign_in import SignInByLink, SignInLink
from service.console.pages.openid_sign_in import BeginOpenIdSignIn, FinishOpenIdSignIn
from service.console.pages.overview import OverviewPage
from service.console.pages.queue import QueuePage
from service.console.pages.recoveries import CancelRecovery, Recover, RecoveriesPage, RecoveryPage
from service.console.pages.report_uploads import ReportUploadPage, UploadReportPage
from service.console.pages.sessions import SessionRevocation, SessionsPage
from service.console.pages.settings import SettingsPage
from service.console.pages.sign_in import SignIn, SignOut
from service.console.sessions import SessionGate
from service.console.static_files import StaticFiles
from service.console.targets.add import AddTargetPage
from service.console.targets.forms import (
    EditTarget,
    PingTarget,
    RemoveTarget,
    ResumeTarget,
    SetTargetSecret,
    StopTarget,
    ValidateTarget,
)
from service.console.targets.pages import TargetPage, TargetsPage
from service.console.targets.webhook_forms import RemoveHeader, SetHeader, SetStandardSecret, SetWebhookOptions
from service.console.triage.bulk import BulkJobPage, CancelBulkJob, DecideSelection, ReviewSelection
from service.console.triage.decisions import Approve, Dismiss, EditPage, Restore, Retry, Shortcuts, SnoozeTicket, Split
from service.console.triage.deliveries import DELIVERIES, DeliveriesPage
from service.console.triage.inbox import INBOX, InboxPage
from service.console.triage.rules import NewRulePage, RemoveRule, RulePage, RulesPage, RuleTestPage, SwitchRule
from service.http.rate_limits import RateLimits
from service.operations.wiring import Operations
from storage.secrets.vault import Vault


class Console:
    """The console, built on the operations that the API uses; `resources` are its routes."""

    def __init__(
        self,
        settings: Settings,
        limits: RateLimits,
        vault: Vault,
        wake_ups: WakeUpQueue,
        operations: Operations,
    ) -> None:
        checks = ReadinessChecks(wake_ups, vault, settings.data_dir)
        navigation = Navigation(checks)
        self._layout = layout = PageLayout(SessionGate(settings, limits), navigation)
        openid = OpenIdConnect(settings, vault, layout.gate.console_url) if settings.oidc_issuer else None
        has_links = settings.console_sign_in_links
        sign_in = SignIn(layout, openid.label if openid else None, has_links=has_links)
        exports, targets, recoveries = operations.exports, operations.targets, operations.recoveries
        self.resources: tuple[Any, ...] = (
            StaticFiles(),
            sign_in,
            *([BeginOpenIdSignIn(sign_in, layout, openid), FinishOpenIdSignIn(sign_in, layout, openid)] if openid else []),
            *([SignInLink(layout, vault, wake_ups), SignInByLink(sign_in, layout)] if has_links else []),
            SignOut(layout, openid),
            Moved("", "/inbox", layout),
            Moved("/", "/inbox", layout),
            InboxPage(layout, settings.artifacts_base_url),
            DeliveriesPage(layout, settings.artifacts_base_url),
            *(ReviewSelection(path, layout) for path in (INBOX, DELIVERIES)),
            *(DecideSelection(path, layout, exports, operations.bulk) for path in (INBOX, DELIVERIES)),
            RulesPage(layout, operations.approval_rules),
            NewRulePage(layout, operations.approval_rules),
            RulePage(layout, operations.approval_rules),
            RuleTestPage(layout, operations.approval_rules),
            SwitchRule("enable", layout, operations.approval_rules),
            SwitchRule("disable", layout, operations.approval_rules),
            RemoveRule(layout, operations.approval_rules),
            BulkJobPage(layout, operations.bulk),
            CancelBulkJob(layout, operations.bulk),
            Shortcuts("on", layout),
            Shortcuts("off", layout),
            LiveCounts(layout.gate, navigation),
            SessionsPage(layout),
            SessionRevocation(layout),
            OverviewPage(layout, checks),
            AlertsPage(layout, settings),
            AcknowledgeAlert(layout),
            ExportsPage(layout),
            ExportPage(layout, settings.artifacts_base_url),
            ExportReceipt(layout, exports),
            Approve(layout, exports),
            Retry(layout, exports),
            Dismiss(layout, exports),
            Restore(layout, exports),
            SnoozeTicket(layout, exports),
            Split(layout, exports),
            EditPage(layout, exports),
            FindingsPage(layout),
            FindingReport(layout),
            FindingTrendsPage(layout),
            FindingPage(layout),
            SetTicketGrouping(layout),
            UploadReportPage(layout, operations.report_uploads),
            ReportUploadPage(layout, operations.report_uploads),
            TargetsPage(layout, targets),
            TargetPage(layout, targets),
            ValidateTarget(layout, targets),
            PingTarget(layout, targets),
            StopTarget("pause", layout, targets),
            ResumeTarget(layout, targets),
            StopTarget("disable", layout, targets),
            SetTargetSecret(layout, targets, vault),
            AddTargetPage(layout, targets, vault),
            EditTarget(layout, targets),
            RemoveTarget(layout, targets),
            SetWebhookOptions(layout, targets),
            SetHeader(layout, targets, vault),
            RemoveHeader(layout, targets, vault),
            SetStandardSecret(layout, targets, vault),
            Recover(layout, recoveries),
            RecoveriesPage(layout),
            RecoveryPage(layout),
            CancelRecovery(layout, recoveries),
            IntegrationsPage(layout, settings, vault),
            CompliancePage(layout),
            AuditPage(layout),
            QueuePage(layout, wake_ups),
            SettingsPage(layout, settings, vault),
        )

    def show_error(self, req: falcon.Request, resp: falcon.Response, error: RiskRelayError) -> bool:
        """Respond to a console request with an error page; return False for other requests."""
        is_page = req.path == CONSOLE or req.path.startswith(f"{CONSOLE}/")
        if is_page:
            self._layout.render_error(req, resp, error)
        return is_page
