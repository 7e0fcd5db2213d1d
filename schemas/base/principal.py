"""Callers, the roles of users, and the abilities of their tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
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
    ADMIN = "admin"
    UPLOAD_EVIDENCE = "browser-extension:evidence-upload"
    UPLOAD_CMS_DIAGNOSTICS = "cms-plugin:diagnostics-upload"
    UPLOAD_STOREFRONT_DIAGNOSTICS = "storefront-app:diagnostics-upload"


_UPLOADS: Final = (Ability.UPLOAD_EVIDENCE, Ability.UPLOAD_CMS_DIAGNOSTICS, Ability.UPLOAD_STOREFRONT_DIAGNOSTICS)
#: The abilities that a token of each kind may have.
ABILITIES: Final = {
    TokenKind.API: tuple(ability for ability in Ability if ability not in _UPLOADS),
    TokenKind.PLATFORM: _UPLOADS,
}

#: A token has these abilities only if the request that creates it names them.
NAMED_ABILITIES: Final = frozenset({Ability.CONSOLE, Ability.MANAGE_ACCOUNT, Ability.ADMIN})
#: The abilities of a token that was created without a list of abilities: all others of its kind.
DEFAULT_ABILITIES: Final = {
    kind: tuple(ability for ability in abilities if ability not in NAMED_ABILITIES) for kind, abilities in ABILITIES.items()
}


class Role(StrEnum):
    """What a user may do in an account, or in some of its projects; each role includes those before it."""

    VIEWER = "viewer"
    TRIAGER = "triager"
    MANAGER = "manager"
    OWNER = "owner"


#: The roles that a user can have in single projects; an owner owns an account.
PROJECT_ROLES: Final = (Role.VIEWER, Role.TRIAGER, Role.MANAGER)
#: The abilities that each role adds. Uploads need no role: grants decide which projects they may name.
_ADDED: Final[Mapping[Role, frozenset[Ability]]] = {
    Role.VIEWER: frozenset({Ability.READ_EXPORTS, Ability.READ_FINDINGS, Ability.CONSOLE}),
    Role.TRIAGER: frozenset({Ability.PREPARE_EXPORTS, Ability.APPROVE_EXPORTS}),
    Role.MANAGER: frozenset({Ability.MANAGE_TARGETS, Ability.MANAGE_RULES}),
    Role.OWNER: frozenset({Ability.MANAGE_ACCOUNT, Ability.ADMIN}),
}
_ROLES: Final = tuple(Role)
#: The abilities of each role in an account.
ROLE_ABILITIES: Final[Mapping[Role, frozenset[Ability]]] = {
    role: frozenset().union(*(_ADDED[each] for each in _ROLES[: place + 1]), ABILITIES[TokenKind.PLATFORM])
    for place, role in enumerate(_ROLES)
}
#: No role in a project gives these abilities: targets and rules belong to the account, and so may handwritten tickets.
_ACCOUNT_ABILITIES: Final = frozenset(
    {Ability.MANAGE_TARGETS, Ability.MANAGE_RULES, Ability.PREPARE_EXPORTS, Ability.MANAGE_ACCOUNT, Ability.ADMIN}
)


#: Many tokens have the same abilities, so their intersections are cached: computing one takes a microsecond of each request.
_MAX_COMBINATIONS: Final = 256


def least_role(ability: Ability) -> Role:
    """Return the first role that has an ability."""
    return next(role for role in _ROLES if ability in ROLE_ABILITIES[role])


def role_abilities(role: Role | None, project_roles: Iterable[Role] = ()) -> frozenset[str]:
    """Return the abilities of a user who signed in without a token: by the role in the account, else in projects."""
    return effective_abilities(frozenset(Ability), role, frozenset(project_roles))


@lru_cache(maxsize=_MAX_COMBINATIONS)
def effective_abilities(abilities: frozenset[str], role: Role | None, project_roles: frozenset[Role]) -> frozenset[str]:
    """Return the abilities of a token that its user's role in the account, or else in any project, allows."""
    if role is not None:
        return abilities & ROLE_ABILITIES[role]
    allowed: frozenset[str] = frozenset().union(*(ROLE_ABILITIES[each] for each in project_roles)) - _ACCOUNT_ABILITIES
    return abilities & (allowed | frozenset(ABILITIES[TokenKind.PLATFORM]))


@dataclass(frozen=True, slots=True)
class TokenPrincipal:
    """A caller identified by a token, or a user who signed in to the console without one: `token_id` is None.

    `abilities` are those of the token that its user's role allows. `projects` maps the ids of projects to the user's roles
    in them, and is None for a user with a role in the whole account.
    """

    token_id: int | None
    user_id: int
    account_id: int
    kind: TokenKind
    abilities: frozenset[str]
    may_use_webhooks: bool
    role: Role | None = Role.OWNER
    projects: Mapping[int, Role] | None = None

    @property
    def key(self) -> str:
        """The caller in idempotency keys and audit entries: the user, so that a rotated token gets stored responses."""
        return f"user:{self.user_id}"

    @property
    def role_abilities(self) -> frozenset[str]:
        """The abilities of the caller's role, or of all roles in projects together, whether or not the token has them."""
        return role_abilities(self.role, (self.projects or {}).values())

    def projects_with(self, ability: Ability) -> tuple[int, ...] | None:
        """Return the projects in which the caller has an ability; None for a caller with a role in the whole account."""
        if self.projects is None:
            return None
        return tuple(sorted(each for each, role in self.projects.items() if ability in ROLE_ABILITIES[role]))


@dataclass(frozen=True, slots=True)
class AdministratorPrincipal:
    """A user of the operator's account whose token has the ability `admin`: acts on the records of every account."""

    token: TokenPrincipal
    account_id: ClassVar[None] = None

    @property
    def key(self) -> str:
        """The caller in audit entries: the user."""
        return self.token.key


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

#: Callers who may change targets and exports: a client or a person with a token, or the operator.
Actor: TypeAlias = TokenPrincipal | OperatorPrincipal
#: Callers who may manage accounts: users their own account, administrators and the operator every account.
Manager: TypeAlias = TokenPrincipal | AdministratorPrincipal | OperatorPrincipal
