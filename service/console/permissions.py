"""The ability that each page and form of the console needs. A user has the abilities of the role.

`schemas.base.principal` defines the abilities of roles. If a session began with a token, the token itself must also have two
abilities where they are needed: `approval-rules:manage` for rules, `account:manage` for the settings of projects.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from schemas.base.errors import Forbidden, NotFound, WebhooksForbidden
from schemas.base.principal import Ability, TokenPrincipal, least_role
from service.http.auth import require_project_role


class Need(NamedTuple):
    """The requirements of a page or form.

    `allows_project_roles` admits users whose roles are in single projects; `is_for_operator` admits only users of the
    operator's account, `is_for_webhooks` only those of accounts that may use webhook targets.
    """

    ability: Ability
    allows_project_roles: bool = False
    is_for_operator: bool = False
    is_for_webhooks: bool = False


_READ: Final = Need(Ability.READ_EXPORTS)
_READ_IN_PROJECTS: Final = Need(Ability.READ_EXPORTS, allows_project_roles=True)
_DECIDE: Final = Need(Ability.APPROVE_EXPORTS)
_DECIDE_IN_PROJECTS: Final = Need(Ability.APPROVE_EXPORTS, allows_project_roles=True)
_FINDINGS: Final = Need(Ability.READ_FINDINGS, allows_project_roles=True)
_STOP_TARGETS: Final = Need(Ability.MANAGE_TARGETS)
_TARGETS: Final = Need(Ability.MANAGE_TARGETS, is_for_webhooks=True)
_RECOVER: Final = Need(Ability.APPROVE_EXPORTS, is_for_webhooks=True)
_RULES: Final = Need(Ability.MANAGE_RULES)
_INSTALLATION: Final = Need(Ability.MANAGE_TARGETS, is_for_operator=True)
_CONSOLE: Final = Need(Ability.CONSOLE, allows_project_roles=True)

_TOKEN_ABILITIES: Final = frozenset({Ability.MANAGE_RULES, Ability.MANAGE_ACCOUNT})


def _below(page: str, need: Need, *verbs: str) -> dict[str, Need]:
    """Return the need of the forms and pages below a page; the path of each ends with its verb."""
    return {f"{page}/{verb}": need for verb in verbs}


#: The need of each page and form, by its path below the console.
NEEDS: Final[Mapping[str, Need]] = {
    "/inbox": _READ_IN_PROJECTS,
    **_below("/inbox", _DECIDE_IN_PROJECTS, "review", "decide"),
    "/deliveries": _READ_IN_PROJECTS,
    **_below("/deliveries", _DECIDE_IN_PROJECTS, "review", "decide"),
    "/bulk-jobs/{job_id}": _READ,
    "/bulk-jobs/{job_id}/cancel": _DECIDE,
    "/exports": _READ,
    "/exports/{export_id}": _READ_IN_PROJECTS,
    "/exports/{export_id}/receipt": _READ_IN_PROJECTS,
    **_below(
        "/exports/{export_id}", _DECIDE_IN_PROJECTS, "approve", "retry", "dismiss", "restore", "snooze", "split", "edit"
    ),
    "/findings": _FINDINGS,
    "/findings/trends": _FINDINGS,
    "/findings/{finding_id}": _FINDINGS,
    "/projects/{project_id}/report/{report_format}": _FINDINGS,
    "/projects/{project_id}/grouping": Need(Ability.MANAGE_ACCOUNT),
    "/report-uploads": Need(Ability.PREPARE_EXPORTS),
    "/report-uploads/{upload_id}": Need(Ability.PREPARE_EXPORTS),
    "/rules": _READ,
    "/rules/new": _RULES,
    "/rules/{rule_id}": _RULES,
    **_below("/rules/{rule_id}", _RULES, "test", "enable", "disable", "remove"),
    "/targets": _READ,
    "/targets/{target_id}": _READ,
    "/targets/add": _TARGETS,
    **_below("/targets/{target_id}", _STOP_TARGETS, "pause", "disable", "remove"),
    **_below("/targets/{target_id}", _TARGETS, "validate", "ping", "resume", "edit"),
    **_below("/targets/{target_id}", _TARGETS, "secret", "webhook", "header", "header/remove", "standard-secret"),
    "/targets/{target_id}/recover": _RECOVER,
    "/recoveries": _READ,
    "/recoveries/{recovery_id}": _READ,
    "/recoveries/{recovery_id}/cancel": _RECOVER,
    "/overview": _READ,
    "/alerts": _READ,
    "/alerts/{alert_id}/acknowledge": _DECIDE,
    # Users see and revoke their own sessions; an owner also those of other users.
    "/sessions": _CONSOLE,
    "/sessions/{session_id}/revoke": _CONSOLE,
    "/shortcuts/on": _CONSOLE,
    "/shortcuts/off": _CONSOLE,
    "/counts": _CONSOLE,
    "/integrations": _INSTALLATION,
    "/compliance": _INSTALLATION,
    "/audit": _INSTALLATION,
    "/queue": _INSTALLATION,
    "/settings": _INSTALLATION,
}


#: Size of a cache: every page looks up the route of each form that it shows.
_MAX_PATHS: Final = 1024


def require_permission(path: str, principal: TokenPrincipal, ids: Mapping[str, str], *, is_operator: bool) -> None:
    """Raise an error unless the caller's role allows the page or form at `path` for the record in `ids`.

    Raises Forbidden, WebhooksForbidden, NotFound.
    """
    need = NEEDS[path]
    if need.is_for_operator and not is_operator:
        # The response is the same as for a page that does not exist.
        raise NotFound
    if not need.allows_project_roles:
        # Check this first: the message must not advise another role, because no role in a project is enough.
        require_project_role(principal, need.ability, {}, allows_project_roles=False)
    if need.ability not in principal.role_abilities:
        raise Forbidden(f"This needs the role {least_role(need.ability).value}. An owner of the account can give it to you.")
    if need.ability in _TOKEN_ABILITIES - principal.abilities:
        raise Forbidden(f"This needs the ability {need.ability}, which the token of this session lacks.")
    require_project_role(principal, need.ability, ids, allows_project_roles=need.allows_project_roles)
    if need.is_for_webhooks and not principal.may_use_webhooks:
        raise WebhooksForbidden


def is_offered(path: str, principal: TokenPrincipal, *, is_operator: bool) -> bool:
    """Return whether pages show a link or a form for `path`, which may contain ids: whether a role of the user allows it."""
    need = NEEDS[route_of(path)]
    may = need.ability in principal.role_abilities and need.ability not in _TOKEN_ABILITIES - principal.abilities
    is_for_account = (is_operator or not need.is_for_operator) and principal.may_use_webhooks >= need.is_for_webhooks
    return may and is_for_account and (need.allows_project_roles or principal.projects is None)


def is_allowed_in(project_id: int | None, ability: Ability, principal: TokenPrincipal) -> bool:
    """Return whether the caller has an ability for records of a project, or for records without one."""
    projects = principal.projects_with(ability)
    return ability in principal.role_abilities and (projects is None or project_id in projects)


@lru_cache(maxsize=_MAX_PATHS)
def route_of(path: str) -> str:
    """Return the route in NEEDS that matches a path below the console."""
    plain = path.partition("?")[0]
    if plain in NEEDS:
        return plain
    return next(route for route, pattern in _PATTERNS if pattern.fullmatch(plain))


_PATTERNS: Final = [(route, re.compile(re.sub(r"\{\w+\}", "[^/]+", route))) for route in NEEDS]
