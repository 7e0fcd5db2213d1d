"""WEBHOOK_SECRET: signs deliveries to targets without their own secret, in the accounts that it serves.

In `cloud` mode the accounts do not trust each other, and a receiver that knows a secret can forge deliveries to every other
receiver with the same secret. There it serves only the operator's account, and no account without OPERATOR_ACCOUNT_ID.
"""

from dataclasses import dataclass, field
from typing import Self

from schemas.settings.definitions import DeploymentMode, Settings
from storage.secrets.vault import Vault


@dataclass(frozen=True, slots=True)
class DefaultSecret:
    """A default secret with its fingerprint, or None for both; `accounts` are the accounts that it serves, None for all."""

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
        """Return the secret for an account's targets without their own; None if it does not serve the account."""
        return self.text if self.serves(account_id) else None

    def fingerprint_for(self, account_id: int) -> str | None:
        """Return the fingerprint of an account's default secret; None if the secret does not serve the account."""
        return self.fingerprint if self.serves(account_id) else None

    def serves(self, account_id: int | None) -> bool:
        """Return whether the secret signs for an account's targets that have no own secret."""
        return self.text is not None and (self.accounts is None or account_id in self.accounts)


def served_accounts(settings: Settings) -> frozenset[int] | None:
    """Return the accounts that an identity of the installation, such as its default secret, serves; None for all."""
    if settings.deployment_mode is not DeploymentMode.CLOUD:
        return None
    return frozenset(() if settings.operator_account_id is None else (settings.operator_account_id,))
