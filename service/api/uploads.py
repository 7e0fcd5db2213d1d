"""What the browser extension, the CMS plugin and the storefront app hand in; cloud installations alone serve it.

An upload is stored for a project or report that the token's user can manage now, a repeat of one included: a stored answer
is not given to somebody whose grant was taken back.
"""

from collections.abc import Callable

import falcon

from runtime.clock import utc_now
from schemas.base.fields import Form
from schemas.base.principal import Ability, TokenKind
from schemas.exports.handoffs import handoff_record
from schemas.intake.diagnostics import CmsDiagnosticsForm, StorefrontDiagnosticsForm, diagnostic_record
from schemas.intake.evidence import CaptureForm, capture_record
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.request_pipeline import Operation
from storage.accounts.grants import manageable
from storage.intake import handoffs


class EvidenceCapturesResource:
    """Takes what a person captured with the browser extension."""

    path = "/api/browser-extension/evidence-captures"
    name = "browser-extension.evidence-captures.store"
    family = RouteFamily.HANDOFFS
    source = InboundSource.BROWSER_EXTENSION

    def __init__(self, executor: IdempotentExecutor) -> None:
        self.operations = {"POST": _operation(Ability.UPLOAD_EVIDENCE, CaptureForm())}
        self._executor = executor

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store a capture and prepare an export from it."""
        _answer(self._executor, req, resp, lambda: self._record(req))

    def _record(self, req: falcon.Request) -> ApiResponse:
        capture = req.context.payload
        handoff = handoffs.record_capture(capture, req.context.principal, utc_now())
        record = capture_record(capture, handoff.source.id, handoff.created_at)
        body = {"evidence_capture": record, "handoff": handoff_record(handoff)}
        return ApiResponse(201, body, log_fields={"export_id": handoff.ticket_export_id})


class CmsDiagnosticsResource:
    """Takes the diagnostics of the plugin in a CMS with a shop."""

    path = "/api/cms-plugins/cms-commerce/diagnostics"
    name = "cms-plugins.cms-commerce.diagnostics.store"
    family = RouteFamily.HANDOFFS
    source = InboundSource.CMS_PLUGIN

    def __init__(self, executor: IdempotentExecutor) -> None:
        self.operations = {"POST": _operation(Ability.UPLOAD_CMS_DIAGNOSTICS, CmsDiagnosticsForm())}
        self._executor = executor

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store diagnostics and prepare an export from them."""
        _answer(self._executor, req, resp, lambda: _record_diagnostics(req))


class StorefrontDiagnosticsResource:
    """Takes the diagnostics of the app in a storefront."""

    path = "/api/storefront-app/diagnostics"
    name = "storefront-app.diagnostics.store"
    family = RouteFamily.HANDOFFS
    source = InboundSource.STOREFRONT_APP

    def __init__(self, executor: IdempotentExecutor) -> None:
        self.operations = {"POST": _operation(Ability.UPLOAD_STOREFRONT_DIAGNOSTICS, StorefrontDiagnosticsForm())}
        self._executor = executor

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store diagnostics and prepare an export from them."""
        _answer(self._executor, req, resp, lambda: _record_diagnostics(req))


def _operation(ability: Ability, form: Form) -> Operation:
    return Operation(Bearer(TokenKind.PLATFORM, ability), form, has_dry_run=True)


def _answer(
    executor: IdempotentExecutor, req: falcon.Request, resp: falcon.Response, work: Callable[[], ApiResponse]
) -> None:
    """Answer once per key, but nobody without a grant: the work asks too, and a repeat does no work."""
    upload = req.context.payload
    manageable(req.context.principal, upload.project_id, upload.report_id)
    executor.respond(req, resp, work)


def _record_diagnostics(req: falcon.Request) -> ApiResponse:
    diagnostics = req.context.payload
    handoff = handoffs.record_diagnostics(diagnostics, req.context.principal, utc_now())
    record = diagnostic_record(diagnostics, handoff.source.id, handoff.created_at)
    body = {"diagnostic": record, "handoff": handoff_record(handoff)}
    return ApiResponse(201, body, log_fields={"export_id": handoff.ticket_export_id})
