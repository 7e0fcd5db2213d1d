"""`/console/integrations`: who hands things in, whether they could, when they last did, and why they last could not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.intake.sources import InboundSource, Rejection
from schemas.settings.definitions import RouteFamily, Settings
from service.api.compliance import ComplianceWebhooksResource
from service.api.email import EmailWebhookResource
from service.api.scanner import ScannerResultsResource
from service.api.uploads import CmsDiagnosticsResource, EvidenceCapturesResource, StorefrontDiagnosticsResource
from service.console import samples
from service.console.layout import CONSOLE, Frame, Page
from service.console.samples import Known
from service.console.sessions import Visitor
from storage.intake import rejections
from storage.secrets import integrations
from storage.secrets.integrations import MOST_TOKENS, Integration, SampleIds, SecretState, SharedSecrets
from storage.secrets.vault import Vault


class _Kind(NamedTuple):
    """A source: what it is called, the resource that serves it, and the credential that it is known by."""

    name: str
    resource: Any
    integration: Integration | None = None
    variable: str = ""
    ability: Ability | None = None


_KINDS: Final = (
    _Kind("Scanner", ScannerResultsResource, Integration.SCANNER, "SCANNER_SHARED_SECRET"),
    _Kind("Email", EmailWebhookResource, Integration.EMAIL, "EMAIL_WEBHOOK_SECRET"),
    _Kind("Browser extension", EvidenceCapturesResource, ability=Ability.UPLOAD_EVIDENCE),
    _Kind("CMS plugin", CmsDiagnosticsResource, ability=Ability.UPLOAD_CMS_DIAGNOSTICS),
    _Kind("Storefront app", StorefrontDiagnosticsResource, ability=Ability.UPLOAD_STOREFRONT_DIAGNOSTICS),
    _Kind("Storefront compliance webhooks", ComplianceWebhooksResource, Integration.STOREFRONT, "STOREFRONT_WEBHOOK_SECRET"),
)

#: What a refused credential or message comes to in words; whatever else is wrong is told by its code.
_WHY: Final = {
    "not_configured": "no secret is configured here",
    "missing": "the header is missing",
    "twice": "the header came twice, or has a comma in it",
    "wrong": "it does not match",
    "wrong_kind": "the token is of another kind",
    "lacks_ability": "the token lacks the ability",
}
#: The same of what is no secret to compare with.
_UNKNOWN_BEARER: Final = "there is no such token, or it was revoked or has expired"
_AUTHORIZATION: Final = "/Authorization"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A source as the page shows it."""

    name: str
    source: InboundSource
    path: str
    switched_on_by: str | None
    secret: SecretState | None
    ability: Ability | None
    tokens: int
    making: Sequence[str]
    accepted_at: datetime | None
    refusal: Rejection | None
    sample: str | None


class _Found(NamedTuple):
    """What the database says of all of them."""

    secrets: Mapping[str, SecretState]
    tokens: Mapping[str, int]
    accepted: Mapping[InboundSource, datetime | None]
    refused: Mapping[InboundSource, Rejection]
    sample_ids: SampleIds


class Integrations(Page):
    """Shows each inbound source."""

    path = f"{CONSOLE}/integrations"
    template = "integrations.html"
    family = RouteFamily.CONSOLE
    is_operators = True

    def __init__(self, frame: Frame, settings: Settings, vault: Vault) -> None:
        super().__init__(frame)
        self._settings = settings
        self._secrets = SharedSecrets(settings, vault)

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return what is known of each source."""
        found = _Found(
            {state.name: state for state in self._secrets.states()},
            integrations.live_platform_tokens(utc_now()),
            integrations.last_accepted(),
            rejections.last(),
            integrations.sample_ids(visitor.principal.user_id, visitor.account_id),
        )
        known = self._known(found.sample_ids)
        return {
            "sources": [self._shown(kind, found, known, visitor.session.email) for kind in _KINDS],
            "why": _why,
            "most_tokens": MOST_TOKENS,
            "has_project": known is not None,
        }

    def _shown(self, kind: _Kind, found: _Found, known: Known | None, email: str) -> _Shown:
        resource, ability = kind.resource, kind.ability
        is_served = resource.family in self._settings.route_families
        tokens = found.tokens.get(ability, 0) if ability else 0
        making = _making(email, ability, found.sample_ids) if ability and not tokens else ()
        secret = found.secrets[kind.integration.value] if kind.integration else None
        can_be_tried = is_served and (secret is None or secret.configured)
        return _Shown(
            kind.name,
            resource.source,
            resource.path,
            None if is_served else _switch(resource.family),
            secret,
            ability,
            tokens,
            making,
            found.accepted[resource.source],
            found.refused.get(resource.source),
            _sample(kind, known, secret, making) if known and can_be_tried else None,
        )

    def _known(self, tried: SampleIds) -> Known | None:
        """Return what samples are filled with; None without a project that things could be handed in for."""
        default = self._settings.default_project_id
        project_id = tried.granted_project_id or tried.project_id or default
        if project_id is None:
            return None
        # Any run belongs to the default project; without one it has to be one that somebody registered.
        run = 1 if default is not None or tried.scan_run_id is None else tried.scan_run_id
        return Known(self._settings.public_base_url, project_id, run)


def _sample(kind: _Kind, known: Known, secret: SecretState | None, making: Sequence[str]) -> str:
    source, path = kind.resource.source, kind.resource.path
    if secret is None:
        return samples.with_token(source, path, known, making)
    return samples.with_secret(source, path, known, kind.variable, is_in_env=secret.source == "environment")


def _switch(family: RouteFamily) -> str:
    """Return the setting that has a family of routes served."""
    return "DEPLOYMENT_MODE=cloud" if family is RouteFamily.HANDOFFS else f"EXTRA_ROUTE_FAMILIES={family.value}"


def _making(email: str, ability: Ability, tried: SampleIds) -> tuple[str, ...]:
    """Return the commands after which a user has a token with an ability, and a project that it is good for."""
    making = samples.making_a_token(email, ability)
    if tried.granted_project_id is not None or tried.project_id is None:
        return (making,)
    return (samples.granting(email, tried.project_id), making)


def _why(path: str, code: str) -> str:
    if code == "wrong" and path == _AUTHORIZATION:
        return _UNKNOWN_BEARER
    return _WHY.get(code, code.replace("_", " "))
