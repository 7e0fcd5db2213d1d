"""`POST /api/email/webhook`: the email provider posts what arrived."""

import falcon

from runtime.clock import utc_now
from schemas.intake.email import email_answer
from schemas.intake.email_forms import EmailForm, inspected
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.http.auth import SharedSecret
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.request_pipeline import Operation
from storage.intake import emails
from storage.secrets.integrations import Integration, SharedSecrets


class EmailWebhookResource:
    """Takes inbound emails from the configured provider."""

    path = "/api/email/webhook"
    family = RouteFamily.EMAIL
    source = InboundSource.EMAIL

    def __init__(self, secrets: SharedSecrets, executor: IdempotentExecutor, default_project_id: int | None) -> None:
        secret = SharedSecret("X-Email-Webhook-Secret", Integration.EMAIL, secrets)
        self.operations = {"POST": Operation(secret, EmailForm(), has_dry_run=True, inspected=inspected)}
        self._executor = executor
        self._default_project_id = default_project_id

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store the email and prepare its export; a message that was posted before is answered with its first id."""
        self._executor.respond(req, resp, lambda: self._accept(req))

    def _accept(self, req: falcon.Request) -> ApiResponse:
        email, actor = req.context.payload, req.context.principal.key
        accepted = emails.accept(email, self._default_project_id, utc_now(), actor)
        return ApiResponse(202, email_answer(accepted))
