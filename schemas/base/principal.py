"""Callers and the abilities of their tokens."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias


class TokenKind(StrEnum):
    """API tokens are for clients; platform tokens for the extension, the plugin and the storefront app."""

    API = "api"
    PLATFORM = "platform"


class Ability(StrEnum):
    """An ability of a token."""

    MANAGE_TARGETS = "ticket-export-targets:manage"
    PREPARE_EXPORTS = "ticket-exports:prepare"
    APPROVE_EXPORTS = "ticket-exports:approve"
    READ_EXPORTS = "ticket-exports:read"
    MANAGE_RULES = "approval-rules:manage"
    READ_FINDINGS = "findings:read"
    CONSOLE = "console"
    MANAGE_ACCOUNT = "account:manage"
    UPLOAD_EVIDENCE = "browser-extension:evidence-upload"
    UPLOAD_CMS_DIAGNOSTICS = "cms-plugin:diagnostics-upload"
    UPLOAD_STOREFRONT_DIAGNOSTICS = "storefront-app:diagnostics-upload"


#: The abilities that a token of each kind may have.
ABILITIES: Final = {
    TokenKind.API: (
        Ability.MANAGE_TARGETS,
        Ability.PREPARE_EXPORTS,
        Ability.APPROVE_EXPORTS,
        Ability.READ_EXPORTS,
        Ability.MANAGE_RULES,
        Ability.READ_FINDINGS,
        Ability.CONSOLE,
        Ability.MANAGE_ACCOUNT,
    ),
    TokenKind.PLATFORM: (
        Ability.UPLOAD_EVIDENCE,
        Ability.UPLOAD_CMS_DIAGNOSTICS,
        Ability.UPLOAD_STOREFRONT_DIAGNOSTICS,
    ),
}

#: Abilities that must be named when a token is created.
NAMED_ABILITIES: Final = frozenset({Ability.CONSOLE, Ability.MANAGE_ACCOUNT})
#: The abilities of a token created without named ones: all others of its kind.
DEFAULT_ABILITIES: Final = {
    kind: tuple(ability for ability in abilities if ability not in NAMED_ABILITIES) for kind, abilities in ABILITIES.items()
}


@dataclass(frozen=True, slots=True)
class TokenPrincipal:
    """A caller identified by a token."""

    token_id: int
    user_id: int
    account_id: int
    kind: TokenKind
    abilities: frozenset[str]
    may_use_webhooks: bool

    @property
    def key(self) -> str:
        """The caller in idempotency keys and audit entries: the user, so that a rotated token gets stored responses."""
        return f"user:{self.user_id}"


@dataclass(frozen=True, slots=True)
class SharedSecretPrincipal:
    """A caller identified by a shared secret: the scanner, the email provider or the storefront platform."""

    key: str


@dataclass(frozen=True, slots=True)
class OperatorPrincipal:
    """The operator at the command line, who acts on the records of every account."""

    account_id: ClassVar[None] = None
    key: ClassVar[str] = "operator"


OPERATOR: Final = OperatorPrincipal()

#: Who may change targets and exports: a client or a person with a token, or the operator.
Actor: TypeAlias = TokenPrincipal | OperatorPrincipal
