"""All wiring of the inbound door on one screen."""

from typing import Any

import falcon

from schemas.settings import Settings
from service import error_responses
from service.admission import Admission
from service.api_description import ApiDescription
from service.api_page import ApiPage
from service.big_bodies import Rooms
from service.compliance import ComplianceWebhooks
from service.email import EmailWebhook
from service.export_moves import TicketExportApproval, TicketExportDismissal, TicketExportRetry
from service.exports import TicketExport, TicketExportAttempts, TicketExports
from service.health import Health, Readiness
from service.idempotency import Once
from service.limits import Limits
from service.manners import Manners
from service.metrics import Metrics, Requests
from service.scanner import ScannerResults
from service.target_actions import TargetPing, TargetResumption, TargetSwitch, TargetValidation
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
) -> App:
    """Return the WSGI application; the database is open already (`storage.database.open_database`).

    `doorbell` and `lookup` stand in for Redis and the resolver, `limits` for those of a minute, `rooms` for large ones.
    """
    admission = Admission(settings.max_body_bytes, limits or Limits(settings), rooms)
    app: App = falcon.App(middleware=[Manners(Requests()), admission])
    error_responses.install(app)
    for resource in served(settings, doorbell or Doorbell(connect(settings.redis_url)), lookup or NameLookup()):
        app.add_route(resource.path, resource)
    return app


def served(settings: Settings, bell: Doorbell, lookup: NameLookup) -> tuple[Any, ...]:
    """Return the resources that an installation serves, each with its `path` and its responders."""
    vault = Vault(settings.encryption_keys)
    once = Once(settings.idempotency_ttl)
    webhook_fingerprint = vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None
    check = AddressCheck(settings, lookup)
    page = ApiPage()

    resources = (
        ScannerResults(SharedSecrets(settings, vault), once, settings.default_project_id),
        EmailWebhook(SharedSecrets(settings, vault), once, settings.default_project_id),
        TicketExportTargets(settings, once, check, webhook_fingerprint),
        TicketExportTarget(webhook_fingerprint),
        TargetValidation(once, check, bell, webhook_fingerprint, settings.delivery_timeout_s),
        TargetPing(once, bell, settings.delivery_timeout_s),
        TargetSwitch("pause", once, webhook_fingerprint),
        TargetResumption(once, check, bell, webhook_fingerprint),
        TargetSwitch("disable", once, webhook_fingerprint),
        TicketExports(once, settings.public_base_url),
        TicketExport(),
        TicketExportAttempts(settings.public_base_url),
        TicketExportApproval(once, bell, settings.public_base_url),
        TicketExportRetry(once, check, bell, settings.public_base_url, has_default_secret=webhook_fingerprint is not None),
        TicketExportDismissal(once),
        EvidenceCaptures(once),
        CmsDiagnostics(once),
        StorefrontDiagnostics(once),
        ComplianceWebhooks(SharedSecrets(settings, vault), vault, bell),
        Health(),
        Readiness(bell, vault),
        Metrics(settings.data_dir, bell),
        page,
        page.files,
    )
    of_this_mode = [resource for resource in resources if resource.family in settings.route_families]
    return (*of_this_mode, ApiDescription(of_this_mode, settings.public_base_url))
