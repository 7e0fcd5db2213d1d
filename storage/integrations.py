"""Shared secrets of the inbound integrations: an operator's setting in the database replaces the environment's value."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from schemas.settings import Settings
from storage.audit import append
from storage.database import first_row, transaction
from storage.models import IntegrationSecret
from storage.sealed import SHARED_SECRET
from storage.vault import Vault


class Integration(StrEnum):
    """An inbound sender that is known by a shared secret."""

    SCANNER = "scanner"
    EMAIL = "email"
    STOREFRONT = "storefront"


@dataclass(frozen=True, slots=True)
class SecretState:
    """What may be shown of a secret."""

    name: str
    configured: bool
    source: str | None
    fingerprint: str | None


class SharedSecrets:
    """Reads the secret in force: of the database where one is set, else of the environment."""

    def __init__(self, settings: Settings, vault: Vault) -> None:
        self._vault = vault
        self._environment = {
            Integration.SCANNER: settings.scanner_shared_secret,
            Integration.EMAIL: settings.email_webhook_secret,
            Integration.STOREFRONT: settings.storefront_webhook_secret,
        }

    def current(self, integration: Integration) -> str | None:
        """Return the secret in force; read at every request, so that a new one counts in every process at once."""
        found = first_row("SELECT secret_sealed FROM integration_secrets WHERE name = ?", (integration.value,))
        if found:
            return self._vault.open(bytes(found[0]), SHARED_SECRET.context(integration.value))
        return self._environment[integration]

    def set(self, integration: Integration, secret: str, now: datetime) -> str:
        """Put `secret` in force and return its fingerprint; the old one stops at once."""
        columns = {
            "secret_sealed": self._vault.seal(secret, SHARED_SECRET.context(integration.value)),
            "secret_fingerprint": self._vault.fingerprint(secret),
            "updated_at": now,
        }
        with transaction():
            IntegrationSecret.insert(name=integration.value, **columns).on_conflict(
                conflict_target=[IntegrationSecret.name], update=columns
            ).execute()
            append(now, "operator", "set_secret", integration.value)
        return str(columns["secret_fingerprint"])

    def states(self) -> list[SecretState]:
        """Return what may be shown of every integration's secret."""
        stored = {row.name: row.secret_fingerprint for row in IntegrationSecret.select()}
        return [self._state(integration, stored.get(integration.value)) for integration in Integration]

    def _state(self, integration: Integration, fingerprint: str | None) -> SecretState:
        if fingerprint is not None:
            return SecretState(integration.value, True, "database", fingerprint)
        secret = self._environment[integration]
        if secret is None:
            return SecretState(integration.value, False, None, None)
        return SecretState(integration.value, True, "environment", self._vault.fingerprint(secret))
