"""All wiring of the inbound door on one screen."""

from typing import Any

import falcon

from runtime.dns_resolver import DnsResolver
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.settings.definitions import RouteFamily, Settings
from service.api.compliance import ComplianceWebhooksResource
from service.api.email import EmailWebhookResource
from service.api.export_actions import TicketExportApprovalResource, TicketExportDismissalResource, TicketExportRetryResource
from service.api.exports import TicketExportAttemptsResource, TicketExportResource, TicketExportsResource
from service.api.health import HealthResource, ReadinessChecks, ReadinessResource
from service.api.recoveries import RecoveriesResource, RecoveryCancellationResource, RecoveryResource
from service.api.scanner import ScannerResultsResource
from service.api.sessions import ConsoleSessionRevocationResource, ConsoleSessionsResource
from service.api.target_actions import (
    TargetPingResource,
    TargetResumptionResource,
    TargetSwitchResource,
    TargetValidationResource,
)
from service.api.targets import TargetResource, TargetsResource
from service.api.uploads import CmsDiagnosticsResource, EvidenceCapturesResource, StorefrontDiagnosticsResource
from service.console.routes import Console
from service.http import error_responses
from service.http.idempotency import IdempotentExecutor
from service.http.large_body_limiter import BodyBudgets
from service.http.metrics import MetricsResource, RequestMetrics
from service.http.rate_limits import RateLimits
from service.http.rejections import RejectionRecorder
from service.http.request_context import RequestContext
from service.http.request_pipeline import RequestPipeline
from service.openapi.docs_page import DocsPageResource
from service.openapi.resource import OpenApiResource
from service.operations.address_check import AddressCheck
from service.operations.exports import ExportOperations
from service.operations.targets import TargetOperations
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

    `wake_ups` and `resolver` stand in for Redis and the resolver, `limits` for those of a minute, `rooms` for large ones.
    `refusals` are written for the console by whoever has begun them.
    """
    rate_limits = rate_limits or RateLimits(settings)
    wake_ups, resolver = wake_ups or WakeUpQueue(connect(settings.redis_url)), resolver or DnsResolver()
    app: App = falcon.App(
        middleware=[RequestContext(RequestMetrics()), RequestPipeline(settings.max_body_bytes, rate_limits, body_budgets)]
    )
    resources = served(settings, wake_ups, resolver)
    if RouteFamily.CONSOLE in settings.route_families:
        console = console_of(settings, wake_ups, resolver, rate_limits)
        resources += console.resources
        rejections = rejections or RejectionRecorder()
        rejections.watch(resources)
        error_responses.install(app, console.show_error, rejections.note)
    else:
        error_responses.install(app)
    for resource in resources:
        app.add_route(resource.path, resource)
    return app


def console_of(settings: Settings, wake_ups: WakeUpQueue, resolver: DnsResolver, rate_limits: RateLimits) -> Console:
    """Return the console, over the same verbs as the API."""
    vault = Vault(settings.encryption_keys)
    return Console(settings, rate_limits, vault, wake_ups, *_verbs(settings, vault, wake_ups, resolver))


def _verbs(
    settings: Settings, vault: Vault, wake_ups: WakeUpQueue, resolver: DnsResolver
) -> tuple[AddressCheck, TargetOperations, ExportOperations]:
    fingerprint = vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None
    check = AddressCheck(settings, resolver)
    operations = TargetOperations(check, wake_ups, fingerprint, settings.delivery_timeout_s)
    return check, operations, ExportOperations(check, has_default_secret=fingerprint is not None)


def served(settings: Settings, wake_ups: WakeUpQueue, resolver: DnsResolver) -> tuple[Any, ...]:
    """Return the resources of the API that an installation serves, each with its `path` and its responders."""
    vault = Vault(settings.encryption_keys)
    executor = IdempotentExecutor(settings.idempotency_ttl)
    webhook_fingerprint = vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None
    check, operations, decisions = _verbs(settings, vault, wake_ups, resolver)
    page = DocsPageResource()

    resources = (
        ScannerResultsResource(SharedSecrets(settings, vault), executor, settings.default_project_id),
        EmailWebhookResource(SharedSecrets(settings, vault), executor, settings.default_project_id),
        TargetsResource(settings, executor, check, webhook_fingerprint),
        TargetResource(webhook_fingerprint),
        TargetValidationResource(executor, operations),
        TargetPingResource(executor, operations),
        TargetSwitchResource("pause", executor, operations),
        TargetResumptionResource(executor, operations, wake_ups),
        TargetSwitchResource("disable", executor, operations),
        TicketExportsResource(executor, settings.public_base_url),
        TicketExportResource(),
        TicketExportAttemptsResource(settings.public_base_url),
        TicketExportApprovalResource(executor, decisions, wake_ups, settings.public_base_url),
        TicketExportRetryResource(executor, decisions, wake_ups, settings.public_base_url),
        TicketExportDismissalResource(executor, decisions),
        RecoveriesResource(executor, wake_ups, settings.public_base_url),
        RecoveryResource(),
        RecoveryCancellationResource(executor),
        EvidenceCapturesResource(executor),
        CmsDiagnosticsResource(executor),
        StorefrontDiagnosticsResource(executor),
        ComplianceWebhooksResource(SharedSecrets(settings, vault), vault, wake_ups),
        ConsoleSessionsResource(settings.public_base_url),
        ConsoleSessionRevocationResource(executor),
        HealthResource(),
        ReadinessResource(ReadinessChecks(wake_ups, vault)),
        MetricsResource(settings.data_dir, wake_ups),
        page,
        page.files,
    )
    of_this_mode = [resource for resource in resources if resource.family in settings.route_families]
    return (*of_this_mode, OpenApiResource(of_this_mode, settings.public_base_url))
