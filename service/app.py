"""Wires the service: middleware, API resources, console."""

from typing import Any

import falcon

from runtime.dns_resolver import DnsResolver
from runtime.wake_up_queue import BackgroundWakeUps, WakeUpQueue, connect
from schemas.settings.definitions import RouteFamily, Settings
from service.api import approval_rules, exports, findings, intake, jobs, targets
from service.api.accounts import accounts, audit, projects, users
from service.api.health import HealthResource, ReadinessChecks, ReadinessResource
from service.api.metrics import MetricsResource
from service.api.routes import ApiContext
from service.console.routes import Console
from service.http import error_responses
from service.http.idempotency import IdempotentExecutor
from service.http.limits.large_body_limiter import BodyBudgets
from service.http.limits.rate_limits import RateLimits
from service.http.rejections import RejectionRecorder
from service.http.request_context import RequestContext, RequestMetrics, ServiceRequest
from service.http.request_pipeline import RequestPipeline
from service.openapi.docs_page import DocsPageResource
from service.openapi.resource import OpenApiResource
from service.operations.accounts.authority import OperatorAccount
from service.operations.wiring import Operations, build_operations
from storage.accounts.account_limits import account_limits
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
    executor, operator_account = IdempotentExecutor(settings.idempotency_ttl), OperatorAccount(settings)
    api = ApiContext(executor, operations, operator_account, account_limits(settings), settings.public_base_url)

    resources: tuple[Any, ...] = (
        *intake.scanner_and_email_routes(api, secrets, settings),
        *targets.routes(api),
        *exports.routes(api),
        *jobs.bulk_routes(api),
        *findings.routes(api),
        *projects.routes(api),
        *accounts.routes(api),
        *users.routes(api),
        *users.token_routes(api),
        *projects.scan_run_routes(api),
        *audit.routes(api),
        *jobs.recovery_routes(api),
        *approval_rules.routes(api),
        *intake.upload_routes(api),
        intake.compliance_route(api, secrets),
        *users.session_routes(api),
        HealthResource(settings),
        ReadinessResource(ReadinessChecks(wake_ups, vault, settings.data_dir)),
        MetricsResource(settings.data_dir, wake_ups),
        docs_page,
        docs_page.files,
    )
    in_this_mode = [resource for resource in resources if resource.family in settings.route_families]
    return (*in_this_mode, OpenApiResource(in_this_mode, settings.public_base_url))
