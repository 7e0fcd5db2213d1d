"""`POST /api/scanner/results`: a scanner posts one page of a scan run."""

import falcon

from schemas.api.intake import PostbackResponse
from schemas.api.response_fields import dump
from schemas.intake.scanner import PostbackForm
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.api.resources import ApiContext, ApiResource, once_per_key
from service.http.auth import SharedSecret
from service.http.idempotency import ApiResponse
from service.http.request_pipeline import Operation
from storage.secrets.integrations import Integration, SharedSecrets


class ScannerResultsResource(ApiResource):
    """Accepts postbacks of the scanner runtime."""

    path = "/api/scanner/results"
    family = RouteFamily.SCANNER
    source = InboundSource.SCANNER

    def __init__(self, api: ApiContext, secrets: SharedSecrets) -> None:
        self._intake = api.operations.intake
        secret = SharedSecret("X-Scanner-Secret", Integration.SCANNER, secrets)
        accepting = Operation(secret, PostbackForm(), has_dry_run=True, prepare=self._intake.prepare_postback)
        super().__init__(api, {"POST": accepting})

    @once_per_key
    def on_post(self, req: falcon.Request) -> ApiResponse:
        """Store the page and its findings, and prepare or extend exports for those that are new."""
        result = self._intake.record_postback(req.context.payload, req.context.principal.key)
        return ApiResponse(202, dump(PostbackResponse, result), log_fields={"count": len(result.ticket_exports)})
