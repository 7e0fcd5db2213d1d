"""Uploads of the browser extension, the CMS plugin and the storefront app, and their handoffs; served in cloud mode only.

An upload requires a user who currently manages its project or report. A replayed request requires the grant too: a stored
response must not be returned to a user whose grant was removed.
"""

import json

import falcon

from schemas.api.response_fields import ResponseSchema, dump
from schemas.api.uploads import (
    CaptureUploadResponse,
    CmsUploadResponse,
    HandoffProgressResponse,
    StorefrontUploadResponse,
    dump_upload,
)
from schemas.base.fields import Form
from schemas.base.principal import Ability, TokenKind
from schemas.exports.handoffs import natural_key
from schemas.intake.diagnostics import CmsDiagnosticsForm, StorefrontDiagnosticsForm
from schemas.intake.evidence import CaptureForm
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.api.resources import ApiContext, ApiResource, by_method
from service.http import conditional_requests
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.request_pipeline import Operation
from service.operations.intake import get_handoff, require_grant
from storage.intake.handoffs import prepare_upload


class _UploadResource(ApiResource):
    """Stores one kind of upload and prepares an export from it."""

    family = RouteFamily.HANDOFFS
    ability: Ability
    form: type[Form]
    response: type[ResponseSchema]

    def __init__(self, api: ApiContext) -> None:
        bearer = Bearer(TokenKind.PLATFORM, self.ability)
        super().__init__(api, {"POST": Operation(bearer, self.form(), has_dry_run=True, prepare=prepare_upload)})

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store the upload and prepare an export from it."""

        def work() -> ApiResponse:
            handoff = self._api.operations.intake.record_upload(req.context.payload, req.context.principal)
            content = dump_upload(self.response, req.context.payload.upload, handoff)
            return ApiResponse(201, content, log_fields={"export_id": handoff.ticket_export_id})

        upload = req.context.payload.upload
        require_grant(upload, req.context.principal)
        self._executor.respond(req, resp, work, natural_key=natural_key(upload))


class EvidenceCapturesResource(_UploadResource):
    """Accepts captures of the browser extension."""

    path = "/api/browser-extension/evidence-captures"
    source = InboundSource.BROWSER_EXTENSION
    ability = Ability.UPLOAD_EVIDENCE
    form = CaptureForm
    response = CaptureUploadResponse


class CmsDiagnosticsResource(_UploadResource):
    """Accepts diagnostics of the CMS plugin."""

    path = "/api/cms-plugins/cms-commerce/diagnostics"
    source = InboundSource.CMS_PLUGIN
    ability = Ability.UPLOAD_CMS_DIAGNOSTICS
    form = CmsDiagnosticsForm
    response = CmsUploadResponse


class StorefrontDiagnosticsResource(_UploadResource):
    """Accepts diagnostics of the storefront app."""

    path = "/api/storefront-app/diagnostics"
    source = InboundSource.STOREFRONT_APP
    ability = Ability.UPLOAD_STOREFRONT_DIAGNOSTICS
    form = StorefrontDiagnosticsForm
    response = StorefrontUploadResponse


class HandoffResource(ApiResource):
    """Serves polls of one handoff."""

    path = "/api/handoffs/{handoff_id}"
    family = RouteFamily.HANDOFFS
    # The required ability depends on the handoff, so `get_handoff` checks it.
    checks = by_method(GET=Operation(Bearer(TokenKind.PLATFORM)))

    def on_get(self, req: falcon.Request, resp: falcon.Response, handoff_id: str) -> None:
        """Return the handoff, or 304 if the client has this version."""
        handoff = get_handoff(handoff_id, req.context.principal)
        record = dump(HandoffProgressResponse, handoff.record())
        current = conditional_requests.tagged(json.dumps(record, ensure_ascii=False).encode())
        conditional_requests.send_tagged(req, resp, current, falcon.MEDIA_JSON)
