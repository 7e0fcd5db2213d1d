"""`/console/integrations`: each inbound source with its credential, and its last accepted and last rejected request."""

from collections.abc import Container, Mapping
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.intake.sources import connected_status
from schemas.settings.definitions import RouteFamily
from service.api import intake
from service.console.layout import CONSOLE, ConsolePage
from service.console.sessions import ConsoleUser
from storage.accounts import projects
from storage.intake import rejections
from storage.secrets import integrations
from storage.secrets.integrations import MAX_TOKENS, Integration, SharedSecrets


class _Source(NamedTuple):
    """A source: its name, its API route, and its credential, which is a shared secret or a token with an ability."""

    name: str
    resource: intake.InboundRoute
    integration: Integration | None = None
    variable: str = ""
    ability: Ability | None = None


SOURCES: Final = (
    _Source("Scanner", intake.SCANNER, Integration.SCANNER, "SCANNER_SHARED_SECRET"),
    _Source("Email", intake.EMAIL, Integration.EMAIL, "EMAIL_WEBHOOK_SECRET"),
    _Source("Browser extension", intake.CAPTURES, ability=Ability.UPLOAD_EVIDENCE),
    _Source("CMS plugin", intake.CMS_DIAGNOSTICS, ability=Ability.UPLOAD_CMS_DIAGNOSTICS),
    _Source("Storefront app", intake.STOREFRONT_DIAGNOSTICS, ability=Ability.UPLOAD_STOREFRONT_DIAGNOSTICS),
    _Source("Storefront compliance", intake.COMPLIANCE, Integration.STOREFRONT, "STOREFRONT_WEBHOOK_SECRET"),
)

#: Texts for problems with a credential; other problems are shown as their code.
_PROBLEMS: Final = {
    "not_configured": "no secret is set",
    "missing": "the header is missing",
    "twice": "the header was sent twice or contains a comma",
    "wrong": "the value is unknown, was revoked or has expired",
    "wrong_kind": "the token has the wrong kind",
    "lacks_ability": "the token lacks the required ability",
    "other_network": "the client's address is not in EMAIL_ALLOWED_NETWORKS",
}


class IntegrationsPage(ConsolePage):
    """Shows all inbound sources."""

    path = f"{CONSOLE}/integrations"
    template = "integrations.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return a card for each source."""
        secrets = {state.name: state for state in SharedSecrets(self._settings, self._vault).states()}
        tokens = integrations.live_platform_tokens(utc_now())
        accepted, rejected = integrations.last_accepted(), rejections.last()

        def card(kind: _Source) -> dict[str, Any]:
            resource = kind.resource
            accepted_at, rejection = accepted[resource.source], rejected.get(resource.source)
            return {
                "kind": kind,
                "enabling_setting": _enabling_setting(resource.family, self._settings.route_families),
                "secret": secrets[kind.integration.value] if kind.integration else None,
                "tokens": tokens.get(kind.ability, 0) if kind.ability else 0,
                "connected": connected_status(accepted_at, rejection),
                "accepted_at": accepted_at,
                "rejection": rejection,
            }

        return {
            "integrations": [card(kind) for kind in SOURCES],
            "problem_text": _problem_text,
            "most_tokens": MAX_TOKENS,
            "has_project": bool(projects.list_page(user.account_id, 1)),
        }


def _enabling_setting(family: RouteFamily, served: Container[RouteFamily]) -> str | None:
    """Return the setting that enables a family of routes; None if it is already served."""
    if family in served:
        return None
    return "DEPLOYMENT_MODE=cloud" if family is RouteFamily.HANDOFFS else f"EXTRA_ROUTE_FAMILIES={family.value}"


def _problem_text(code: str) -> str:
    return _PROBLEMS.get(code, code.replace("_", " "))
