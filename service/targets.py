"""`/api/ticket-export-targets`: clients say where tickets go."""

from typing import Final

import falcon

from schemas.errors import FieldProblem, ValidationFailed
from schemas.principal import Ability, TokenKind
from schemas.settings import RouteFamily, Settings
from schemas.target_url import Refusal, TargetPolicy, check_answers, check_url
from schemas.targets import TargetForm, target_record
from service.admission import Operation
from service.auth import Bearer
from service.idempotency import Answer, Once
from storage import targets
from storage.clock import utc_now
from storage.name_lookup import NameLookup, NameLookupFailed

#: Said of every verdict of the address policy and of the name lookup; the code beside it says which.
_NOT_SAFE: Final = "This address may not be used, or cannot be resolved now; the code says why."


class TicketExportTargets:
    """Makes webhook targets."""

    path = "/api/ticket-export-targets"
    family = RouteFamily.EXPORTS

    def __init__(self, settings: Settings, once: Once, lookup: NameLookup, default_secret_fingerprint: str | None) -> None:
        bearer = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, for_webhooks=True)
        self.operations = {"POST": Operation(bearer, TargetForm())}
        self._deployment_mode = settings.deployment_mode.value
        self._public_base_url = settings.public_base_url
        self._policy = settings.target_policy
        self._timeout_s = settings.connect_timeout_s
        self._once = once
        self._lookup = lookup
        self._default_secret_fingerprint = default_secret_fingerprint

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store a target whose address passes the URL policy now."""
        self._once.answer(req, resp, lambda: self._create(req), beforehand=lambda: self._require_safe(req))

    def _require_safe(self, req: falcon.Request) -> None:
        require_safe(req.context.payload.base_url, self._policy, self._lookup, self._timeout_s)

    def _create(self, req: falcon.Request) -> Answer:
        principal = req.context.principal
        target = targets.create(
            req.context.payload,
            principal.account_id,
            self._deployment_mode,
            self._default_secret_fingerprint,
            utc_now(),
            principal.key,
        )
        return Answer(201, target_record(target), {"Location": f"{self._public_base_url}{self.path}/{target.id}"})


def require_safe(url: str, policy: TargetPolicy, lookup: NameLookup, timeout_s: float) -> None:
    """Check the URL's form, resolve its name, classify every answer. Raises ValidationFailed on `/base_url`."""
    address = check_url(url, policy)
    reason: str | None = address.reason if isinstance(address, Refusal) else None
    if not isinstance(address, Refusal):
        try:
            refusal = check_answers(lookup.resolve(address.host, address.port, timeout_s), policy)
            reason = refusal.reason if refusal else None
        except NameLookupFailed as failed:
            reason = failed.reason
    if reason is not None:
        raise ValidationFailed(FieldProblem("/base_url", str(reason), _NOT_SAFE))
