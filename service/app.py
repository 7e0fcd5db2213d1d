"""All wiring of the inbound door on one screen."""

from typing import Any

import falcon

from runtime.dns_resolver import DnsResolver
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.settings.definitions import RouteFamily, Settings
from service.api.compliance import ComplianceWebhooks
from service.api.email import EmailWebhook
from service.api.export_actions import TicketExportApproval, TicketExportDismissal, TicketExportRetry
from service.api.exports import TicketExport, TicketExportAttempts, TicketExports
from service.api.health import Checks, Health, Readiness
from service.api.recoveries import RecoveryCancellation, TicketExportRecoveries, TicketExportRecovery
from service.api.scanner import ScannerResults
from service.api.sessions import ConsoleSessionRevocation, ConsoleSessions
from service.api.target_actions import TargetPing, TargetResumption, TargetSwitch, TargetValidation
from service.api.targets import TicketExportTarget, TicketExportTargets
from service.api.uploads import CmsDiagnostics, EvidenceCaptures, StorefrontDiagnostics
from service.console.routes import Console
from service.http import error_responses
from service.http.idempotency import Once
from service.http.large_body_limiter import Rooms
from service.http.metrics import Metrics, Requests
from service.http.rate_limits import Limits
from service.http.rejections import Refusals
from service.http.request_context import Manners
from service.http.request_pipeline import Admission
from service.openapi.docs_page import ApiPage
from service.openapi.resource import ApiDescription
from service.operations.address_check import AddressCheck
from service.operations.exports import ExportDecisions
from service.operations.targets import TargetMoves
from storage.secrets.integrations import SharedSecrets
from storage.secrets.vault import Vault

App = falcon.App[falcon.Request, falcon.Response]


def create_app(
    settings: Settings,
    wake_ups: WakeUpQueue | None = None,
    resolver: DnsResolver | None = None,
    limits: Limits | None = None,
    rooms: Rooms | None = None,
    refusals: Refusals | None = None,
) -> App:
    """Return the WSGI application; the database is open already (`storage.db.engine.open_database`).

    `wake_ups` and `resolver` stand in for Redis and the resolver, `limits` for those of a minute, `rooms` for large ones.
    `refusals` are written for the console by whoever has begun them.
    """
    limits = limits or Limits(settings)
    wake_ups, resolver = wake_ups or WakeUpQueue(connect(settings.redis_url)), resolver or DnsResolver()
    app: App = falcon.App(middleware=[Manners(Requests()), Admission(settings.max_body_bytes, limits, rooms)])
    resources = served(settings, wake_ups, resolver)
    if RouteFamily.CONSOLE in settings.route_families:
        console = console_of(settings, wake_ups, resolver, limits)
        resources += console.resources
        refusals = refusals or Refusals()
        refusals.watch(resources)
        error_responses.install(app, console.show_error, refusals.note)
    else:
        error_responses.install(app)
    for resource in resources:
        app.add_route(resource.path, resource)
    return app


def console_of(settings: Settings, wake_ups: WakeUpQueue, resolver: DnsResolver, limits: Limits) -> Console:
    """Return the console, over the same verbs as the API."""
    vault = Vault(settings.encryption_keys)
    return Console(settings, limits, vault, wake_ups, *_verbs(settings, vault, wake_ups, resolver))


def _verbs(
    settings: Settings, vault: Vault, wake_ups: WakeUpQueue, resolver: DnsResolver
) -> tuple[AddressCheck, TargetMoves, ExportDecisions]:
    fingerprint = vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None
    check = AddressCheck(settings, resolver)
    moves = TargetMoves(check, wake_ups, fingerprint, settings.delivery_timeout_s)
    return check, moves, ExportDecisions(check, has_default_secret=fingerprint is not None)


def served(settings: Settings, wake_ups: WakeUpQueue, resolver: DnsResolver) -> tuple[Any, ...]:
    """Return the resources of the API that an installation serves, each with its `path` and its responders."""
    vault = Vault(settings.encryption_keys)
    once = Once(settings.idempotency_ttl)
    webhook_fingerprint = vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None
    check, moves, decisions = _verbs(settings, vault, wake_ups, resolver)
    page = ApiPage()

    resources = (
        ScannerResults(SharedSecrets(settings, vault), once, settings.default_project_id),
        EmailWebhook(SharedSecrets(settings, vault), once, settings.default_project_id),
        TicketExportTargets(settings, once, check, webhook_fingerprint),
        TicketExportTarget(webhook_fingerprint),
        TargetValidation(once, moves),
        TargetPing(once, moves),
        TargetSwitch("pause", once, moves),
        TargetResumption(once, moves, wake_ups),
        TargetSwitch("disable", once, moves),
        TicketExports(once, settings.public_base_url),
        TicketExport(),
        TicketExportAttempts(settings.public_base_url),
        TicketExportApproval(once, decisions, wake_ups, settings.public_base_url),
        TicketExportRetry(once, decisions, wake_ups, settings.public_base_url),
        TicketExportDismissal(once, decisions),
        TicketExportRecoveries(once, wake_ups, settings.public_base_url),
        TicketExportRecovery(),
        RecoveryCancellation(once),
        EvidenceCaptures(once),
        CmsDiagnostics(once),
        StorefrontDiagnostics(once),
        ComplianceWebhooks(SharedSecrets(settings, vault), vault, wake_ups),
        ConsoleSessions(settings.public_base_url),
        ConsoleSessionRevocation(once),
        Health(),
        Readiness(Checks(wake_ups, vault)),
        Metrics(settings.data_dir, wake_ups),
        page,
        page.files,
    )
    of_this_mode = [resource for resource in resources if resource.family in settings.route_families]
    return (*of_this_mode, ApiDescription(of_this_mode, settings.public_base_url))
