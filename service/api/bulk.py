"""`POST /api/ticket-exports/bulk`: one decision on many exports."""

import falcon

from schemas.base.principal import Ability, TokenKind
from schemas.exports.bulk_decisions import BulkDecisionForm, results_record
from schemas.settings.definitions import RouteFamily
from service.api.exports import EXPORTS
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.request_pipeline import Operation
from service.operations.bulk import BulkOperations
from service.operations.exports import ExportOperations


class BulkDecisionsResource:
    """Approves, dismisses, restores or retries many exports."""

    path = f"{EXPORTS}/bulk"
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, exports: ExportOperations, bulk: BulkOperations) -> None:
        self.operations = {"POST": Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS), BulkDecisionForm())}
        self._executor = executor
        self._exports = exports
        self._bulk = bulk

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Decide on the exports, and wake the workers once after the commit."""
        with self._exports.blocking_refused_target(req.context.principal):
            self._executor.respond(req, resp, lambda: self._decide(req))
        self._bulk.wake_workers()

    def _decide(self, req: falcon.Request) -> ApiResponse:
        requested = req.context.payload
        results = self._bulk.decide(requested.decision, requested.exports, req.context.principal)
        return ApiResponse(200, results_record(results), log_fields={"target_id": requested.decision.target_id})
