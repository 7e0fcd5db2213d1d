"""The product's hot routes written by hand: raw SQL in Falcon responders, with plain sqlite3 and psycopg.

They write the same rows in the same transactions, with the same durability, and return the same responses. They look up the
token for each request and execute each idempotency key once. Each finding becomes its own ticket. They omit validation,
groups of findings, approval rules, address policy, forbidden content, limits, request ids, logs and the common error body;
any unexpected input is a 500. `bench.handwritten.comparison` compares the rows with the product's.
"""

import falcon
from redis import Redis

from bench.handwritten.export_record import HandWrittenExport
from bench.handwritten.postbacks import ScannerResults
from bench.handwritten.stores import SqlStore, open_store
from bench.handwritten.writes import ApprovalRoute, Captures, Targets
from schemas.settings.definitions import Settings, load_settings
from storage.secrets.vault import Vault

App = falcon.App[falcon.Request, falcon.Response]


def create_app(settings: Settings | None = None, store: SqlStore | None = None) -> App:
    """Return the application for a migrated database; by default, the settings come from the environment.

    `store` replaces the database of the settings.
    """
    settings = settings or load_settings()
    store = store or open_store(settings.database_url)
    assert settings.scanner_shared_secret
    assert settings.webhook_secret
    assert settings.default_project_id
    base_url, fingerprint = settings.public_base_url, Vault(settings.encryption_keys).fingerprint(settings.webhook_secret)
    app: App = falcon.App()
    app.add_route("/api/ticket-exports/{export_id}", HandWrittenExport(store))
    app.add_route(
        "/api/ticket-exports/{export_id}/approve", ApprovalRoute(store, base_url, Redis.from_url(settings.redis_url))
    )
    app.add_route("/api/ticket-export-targets", Targets(store, base_url, fingerprint, settings.deployment_mode.value))
    app.add_route("/api/browser-extension/evidence-captures", Captures(store))
    scanner = ScannerResults(store, settings.scanner_shared_secret, settings.default_project_id)
    app.add_route("/api/scanner/results", scanner)
    return app
