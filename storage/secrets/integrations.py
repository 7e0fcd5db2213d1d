"""Shared secrets of the inbound integrations, and the data that the console shows of each inbound source.

A secret that an operator set in the database replaces the environment's value.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from peewee import Model, Select, fn

from schemas.base.principal import TokenKind
from schemas.base.timestamps import from_ms
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import Settings
from storage.accounts.audit_log import append
from storage.accounts.tokens import is_live
from storage.db.engine import database, transaction
from storage.db.models import (
    ComplianceRequestRow,
    DiagnosticRow,
    EvidenceCaptureRow,
    InboundEmailRow,
    IntegrationSecretRow,
    PageResultRow,
    TokenRow,
)
from storage.secrets.encrypted_columns import SHARED_SECRET
from storage.secrets.shared_secrets_sql import find_sealed
from storage.secrets.vault import Vault

#: The most valid tokens that are counted.
MAX_TOKENS: Final = 1000


class Integration(StrEnum):
    """An inbound sender that authenticates with a shared secret."""

    SCANNER = "scanner"
    EMAIL = "email"
    STOREFRONT = "storefront"


#: The source that authenticates with the secret.
SOURCES: Final[Mapping[Integration, InboundSource]] = {
    Integration.SCANNER: InboundSource.SCANNER,
    Integration.EMAIL: InboundSource.EMAIL,
    Integration.STOREFRONT: InboundSource.COMPLIANCE,
}


@dataclass(frozen=True, slots=True)
class SecretState:
    """A secret without its text: whether it is configured, where, and its fingerprint."""

    name: str
    configured: bool
    source: str | None
    fingerprint: str | None


def last_accepted() -> Mapping[InboundSource, datetime | None]:
    """Return when each source's newest stored submission arrived; None if nothing is stored."""
    # Each query reads the end of an index.
    newest = {
        InboundSource.SCANNER: PageResultRow.select(fn.MAX(PageResultRow.received_at)),
        InboundSource.EMAIL: _newest(InboundEmailRow),
        InboundSource.BROWSER_EXTENSION: _newest(EvidenceCaptureRow),
        InboundSource.CMS_PLUGIN: _newest_diagnostic("cms_commerce"),
        InboundSource.STOREFRONT_APP: _newest_diagnostic("storefront"),
        InboundSource.COMPLIANCE: _newest(ComplianceRequestRow),
    }
    [found] = Select((), tuple(newest.values())).bind(database).tuples()
    return {source: from_ms(at_ms) for source, at_ms in zip(newest, found, strict=True)}


def live_platform_tokens(now: datetime) -> Mapping[str, int]:
    """Return how many platform tokens with each ability are valid at `now`, counting MAX_TOKENS tokens at most."""
    # Revoked tokens are not in the index, and expired ones are deleted after a time.
    live = TokenRow.select(TokenRow.abilities).where(TokenRow.kind == TokenKind.PLATFORM.value, is_live(now))
    return Counter(ability for token in live.limit(MAX_TOKENS) for ability in token.abilities)


class SharedSecrets:
    """Reads the secret that is valid now: the database's if one is set, else the environment's."""

    def __init__(self, settings: Settings, vault: Vault) -> None:
        self._vault = vault
        self._environment = {
            Integration.SCANNER: settings.scanner_shared_secret,
            Integration.EMAIL: settings.email_webhook_secret,
            Integration.STOREFRONT: settings.storefront_webhook_secret,
        }

    def current(self, integration: Integration) -> str | None:
        """Return the valid secret. Read for every request, so that a new secret is valid in every process at once."""
        sealed = find_sealed(integration.value)
        if sealed is not None:
            return self._vault.open(sealed, SHARED_SECRET.context(integration.value))
        return self._environment[integration]

    def set(self, integration: Integration, secret: str, now: datetime) -> str:
        """Store `secret` and return its fingerprint; the old one stops working at once."""
        columns = {
            "secret_sealed": self._vault.seal(secret, SHARED_SECRET.context(integration.value)),
            "secret_fingerprint": self._vault.fingerprint(secret),
            "updated_at": now,
        }
        with transaction():
            IntegrationSecretRow.insert(name=integration.value, **columns).on_conflict(
                conflict_target=[IntegrationSecretRow.name], update=columns
            ).execute()
            append(now, "operator", "set_secret", integration.value)
        return str(columns["secret_fingerprint"])

    def states(self) -> list[SecretState]:
        """Return the state of every integration's secret."""
        stored = {row.name: row.secret_fingerprint for row in IntegrationSecretRow.select()}
        return [self._state(integration, stored.get(integration.value)) for integration in Integration]

    def _state(self, integration: Integration, fingerprint: str | None) -> SecretState:
        if fingerprint is not None:
            return SecretState(integration.value, True, "database", fingerprint)
        secret = self._environment[integration]
        if secret is None:
            return SecretState(integration.value, False, None, None)
        return SecretState(integration.value, True, "environment", self._vault.fingerprint(secret))


def _newest(model: type[Model]) -> Any:
    """Return the query for the creation time of the newest row; ids sort by time."""
    columns: Any = model
    return model.select(columns.created_at).order_by(columns.id.desc()).limit(1)


def _newest_diagnostic(platform: str) -> Any:
    # A range instead of an equality. With an equality, PostgreSQL may read the ids of all platforms, newest first. Ordered
    # by platform and id, only the index of both columns finds the newest row without a sort.
    of_platform = DiagnosticRow.select(DiagnosticRow.created_at).where(DiagnosticRow.platform.between(platform, platform))
    return of_platform.order_by(DiagnosticRow.platform.desc(), DiagnosticRow.id.desc()).limit(1)
