"""Shared secrets of the inbound integrations: an operator's setting in the database replaces the environment's value.

And what else an operator asks of who hands something in: when the last thing came, who may, and a project to try it with.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from schemas.base.timestamps import from_ms, to_ms
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import Settings
from storage.accounts.audit_log import append
from storage.db.columns import JsonField
from storage.db.engine import first_row, rows, transaction
from storage.db.models import IntegrationSecretRow
from storage.secrets.encrypted_columns import SHARED_SECRET
from storage.secrets.vault import Vault

#: More live tokens than this are told as so many or more.
MOST_TOKENS: Final = 1000

#: Where the last thing that a source handed in stands; each is the end of an index.
_NEWEST: Final = {
    InboundSource.SCANNER: "SELECT MAX(received_at) FROM page_results",
    InboundSource.EMAIL: "SELECT created_at FROM inbound_emails ORDER BY id DESC LIMIT 1",
    InboundSource.BROWSER_EXTENSION: "SELECT created_at FROM evidence_captures ORDER BY id DESC LIMIT 1",
    InboundSource.CMS_PLUGIN: (
        "SELECT created_at FROM diagnostics WHERE platform = 'cms_commerce' ORDER BY platform DESC, id DESC LIMIT 1"
    ),
    InboundSource.STOREFRONT_APP: (
        "SELECT created_at FROM diagnostics WHERE platform = 'storefront' ORDER BY platform DESC, id DESC LIMIT 1"
    ),
    InboundSource.COMPLIANCE: "SELECT created_at FROM compliance_requests ORDER BY id DESC LIMIT 1",
}
_ALL_NEWEST: Final = f"SELECT {', '.join(f'({newest})' for newest in _NEWEST.values())}"
#: Revoked ones stand in no index of these, and those that have expired are removed with time.
_LIVE_TOKENS: Final = """
SELECT abilities FROM tokens
WHERE kind = 'platform' AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?) LIMIT ?"""
_TRY_WITH: Final = """
SELECT (SELECT project_id FROM grants WHERE user_id = ? AND project_id IS NOT NULL ORDER BY project_id LIMIT 1),
    (SELECT MIN(id) FROM projects WHERE account_id = ?), (SELECT MAX(id) FROM scan_runs)"""

_json: Final = JsonField()


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


@dataclass(frozen=True, slots=True)
class TryWith:
    """What somebody may try a source with: a project that they manage, any project of theirs, the last scan run of all."""

    granted_project_id: int | None
    project_id: int | None
    scan_run_id: int | None


def last_accepted() -> Mapping[InboundSource, datetime | None]:
    """Return when the last thing came that is still kept of each source."""
    found = rows(_ALL_NEWEST)[0]
    return {source: from_ms(at_ms) for source, at_ms in zip(_NEWEST, found, strict=True)}


def live_platform_tokens(now: datetime) -> Mapping[str, int]:
    """Return how many platform tokens have each ability and count at `now`; of more than MOST_TOKENS only so many."""
    found = rows(_LIVE_TOKENS, (to_ms(now), MOST_TOKENS))
    return Counter(ability for (abilities,) in found for ability in _json.python_value(abilities))


def try_with(user_id: int, account_id: int) -> TryWith:
    """Return what a user may try a source with."""
    return TryWith(*rows(_TRY_WITH, (user_id, account_id))[0])


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
            IntegrationSecretRow.insert(name=integration.value, **columns).on_conflict(
                conflict_target=[IntegrationSecretRow.name], update=columns
            ).execute()
            append(now, "operator", "set_secret", integration.value)
        return str(columns["secret_fingerprint"])

    def states(self) -> list[SecretState]:
        """Return what may be shown of every integration's secret."""
        stored = {row.name: row.secret_fingerprint for row in IntegrationSecretRow.select()}
        return [self._state(integration, stored.get(integration.value)) for integration in Integration]

    def _state(self, integration: Integration, fingerprint: str | None) -> SecretState:
        if fingerprint is not None:
            return SecretState(integration.value, True, "database", fingerprint)
        secret = self._environment[integration]
        if secret is None:
            return SecretState(integration.value, False, None, None)
        return SecretState(integration.value, True, "environment", self._vault.fingerprint(secret))
