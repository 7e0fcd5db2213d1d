"""`/console/integrations`: each inbound source with its credential, and its last accepted and last rejected request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.intake.sources import InboundSource, Rejection, connected_status
from schemas.settings.definitions import RouteFamily
from service.api.intake.compliance import ComplianceWebhooksResource
from service.api.intake.email import EmailWebhookResource
from service.api.intake.scanner import ScannerResultsResource
from service.api.intake.uploads import CmsDiagnosticsResource, EvidenceCapturesResource, StorefrontDiagnosticsResource
from service.console import samples
from service.console.layout import CONSOLE, ConsolePage
from service.console.samples import SampleValues
from service.console.sessions import ConsoleUser
from storage.intake import rejections
from storage.secrets import integrations
from storage.secrets.integrations import MAX_TOKENS, Integration, SampleIds, SecretState, SharedSecrets


class _Source(NamedTuple):
    """A source: its name, its API resource, and its credential, which is a shared secret or a token with an ability."""

    name: str
    resource: Any
    integration: Integration | None = None
    variable: str = ""
    ability: Ability | None = None


SOURCES: Final = (
    _Source("Scanner", ScannerResultsResource, Integration.SCANNER, "SCANNER_SHARED_SECRET"),
    _Source("Email", EmailWebhookResource, Integration.EMAIL, "EMAIL_WEBHOOK_SECRET"),
    _Source("Browser extension", EvidenceCapturesResource, ability=Ability.UPLOAD_EVIDENCE),
    _Source("CMS plugin", CmsDiagnosticsResource, ability=Ability.UPLOAD_CMS_DIAGNOSTICS),
    _Source("Storefront app", StorefrontDiagnosticsResource, ability=Ability.UPLOAD_STOREFRONT_DIAGNOSTICS),
    _Source("Storefront compliance", ComplianceWebhooksResource, Integration.STOREFRONT, "STOREFRONT_WEBHOOK_SECRET"),
)

#: Texts for problems with a credential; other problems are shown as their code.
_PROBLEMS: Final = {
    "not_configured": "no secret is set",
    "missing": "the header is missing",
    "twice": "the header was sent twice or contains a comma",
    "wrong": "the value does not match",
    "wrong_kind": "the token has the wrong kind",
    "lacks_ability": "the token lacks the required ability",
    "other_network": "the client's address is not in EMAIL_ALLOWED_NETWORKS",
}
#: The text for `wrong` if the credential is a token.
_UNKNOWN_BEARER: Final = "the token does not exist, was revoked or has expired"
_AUTHORIZATION: Final = "/Authorization"


@dataclass(frozen=True, slots=True)
class IntegrationCard:
    """A source for display; `commands` create a token if there is none."""

    kind: _Source
    enabling_setting: str | None
    secret: SecretState | None
    tokens: int
    commands: Sequence[str]
    connected: str
    accepted_at: datetime | None
    rejection: Rejection | None
    sample: str | None


class _SourceState(NamedTuple):
    """The stored state of all sources."""

    secrets: Mapping[str, SecretState]
    tokens: Mapping[str, int]
    accepted: Mapping[InboundSource, datetime | None]
    refused: Mapping[InboundSource, Rejection]
    sample_ids: SampleIds


class IntegrationsPage(ConsolePage):
    """Shows all inbound sources."""

    path = f"{CONSOLE}/integrations"
    template = "integrations.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return a card for each source."""
        found = _SourceState(
            {state.name: state for state in SharedSecrets(self._settings, self._vault).states()},
            integrations.live_platform_tokens(utc_now()),
            integrations.last_accepted(),
            rejections.last(),
            integrations.sample_ids(user.principal.user_id, user.account_id),
        )
        values = self._sample_values(found.sample_ids)
        return {
            "integrations": [self._card(kind, found, values, user.session.email) for kind in SOURCES],
            "problem_text": _problem_text,
            "most_tokens": MAX_TOKENS,
            "has_project": values is not None,
        }

    def _card(self, kind: _Source, found: _SourceState, values: SampleValues | None, email: str) -> IntegrationCard:
        resource, ability = kind.resource, kind.ability
        is_served = resource.family in self._settings.route_families
        tokens = found.tokens.get(ability, 0) if ability else 0
        commands = _token_commands(email, ability, found.sample_ids) if ability and not tokens else ()
        secret = found.secrets[kind.integration.value] if kind.integration else None
        accepted_at, rejection = found.accepted[resource.source], found.refused.get(resource.source)
        can_be_tried = is_served and (secret is None or secret.configured)
        return IntegrationCard(
            kind,
            None if is_served else _enabling_setting(resource.family),
            secret,
            tokens,
            commands,
            connected_status(accepted_at, rejection),
            accepted_at,
            rejection,
            _sample(kind, values, secret, commands) if values and can_be_tried else None,
        )

    def _sample_values(self, ids: SampleIds) -> SampleValues | None:
        """Return the values for sample requests; None if there is no project."""
        default = self._settings.default_project_id
        project_id = ids.granted_project_id or ids.project_id or default
        if project_id is None:
            return None
        # With a default project, any scan run is accepted; without one, the scan run must be registered.
        run = 1 if default is not None or ids.scan_run_id is None else ids.scan_run_id
        return SampleValues(self._settings.public_base_url, project_id, run)


def _sample(kind: _Source, values: SampleValues, secret: SecretState | None, commands: Sequence[str]) -> str:
    source, path = kind.resource.source, kind.resource.path
    if secret is None:
        return samples.with_token(source, path, values, commands)
    return samples.with_secret(source, path, values, kind.variable, is_in_env=secret.source == "environment")


def _enabling_setting(family: RouteFamily) -> str:
    """Return the setting that enables a family of routes."""
    return "DEPLOYMENT_MODE=cloud" if family is RouteFamily.HANDOFFS else f"EXTRA_ROUTE_FAMILIES={family.value}"


def _token_commands(email: str, ability: Ability, ids: SampleIds) -> tuple[str, ...]:
    """Return the commands that create a token with an ability and, if necessary, grant a project to its user."""
    create = samples.token_command(email, ability)
    if ids.granted_project_id is not None or ids.project_id is None:
        return (create,)
    return (samples.grant_command(email, ids.project_id), create)


def _problem_text(path: str, code: str) -> str:
    if code == "wrong" and path == _AUTHORIZATION:
        return _UNKNOWN_BEARER
    return _PROBLEMS.get(code, code.replace("_", " "))
