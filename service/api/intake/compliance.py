"""`POST /api/storefront-app/webhooks/compliance`: the storefront platform requests a person's data, or its erasure.

Before anything is stored, the checks run in this order: a secret is configured, the body's signature, the topic and shop
headers, the body. 204 means that the encrypted request is stored; a worker carries it out. A dry run makes the same checks
and stores nothing.
"""

from datetime import datetime

import falcon

from schemas.api.intake import ComplianceResponse
from schemas.api.response_fields import dump
from schemas.compliance.requests import SHOP_HEADER, TOPIC_HEADER, ComplianceForm, read_headers, read_webhook
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.http.auth import Principal, StorefrontSignature
from service.http.idempotency import run_and_roll_back
from service.http.paging import send_record
from service.http.request_pipeline import Body, Operation
from service.operations.wiring import Operations
from storage.secrets.integrations import SharedSecrets


class ComplianceWebhooksResource:
    """Accepts compliance webhooks of the storefront platform."""

    path = "/api/storefront-app/webhooks/compliance"
    family = RouteFamily.HANDOFFS
    source = InboundSource.COMPLIANCE

    def __init__(self, secrets: SharedSecrets, operations: Operations) -> None:
        self._verify = StorefrontSignature(secrets)
        # These bodies contain a customer's email address and orders by design, so they are not searched for forbidden
        # content. Nothing is stored unencrypted.
        accepting = Operation(self._authenticate, ComplianceForm(), Body.SIGNED, has_dry_run=True, inspected=lambda _: None)
        self.operations = {"POST": accepting}
        self._operations = operations

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store the request, unless it is a repeat, and wake the workers."""
        context = req.context
        order = read_webhook(context.read_headers, context.payload)

        def receive() -> datetime | None:
            return self._operations.compliance.receive(order, context.raw_body, context.signature, context.principal.key)

        if context.is_dry_run:
            due_at = run_and_roll_back(receive)
            # The response omits the person's pseudonym, which only the operator may see.
            record = {"duplicate": due_at is None, "topic": order.topic, "shop_domain": order.shop_domain, "due_at": due_at}
            send_record(resp, dump(ComplianceResponse, record))
            return
        if receive() is not None:
            self._operations.wake_workers()
        resp.status = falcon.HTTP_204

    def _authenticate(self, req: falcon.Request) -> Principal:
        """Verify the signature, then read the headers that it does not cover, before the body is parsed."""
        principal = self._verify(req)
        req.context.read_headers = read_headers(req.get_header(TOPIC_HEADER), req.get_header(SHOP_HEADER))
        return principal
