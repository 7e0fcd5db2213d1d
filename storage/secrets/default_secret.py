"""WEBHOOK_SECRET: what signs for targets that have no secret of their own, and for which accounts.

In `cloud` mode the accounts do not trust each other, and a receiver that knows a secret can forge deliveries to every other
receiver with the same secret: there it serves the operator's account alone, and none without OPERATOR_ACCOUNT_ID.
"""

from dataclasses import dataclass, field
from typing import Self

from schemas.settings.definitions import DeploymentMode, Settings
from storage.secrets.vault import Vault


@dataclass(frozen=True, slots=True)
class DefaultSecret:
    """A default secret with its fingerprint; `accounts` are those that it serves, None for all. Both texts may be None."""

    text: str | None = field(default=None, repr=False)
    fingerprint: str | None = None
    accounts: frozenset[int] | None = None

    @classmethod
    def of(cls, settings: Settings, vault: Vault) -> Self:
        """Return the default secret of an installation."""
        text = settings.webhook_secret
        if text is None:
            return cls()
        return cls(text, vault.fingerprint(text) if settings.encryption_keys else None, served_accounts(settings))

    def text_for(self, account_id: int | None) -> str | None:
        """Return the secret of an account's targets that have none of their own; None if it serves no such account."""
        return self.text if self.serves(account_id) else None

    def fingerprint_for(self, account_id: int) -> str | None:
        """Return the fingerprint of what signs for an account's targets that have no secret of their own."""
        return self.fingerprint if self.serves(account_id) else None

    def serves(self, account_id: int | None) -> bool:
        """Return whether it signs for an account's targets that have no secret of their own."""
        return self.text is not None and (self.accounts is None or account_id in self.accounts)


def served_accounts(settings: Settings) -> frozenset[int] | None:
    """Return the accounts that an identity of the installation serves; None for all."""
    if settings.deployment_mode is not DeploymentMode.CLOUD:
        return None
    return frozenset(() if settings.operator_account_id is None else (settings.operator_account_id,))
