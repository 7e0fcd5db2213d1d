"""Who is calling, and what a token may do."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class TokenKind(StrEnum):
    """API tokens serve clients, platform tokens serve the extension, plugin and storefront app; neither stands in."""

    API = "api"
    PLATFORM = "platform"


class Ability(StrEnum):
    """What a token may do."""

    MANAGE_TARGETS = "ticket-export-targets:manage"
    PREPARE_EXPORTS = "ticket-exports:prepare"
    APPROVE_EXPORTS = "ticket-exports:approve"
    READ_EXPORTS = "ticket-exports:read"
    CONSOLE = "console"
    UPLOAD_EVIDENCE = "browser-extension:evidence-upload"
    UPLOAD_CMS_DIAGNOSTICS = "cms-plugin:diagnostics-upload"
    UPLOAD_STOREFRONT_DIAGNOSTICS = "storefront-app:diagnostics-upload"


#: What a kind of token can be given at all.
ABILITIES: Final = {
    TokenKind.API: (
        Ability.MANAGE_TARGETS,
        Ability.PREPARE_EXPORTS,
        Ability.APPROVE_EXPORTS,
        Ability.READ_EXPORTS,
        Ability.CONSOLE,
    ),
    TokenKind.PLATFORM: (
        Ability.UPLOAD_EVIDENCE,
        Ability.UPLOAD_CMS_DIAGNOSTICS,
        Ability.UPLOAD_STOREFRONT_DIAGNOSTICS,
    ),
}

#: What a token gets when none are named: all of its kind but the console, which is asked for by name.
DEFAULT_ABILITIES: Final = {
    kind: tuple(ability for ability in abilities if ability is not Ability.CONSOLE) for kind, abilities in ABILITIES.items()
}


@dataclass(frozen=True, slots=True)
class TokenPrincipal:
    """A caller known by a token."""

    token_id: int
    user_id: int
    account_id: int
    kind: TokenKind
    abilities: frozenset[str]
    may_use_webhooks: bool

    @property
    def key(self) -> str:
        """Who it is in idempotency keys and audit entries: the user, so that a new token still gets the old answers."""
        return f"user:{self.user_id}"


@dataclass(frozen=True, slots=True)
class SharedSecretPrincipal:
    """A caller known by a shared secret: the scanner or the email provider."""

    key: str
