"""Wires the service: middleware, API resources, console."""

from typing import Any

import falcon

from runtime.dns_resolver import DnsResolver
from runtime.wake_up_queue import BackgroundWakeUps, WakeUpQueue, connect
from schemas.settings.definitions import RouteFamily, Settings
from service.api.accounts.accounts import AccountResource, AccountsResource, OwnAccountResource
from service.api.accounts.audit import AuditResource, ComplianceRequestResource, ComplianceRequestsResource
from service.api.accounts.projects import ProjectResource, ProjectsResource, ScanRunResource, ScanRunsResource
from service.api.accounts.tokens import TokenResource, TokensResource
from service.api.accounts.users import GrantResource, GrantsResource, UserResource, UsersResource
from service.api.approval_rules import ApprovalRuleResource, ApprovalRulesResource, ApprovalRuleTestResource
from service.api.bulk import BulkDecisionsResource, BulkJobCancellationResource, BulkJobResource, BulkJobsResource
from service.api.export_actions import (
    TicketExportApprovalResource,
    TicketExportDismissalResource,
    TicketExportRestorationResource,
    TicketExportRetryResource,
    TicketExportSnoozeResource,
    TicketExportSplitResource,
)
from service.api.exports import (
    TicketExportAttemptsResource,
    TicketExportEventsResource,
    TicketExportReceiptResource,
    TicketExportResource,
    TicketExportsResource,
)
from service.api.findings import FindingResource, FindingsResource
from service.api.health import HealthResource, ReadinessChecks, ReadinessResource
from service.api.intake.compliance import ComplianceWebhooksResource
from service.api.intake.email import EmailWebhookResource
from service.api.intake.scanner import ScannerResultsResource
from service.api.intake.uploads import (
    CmsDiagnosticsResource,
    EvidenceCapturesResource,
    HandoffResource,
    StorefrontDiagnosticsResource,
)
from service.api.metrics import MetricsResource
from service.api.recoveries import RecoveriesResource, RecoveryCancellationResource, RecoveryResource
from service.api.resources import ApiContext
from service.api.sessions import ConsoleSessionRevocationResource, ConsoleSessionsResource
from service.api.target_actions import (
    TargetPingResource,
    TargetResumptionResource,
    TargetSwitchResource,
    TargetValidationResource,
)
from service.api.targets import ProvidersResource, TargetResource, TargetsResource
from service.console.routes import Console
from service.http import error_responses
from service.http.limits.large_body_limiter import BodyBudgets
from service.http.limits.rate_limits import RateLimits
from service.http.rejections import RejectionRecorder
from service.http.request_context import RequestContext, RequestMetrics, ServiceRequest
from service.http.request_pipeline import RequestPipeline
from service.openapi.docs_page import DocsPageResource
from service.openapi.resource import OpenApiResource
from service.operations.wiring import Operations, build_operations
from storage.secrets.integrations import SharedSecrets
from storage.secrets.vault import Vault

App = falcon.App[falcon.Request, falcon.Response]


def create_app(
    settings: Settings,
    wake_ups: WakeUpQueue | None = None,
    resolver: DnsResolver | None = None,
    rate_limits: RateLimits | None = None,
    body_budgets: BodyBudgets | None = None,
    rejections: RejectionRecorder | None = None,
) -> App:
    """Return the WSGI application; the database is open already (`storage.db.engine.open_database`).

    `wake_ups` and `resolver` stand in for Redis and DNS; `rejections` are written once the caller has started them.
    """
    rate_limits = rate_limits or RateLimits(settings)
    wake_ups = wake_ups or BackgroundWakeUps(connect(settings.redis_url))
    operations = build_operations(settings, wake_ups, resolver)
    pipeline = RequestPipeline(settings.max_body_bytes, rate_limits, body_budgets)
    app: App = falcon.App(middleware=[RequestContext(RequestMetrics()), pipeline], request_type=ServiceRequest)
    resources = api_resources(settings, wake_ups, operations)
    if RouteFamily.CONSOLE in settings.route_families:
        console = Console(settings, rate_limits, Vault(settings.encryption_keys), wake_ups, operations)
        resources += console.resources
        rejections = rejections or RejectionRecorder()
        rejections.watch(resources)
        error_responses.install(app, console.show_error, rejections.note)
    else:
        error_responses.install(app)
    for resource in resources:
        # The last one compiles the router: each forked process would do so within its first request.
        app.add_route(resource.path, resource, compile=resource is resources[-1])
    return app


def api_resources(settings: Settings, wake_ups: WakeUpQueue, operations: Operations) -> tuple[Any, ...]:
    """Return the API resources that the deployment mode serves, each with its `path`."""
    vault = Vault(settings.encryption_keys)
    secrets = SharedSecrets(settings, vault)
    docs_page = DocsPageResource()
    api = ApiContext.of(settings, operations)

    resources = (
        ScannerResultsResource(api, secrets),
        EmailWebhookResource(api, secrets, settings),
        TargetsResource(api),
        TargetResource(api),
        ProvidersResource(api),
        TargetValidationResource(api),
        TargetPingResource(api),
        TargetSwitchResource("pause", api),
        TargetResumptionResource(api),
        TargetSwitchResource("disable", api),
        TicketExportsResource(api),
        TicketExportResource(api),
        TicketExportAttemptsResource(api),
        TicketExportEventsResource(api),
        TicketExportReceiptResource(api),
        TicketExportApprovalResource(api),
        TicketExportRetryResource(api),
        TicketExportDismissalResource(api),
        TicketExportRestorationResource(api),
        TicketExportSnoozeResource(api),
        TicketExportSplitResource(api),
        BulkDecisionsResource(api),
        BulkJobsResource(api),
        BulkJobResource(api),
        BulkJobCancellationResource(api),
        FindingsResource(api),
        FindingResource(api),
        ProjectsResource(api),
        ProjectResource(api),
        OwnAccountResource(api),
        AccountsResource(api),
        AccountResource(api),
        UsersResource(api),
        UserResource(api),
        GrantsResource(api),
        GrantResource(api),
        TokensResource(api),
        TokenResource(api),
        ScanRunsResource(api),
        ScanRunResource(api),
        AuditResource(api),
        ComplianceRequestsResource(api),
        ComplianceRequestResource(api),
        RecoveriesResource(api),
        RecoveryResource(api),
        RecoveryCancellationResource(api),
        ApprovalRulesResource(api),
        ApprovalRuleResource(api),
        ApprovalRuleTestResource(api),
        EvidenceCapturesResource(api),
        CmsDiagnosticsResource(api),
        StorefrontDiagnosticsResource(api),
        HandoffResource(api),
        ComplianceWebhooksResource(secrets, operations),
        ConsoleSessionsResource(api),
        ConsoleSessionRevocationResource(api),
        HealthResource(settings),
        ReadinessResource(ReadinessChecks(wake_ups, vault, settings.data_dir)),
        MetricsResource(settings.data_dir, wake_ups),
        docs_page,
        docs_page.files,
    )
    in_this_mode = [resource for resource in resources if resource.family in settings.route_families]
    return (*in_this_mode, OpenApiResource(in_this_mode, settings.public_base_url))
