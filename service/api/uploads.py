"""Uploads of the browser extension, the CMS plugin and the storefront app; served in cloud mode only.

An upload needs a user who manages its project or report now. A replayed request needs the grant too, so that a stored
response is not returned to a user whose grant was removed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import falcon

from schemas.api.responses import HandoffResponse, dump
from schemas.base.fields import Form
from schemas.base.principal import Ability, TokenKind
from schemas.exports.handoffs import Handoff
from schemas.intake.diagnostics import CmsDiagnosticsForm, StorefrontDiagnosticsForm, diagnostic_record
from schemas.intake.evidence import CaptureForm, capture_record
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.request_pipeline import Operation
from service.operations.uploads import UploadOperations, require_grant
from storage.intake.handoffs import prepare_upload


class _UploadResource:
    """Stores one kind of upload and prepares an export from it."""

    family = RouteFamily.HANDOFFS

    def __init__(self, executor: IdempotentExecutor, uploads: UploadOperations, ability: Ability, form: Form) -> None:
        self._uploads = uploads
        self.operations = {
            "POST": Operation(Bearer(TokenKind.PLATFORM, ability), form, has_dry_run=True, prepare=prepare_upload)
        }
        self._executor = executor

    def _respond(self, req: falcon.Request, resp: falcon.Response, body: Callable[[Handoff], Mapping[str, Any]]) -> None:
        def work() -> ApiResponse:
            handoff = self._uploads.record(req.context.payload, req.context.principal)
            content = {**body(handoff), "handoff": dump(HandoffResponse, handoff)}
            return ApiResponse(201, content, log_fields={"export_id": handoff.ticket_export_id})

        require_grant(req.context.payload.upload, req.context.principal)
        self._executor.respond(req, resp, work)


class EvidenceCapturesResource(_UploadResource):
    """Accepts captures of the browser extension."""

    path = "/api/browser-extension/evidence-captures"
    source = InboundSource.BROWSER_EXTENSION

    def __init__(self, executor: IdempotentExecutor, uploads: UploadOperations) -> None:
        super().__init__(executor, uploads, Ability.UPLOAD_EVIDENCE, CaptureForm())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store a capture and prepare an export from it."""

        def body(handoff: Handoff) -> Mapping[str, Any]:
            return {"evidence_capture": capture_record(req.context.payload.upload, handoff.source.id, handoff.created_at)}

        self._respond(req, resp, body)


class _DiagnosticsResource(_UploadResource):
    """Accepts diagnostics of one platform."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store diagnostics and prepare an export from them."""

        def body(handoff: Handoff) -> Mapping[str, Any]:
            return {"diagnostic": diagnostic_record(req.context.payload.upload, handoff.source.id, handoff.created_at)}

        self._respond(req, resp, body)


class CmsDiagnosticsResource(_DiagnosticsResource):
    """Accepts diagnostics of the CMS plugin."""

    path = "/api/cms-plugins/cms-commerce/diagnostics"
    source = InboundSource.CMS_PLUGIN

    def __init__(self, executor: IdempotentExecutor, uploads: UploadOperations) -> None:
        super().__init__(executor, uploads, Ability.UPLOAD_CMS_DIAGNOSTICS, CmsDiagnosticsForm())


class StorefrontDiagnosticsResource(_DiagnosticsResource):
    """Accepts diagnostics of the storefront app."""

    path = "/api/storefront-app/diagnostics"
    source = InboundSource.STOREFRONT_APP

    def __init__(self, executor: IdempotentExecutor, uploads: UploadOperations) -> None:
        super().__init__(executor, uploads, Ability.UPLOAD_STOREFRONT_DIAGNOSTICS, StorefrontDiagnosticsForm())
