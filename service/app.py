"""All wiring of the inbound door on one screen."""

from typing import Any

import falcon

from schemas.settings import RouteFamily, Settings
from service import error_responses
from service.admission import Admission
from service.api_description import ApiDescription
from service.api_page import ApiPage
from service.big_bodies import Rooms
from service.compliance import ComplianceWebhooks
from service.console.pages import Console
from service.console_sessions import ConsoleSessionRevocation, ConsoleSessions
from service.email import EmailWebhook
from service.export_decisions import ExportDecisions
from service.export_moves import TicketExportApproval, TicketExportDismissal, TicketExportRetry
from service.exports import TicketExport, TicketExportAttempts, TicketExports
from service.health import Checks, Health, Readiness
from service.idempotency import Once
from service.limits import Limits
from service.manners import Manners
from service.metrics import Metrics, Requests
from service.recoveries import RecoveryCancellation, TicketExportRecoveries, TicketExportRecovery
from service.refusals import Refusals
from service.scanner import ScannerResults
from service.target_actions import TargetPing, TargetResumption, TargetSwitch, TargetValidation
from service.target_moves import TargetMoves
from service.targets import AddressCheck, TicketExportTarget, TicketExportTargets
from service.uploads import CmsDiagnostics, EvidenceCaptures, StorefrontDiagnostics
from storage.doorbell import Doorbell, connect
from storage.integrations import SharedSecrets
from storage.name_lookup import NameLookup
from storage.vault import Vault

App = falcon.App[falcon.Request, falcon.Response]


def create_app(
    settings: Settings,
    doorbell: Doorbell | None = None,
    lookup: NameLookup | None = None,
    limits: Limits | None = None,
    rooms: Rooms | None = None,
    refusals: Refusals | None = None,
) -> App:
    """Return the WSGI application; the database is open already (`storage.database.open_database`).

    `doorbell` and `lookup` stand in for Redis and the resolver, `limits` for those of a minute, `rooms` for large ones.
    `refusals` are written for the console by whoever has begun them.
    """
    limits = limits or Limits(settings)
    bell, lookup = doorbell or Doorbell(connect(settings.redis_url)), lookup or NameLookup()
    app: App = falcon.App(middleware=[Manners(Requests()), Admission(settings.max_body_bytes, limits, rooms)])
    resources = served(settings, bell, lookup)
    if RouteFamily.CONSOLE in settings.route_families:
        console = console_of(settings, bell, lookup, limits)
        resources += console.resources
        refusals = refusals or Refusals()
        refusals.watch(resources)
        error_responses.install(app, console.show_error, refusals.note)
    else:
        error_responses.install(app)
    for resource in resources:
        app.add_route(resource.path, resource)
    return app


def console_of(settings: Settings, bell: Doorbell, lookup: NameLookup, limits: Limits) -> Console:
    """Return the console, over the same verbs as the API."""
    vault = Vault(settings.encryption_keys)
    return Console(settings, limits, vault, bell, *_verbs(settings, vault, bell, lookup))


def _verbs(
    settings: Settings, vault: Vault, bell: Doorbell, lookup: NameLookup
) -> tuple[AddressCheck, TargetMoves, ExportDecisions]:
    fingerprint = vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None
    check = AddressCheck(settings, lookup)
    moves = TargetMoves(check, bell, fingerprint, settings.delivery_timeout_s)
    return check, moves, ExportDecisions(check, has_default_secret=fingerprint is not None)


def served(settings: Settings, bell: Doorbell, lookup: NameLookup) -> tuple[Any, ...]:
    """Return the resources of the API that an installation serves, each with its `path` and its responders."""
    vault = Vault(settings.encryption_keys)
    once = Once(settings.idempotency_ttl)
    webhook_fingerprint = vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None
    check, moves, decisions = _verbs(settings, vault, bell, lookup)
    page = ApiPage()

    resources = (
        ScannerResults(SharedSecrets(settings, vault), once, settings.default_project_id),
        EmailWebhook(SharedSecrets(settings, vault), once, settings.default_project_id),
        TicketExportTargets(settings, once, check, webhook_fingerprint),
        TicketExportTarget(webhook_fingerprint),
        TargetValidation(once, moves),
        TargetPing(once, moves),
        TargetSwitch("pause", once, moves),
        TargetResumption(once, moves, bell),
        TargetSwitch("disable", once, moves),
        TicketExports(once, settings.public_base_url),
        TicketExport(),
        TicketExportAttempts(settings.public_base_url),
        TicketExportApproval(once, decisions, bell, settings.public_base_url),
        TicketExportRetry(once, decisions, bell, settings.public_base_url),
        TicketExportDismissal(once, decisions),
        TicketExportRecoveries(once, bell, settings.public_base_url),
        TicketExportRecovery(),
        RecoveryCancellation(once),
        EvidenceCaptures(once),
        CmsDiagnostics(once),
        StorefrontDiagnostics(once),
        ComplianceWebhooks(SharedSecrets(settings, vault), vault, bell),
        ConsoleSessions(settings.public_base_url),
        ConsoleSessionRevocation(once),
        Health(),
        Readiness(Checks(bell, vault)),
        Metrics(settings.data_dir, bell),
        page,
        page.files,
    )
    of_this_mode = [resource for resource in resources if resource.family in settings.route_families]
    return (*of_this_mode, ApiDescription(of_this_mode, settings.public_base_url))
