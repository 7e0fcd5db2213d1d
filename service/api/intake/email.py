"""`POST /api/email/webhook`: the email provider posts an inbound email."""

import falcon

from schemas.api.intake import EmailResponse
from schemas.api.response_fields import dump
from schemas.intake.email_forms import EmailForm, inspected
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily, Settings
from service.api.resources import ApiContext, ApiResource, once_per_key
from service.http.auth import SharedSecret
from service.http.idempotency import ApiResponse
from service.http.request_pipeline import Operation
from storage.intake.emails import prepare_email
from storage.secrets.integrations import Integration, SharedSecrets


class EmailWebhookResource(ApiResource):
    """Accepts inbound emails from the configured provider."""

    path = "/api/email/webhook"
    family = RouteFamily.EMAIL
    source = InboundSource.EMAIL

    def __init__(self, api: ApiContext, secrets: SharedSecrets, settings: Settings) -> None:
        self._intake = api.operations.intake
        networks, proxies = settings.email_allowed_networks, settings.trusted_proxies
        secret = SharedSecret("X-Email-Webhook-Secret", Integration.EMAIL, secrets, networks, proxies)
        accepting = Operation(secret, EmailForm(), has_dry_run=True, inspected=inspected, prepare=prepare_email)
        super().__init__(api, {"POST": accepting})

    @once_per_key
    def on_post(self, req: falcon.Request) -> ApiResponse:
        """Store the email and prepare its export; a repeated message id returns the first email's id."""
        accepted = self._intake.accept_email(req.context.payload, req.context.principal.key)
        return ApiResponse(202, dump(EmailResponse, accepted))
