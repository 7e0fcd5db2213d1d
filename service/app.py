"""All wiring of the inbound door on one screen."""

import falcon

from schemas.settings import Settings
from service import error_responses
from service.admission import Admission
from service.exports import TicketExport, TicketExportApproval
from service.health import Health, Readiness
from service.idempotency import Once
from service.manners import Manners
from service.scanner import ScannerResults
from service.targets import TicketExportTargets
from storage.doorbell import Doorbell, connect
from storage.integrations import SharedSecrets
from storage.name_lookup import NameLookup
from storage.vault import Vault

App = falcon.App[falcon.Request, falcon.Response]


def create_app(settings: Settings, doorbell: Doorbell | None = None, lookup: NameLookup | None = None) -> App:
    """Return the WSGI application; the database is open already (`storage.database.open_database`).

    `doorbell` and `lookup` stand in for Redis and the resolver.
    """
    vault = Vault(settings.encryption_keys)
    once = Once(settings.idempotency_ttl)
    bell = doorbell or Doorbell(connect(settings.redis_url))
    webhook_fingerprint = vault.fingerprint(settings.webhook_secret) if settings.webhook_secret else None

    app: App = falcon.App(middleware=[Manners(), Admission(settings.max_body_bytes)])
    error_responses.install(app)
    for resource in (
        ScannerResults(SharedSecrets(settings, vault), once, settings.default_project_id),
        TicketExportTargets(settings, once, lookup or NameLookup(), webhook_fingerprint),
        TicketExport(),
        TicketExportApproval(once, bell, settings.public_base_url),
        Health(),
        Readiness(bell),
    ):
        if resource.family in settings.route_families:
            app.add_route(resource.path, resource)
    return app
