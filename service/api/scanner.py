"""`POST /api/scanner/results`: a scanner posts one page of a scan run."""

import falcon

from runtime.clock import utc_now
from schemas.intake.fingerprint import postback_answer
from schemas.intake.scanner import PostbackForm
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.http.auth import SharedSecret
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.request_pipeline import Operation
from storage.intake import findings
from storage.secrets.integrations import Integration, SharedSecrets


class ScannerResultsResource:
    """Takes postbacks from the scanner runtime."""

    path = "/api/scanner/results"
    family = RouteFamily.SCANNER
    source = InboundSource.SCANNER

    def __init__(self, secrets: SharedSecrets, executor: IdempotentExecutor, default_project_id: int | None) -> None:
        secret = SharedSecret("X-Scanner-Secret", Integration.SCANNER, secrets)
        self.operations = {"POST": Operation(secret, PostbackForm(), has_dry_run=True)}
        self._executor = executor
        self._default_project_id = default_project_id

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store the page and its findings; each new finding prepares an export."""
        sighting = findings.prepare_postback(req.context.payload, self._default_project_id)
        self._executor.respond(req, resp, lambda: self._record(req, sighting))

    def _record(self, req: falcon.Request, sighting: findings.PreparedPostback) -> ApiResponse:
        result = findings.record(sighting, self._default_project_id, utc_now(), req.context.principal.key)
        return ApiResponse(202, postback_answer(result), log_fields={"count": len(result.ticket_exports)})
