"""Routes for other systems: scanners, email providers, the browser extension, the CMS plugin, the storefront platform.

An upload requires a user who currently manages its project or report. A replayed request requires the grant too: a stored
response must not be returned to a user whose grant was removed.

Before a compliance webhook is stored, the checks run in this order: a secret is configured, the body's signature, the topic
and shop headers, the body. 204 means that the encrypted request is stored; a worker carries it out. A dry run makes the same
checks and stores nothing.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

import falcon

from schemas.api.intake import ComplianceResponse, EmailResponse, PostbackResponse
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
from schemas.compliance.requests import SHOP_HEADER, TOPIC_HEADER, ComplianceForm, read_headers, read_webhook
from schemas.exports.handoffs import natural_key
from schemas.intake import email_forms
from schemas.intake.diagnostics import CmsDiagnosticsForm, StorefrontDiagnosticsForm
from schemas.intake.evidence import CaptureForm
from schemas.intake.scanner import PostbackForm
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily, Settings
from service.api.routes import ApiContext, ApiRoute, Endpoint
from service.http import conditional_requests
from service.http.auth import Bearer, Principal, SharedSecret, StorefrontSignature
from service.http.idempotency import ApiResponse, run_and_roll_back
from service.http.paging import send_record
from service.http.request_pipeline import Body, Operation
from service.operations.intake import get_handoff
from storage.accounts.grants import manageable
from storage.intake.emails import prepare_email
from storage.intake.handoffs import prepare_upload
from storage.secrets.integrations import Integration, SharedSecrets


class InboundRoute(NamedTuple):
    """The route of an inbound source."""

    path: str
    source: InboundSource
    family: RouteFamily = RouteFamily.HANDOFFS

    def serve(self, post: Endpoint) -> ApiRoute:
        """Return the route with its only method."""
        return ApiRoute(self.path, post=post, family=self.family, source=self.source)


SCANNER: Final = InboundRoute("/api/scanner/results", InboundSource.SCANNER, RouteFamily.SCANNER)
EMAIL: Final = InboundRoute("/api/email/webhook", InboundSource.EMAIL, RouteFamily.EMAIL)
CAPTURES: Final = InboundRoute("/api/browser-extension/evidence-captures", InboundSource.BROWSER_EXTENSION)
CMS_DIAGNOSTICS: Final = InboundRoute("/api/cms-plugins/cms-commerce/diagnostics", InboundSource.CMS_PLUGIN)
STOREFRONT_DIAGNOSTICS: Final = InboundRoute("/api/storefront-app/diagnostics", InboundSource.STOREFRONT_APP)
COMPLIANCE: Final = InboundRoute("/api/storefront-app/webhooks/compliance", InboundSource.COMPLIANCE)


def scanner_and_email_routes(api: ApiContext, secrets: SharedSecrets, settings: Settings) -> Iterator[ApiRoute]:
    """Yield the routes on which a scanner posts one page of a scan run, and the email provider an inbound email."""
    intake = api.operations.intake

    def record_postback(req: falcon.Request) -> ApiResponse:
        """Store the page and its findings, and prepare or extend exports for those that are new."""
        result = intake.record_postback(req.context.payload, req.context.principal.key)
        return ApiResponse(202, dump(PostbackResponse, result), log_fields={"count": len(result.ticket_exports)})

    def accept_email(req: falcon.Request) -> ApiResponse:
        """Store the email and prepare its export; a repeated message id returns the first email's id."""
        return ApiResponse(202, dump(EmailResponse, intake.accept_email(req.context.payload, req.context.principal.key)))

    secret = SharedSecret("X-Scanner-Secret", Integration.SCANNER, secrets)
    posting = Operation(secret, PostbackForm(), has_dry_run=True, prepare=intake.prepare_postback)
    yield SCANNER.serve(api.once_per_key(posting, record_postback))
    networks, proxies = settings.email_allowed_networks, settings.trusted_proxies
    secret = SharedSecret("X-Email-Webhook-Secret", Integration.EMAIL, secrets, networks, proxies)
    form, inspected = email_forms.EmailForm(), email_forms.inspected
    accepting = Operation(secret, form, has_dry_run=True, inspected=inspected, prepare=prepare_email)
    yield EMAIL.serve(api.once_per_key(accepting, accept_email))


def upload_routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of uploads and of their handoffs."""
    yield CAPTURES.serve(_uploading(api, Ability.UPLOAD_EVIDENCE, CaptureForm(), CaptureUploadResponse))
    cms = _uploading(api, Ability.UPLOAD_CMS_DIAGNOSTICS, CmsDiagnosticsForm(), CmsUploadResponse)
    yield CMS_DIAGNOSTICS.serve(cms)
    storefront_form = StorefrontDiagnosticsForm()
    storefront = _uploading(api, Ability.UPLOAD_STOREFRONT_DIAGNOSTICS, storefront_form, StorefrontUploadResponse)
    yield STOREFRONT_DIAGNOSTICS.serve(storefront)
    # The required ability depends on the handoff, so `get_handoff` checks it.
    polling = Endpoint(Operation(Bearer(TokenKind.PLATFORM)), _poll_handoff)
    yield ApiRoute("/api/handoffs/{handoff_id}", get=polling, family=RouteFamily.HANDOFFS)


def _uploading(api: ApiContext, ability: Ability, form: Form, response: type[ResponseSchema]) -> Endpoint:
    """Store one kind of upload and prepare an export from it."""

    def respond(req: falcon.Request, resp: falcon.Response) -> None:
        upload = req.context.payload.upload

        def work() -> ApiResponse:
            handoff = api.operations.intake.record_upload(req.context.payload, req.context.principal)
            content = dump_upload(response, upload, handoff)
            return ApiResponse(201, content, log_fields={"export_id": handoff.ticket_export_id})

        manageable(req.context.principal, upload.project_id, upload.report_id)
        api.executor.respond(req, resp, work, natural_key=natural_key(upload))

    bearer = Bearer(TokenKind.PLATFORM, ability)
    return Endpoint(Operation(bearer, form, has_dry_run=True, prepare=prepare_upload), respond)


def _poll_handoff(req: falcon.Request, resp: falcon.Response, handoff_id: str) -> None:
    """Return the handoff, or 304 if the client has this version."""
    handoff = get_handoff(handoff_id, req.context.principal)
    record = dump(HandoffProgressResponse, handoff.record())
    current = conditional_requests.tagged(json.dumps(record, ensure_ascii=False).encode())
    conditional_requests.send_tagged(req, resp, current, falcon.MEDIA_JSON)


def compliance_route(api: ApiContext, secrets: SharedSecrets) -> ApiRoute:
    """Return the route on which the storefront platform requests a person's data, or its erasure."""
    verify = StorefrontSignature(secrets)

    def authenticate(req: falcon.Request) -> Principal:
        """Verify the signature, then read the headers that it does not cover, before the body is parsed."""
        principal = verify(req)
        req.context.read_headers = read_headers(req.get_header(TOPIC_HEADER), req.get_header(SHOP_HEADER))
        return principal

    def respond(req: falcon.Request, resp: falcon.Response) -> None:
        """Store the request, unless it is a repeat, and wake the workers."""
        context = req.context
        order = read_webhook(context.read_headers, context.payload)

        def store() -> datetime | None:
            return api.operations.intake.receive_compliance(order, context.signature, context.principal.key)

        if context.is_dry_run:
            due_at = run_and_roll_back(store)
            # The response omits the person's pseudonym, which only the operator may see.
            record = {"duplicate": due_at is None, "topic": order.topic, "shop_domain": order.shop_domain, "due_at": due_at}
            send_record(resp, dump(ComplianceResponse, record))
            return
        if store() is not None:
            api.operations.wake_workers()
        resp.status = falcon.HTTP_204

    # These bodies contain a customer's email address and orders by design, so they are not searched for forbidden content.
    # Nothing is stored unencrypted.
    accepting = Operation(authenticate, ComplianceForm(), Body.SIGNED, has_dry_run=True, inspected=lambda _: None)
    return COMPLIANCE.serve(Endpoint(accepting, respond))
