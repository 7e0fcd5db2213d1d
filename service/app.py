"""Wires the service: middleware, API resources, console."""

from typing import Any

import falcon

from runtime.dns_resolver import DnsResolver
from runtime.wake_up_queue import BackgroundWakeUps, WakeUpQueue, connect
from schemas.settings.definitions import RouteFamily, Settings
from service.api import approval_rules, bulk, export_actions, exports, findings, recoveries, sessions, target_actions
from service.api.accounts import accounts, audit, projects, tokens, users
from service.api.health import HealthResource, ReadinessChecks, ReadinessResource
from service.api.intake import compliance, email, scanner, uploads
from service.api.metrics import MetricsResource
from service.api.resources import ApiContext
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
    """Return the WSGI application. The caller has opened the database with `storage.db.engine.open_database`.

    `wake_ups` and `resolver` replace Redis and DNS if given. The caller starts `rejections`, which then writes rejections.
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
        error_responses.install(app, console.show_error, rejections.record)
    else:
        error_responses.install(app)
    for resource in resources:
        # Adding the last route compiles the router. Otherwise each forked process would compile it in its first request.
        app.add_route(resource.path, resource, compile=resource is resources[-1])
    return app


def api_resources(settings: Settings, wake_ups: WakeUpQueue, operations: Operations) -> tuple[Any, ...]:
    """Return the API resources that the deployment mode serves, each with its `path`."""
    vault = Vault(settings.encryption_keys)
    secrets = SharedSecrets(settings, vault)
    docs_page = DocsPageResource()
    api = ApiContext.of(settings, operations)

    resources = (
        scanner.ScannerResultsResource(api, secrets),
        email.EmailWebhookResource(api, secrets, settings),
        TargetsResource(api),
        TargetResource(api),
        ProvidersResource(api),
        target_actions.TargetValidationResource(api),
        target_actions.TargetPingResource(api),
        target_actions.TargetSwitchResource("pause", api),
        target_actions.TargetResumptionResource(api),
        target_actions.TargetSwitchResource("disable", api),
        exports.TicketExportsResource(api),
        exports.TicketExportResource(api),
        exports.TicketExportPartsResource("attempts", api),
        exports.TicketExportPartsResource("events", api),
        exports.TicketExportReceiptResource(api),
        export_actions.TicketExportApprovalResource(api),
        export_actions.TicketExportRetryResource(api),
        export_actions.TicketExportDecisionResource("dismiss", api),
        export_actions.TicketExportDecisionResource("restore", api),
        export_actions.TicketExportDecisionResource("snooze", api),
        export_actions.TicketExportDecisionResource("split", api),
        bulk.BulkDecisionsResource(api),
        bulk.BulkJobsResource(api),
        bulk.BulkJobResource(api),
        bulk.BulkJobCancellationResource(api),
        findings.FindingsResource(api),
        findings.FindingResource(api),
        projects.ProjectsResource(api),
        projects.ProjectResource(api),
        accounts.OwnAccountResource(api),
        accounts.AccountsResource(api),
        accounts.AccountResource(api),
        users.UsersResource(api),
        users.UserResource(api),
        users.GrantsResource(api),
        users.GrantResource(api),
        tokens.TokensResource(api),
        tokens.TokenResource(api),
        projects.ScanRunsResource(api),
        projects.ScanRunResource(api),
        audit.AuditResource(api),
        audit.ComplianceRequestsResource(api),
        audit.ComplianceRequestResource(api),
        recoveries.RecoveriesResource(api),
        recoveries.RecoveryResource(api),
        recoveries.RecoveryCancellationResource(api),
        approval_rules.ApprovalRulesResource(api),
        approval_rules.ApprovalRuleResource(api),
        approval_rules.ApprovalRuleTestResource(api),
        uploads.EvidenceCapturesResource(api),
        uploads.CmsDiagnosticsResource(api),
        uploads.StorefrontDiagnosticsResource(api),
        uploads.HandoffResource(api),
        compliance.ComplianceWebhooksResource(secrets, operations),
        sessions.ConsoleSessionsResource(api),
        sessions.ConsoleSessionRevocationResource(api),
        HealthResource(settings),
        ReadinessResource(ReadinessChecks(wake_ups, vault, settings.data_dir)),
        MetricsResource(settings.data_dir, wake_ups),
        docs_page,
        docs_page.files,
    )
    in_this_mode = [resource for resource in resources if resource.family in settings.route_families]
    return (*in_this_mode, OpenApiResource(in_this_mode, settings.public_base_url))
