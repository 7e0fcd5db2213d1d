"""`POST /api/storefront-app/webhooks/compliance`: the storefront platform asks for a person's data or its erasure.

In order: is a secret configured, is the body signed with it, are topic and shop fit, what does the body say. Nothing is
stored before all four hold. An answer means that the wish is stored, sealed; a worker carries it out. A dry run does all of
that, tells what the ledger would say, and stores nothing.
"""

import json
import logging
from datetime import datetime
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import NoEncryptionKey, ServiceUnavailable, WrongEncryptionKey
from schemas.compliance.requests import (
    SHOP_HEADER,
    TOPIC_HEADER,
    ComplianceForm,
    Order,
    compliance_answer,
    envelope,
    order_from,
)
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.http.auth import Principal, StorefrontSignature
from service.http.dry_run import run_and_roll_back
from service.http.request_pipeline import Body, Operation
from storage.compliance import requests as compliance_requests
from storage.secrets.integrations import SharedSecrets
from storage.secrets.vault import Vault

_log: Final = logging.getLogger(__name__)


class ComplianceWebhooksResource:
    """Takes compliance webhooks from the storefront platform."""

    path = "/api/storefront-app/webhooks/compliance"
    name = "storefront-app.webhooks.compliance"
    family = RouteFamily.HANDOFFS
    source = InboundSource.COMPLIANCE

    def __init__(self, secrets: SharedSecrets, vault: Vault, wake_ups: WakeUpQueue) -> None:
        self._verify = StorefrontSignature(secrets)
        # A customer's email and orders are what these bodies are about; nothing of them is stored in the clear.
        admit = Operation(self._admit, ComplianceForm(), Body.SIGNED, has_dry_run=True, inspected=lambda _: None)
        self.operations = {"POST": admit}
        self._vault = vault
        self._wake_ups = wake_ups

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store the wish, once, and notify the workers."""
        order = order_from(req.context.envelope, req.context.payload)
        if req.context.is_dry_run:
            resp.content_type = falcon.MEDIA_JSON
            resp.data = json.dumps(run_and_roll_back(lambda: self._tell(req, order))).encode()
            return
        if self._receive(req, order, utc_now()):
            self._wake_ups.notify()
        resp.status = falcon.HTTP_204

    def _tell(self, req: falcon.Request, order: Order) -> dict[str, Any]:
        now = utc_now()
        return compliance_answer(order, compliance_requests.due_at(now) if self._receive(req, order, now) else None)

    def _receive(self, req: falcon.Request, order: Order, now: datetime) -> bool:
        """Store the wish; tell whether it was not there already."""
        try:
            stored = compliance_requests.receive(order, req.context.raw_body, self._vault, now, req.context.principal.key)
        except (NoEncryptionKey, WrongEncryptionKey):
            # Told to the operator, and to the platform so that it asks again: a wish must not be lost, nor lie open, nor be
            # sealed with a key that is not the installation's.
            told = "compliance webhooks need ENCRYPTION_KEYS that are this installation's"
            _log.error(told, extra={"request_id": req.context.request_id})
            raise ServiceUnavailable from None
        return stored is not None

    def _admit(self, req: falcon.Request) -> Principal:
        """Verify the signature, then read the headers it does not cover, before anything of the body is read."""
        principal = self._verify(req)
        req.context.envelope = envelope(req.get_header(TOPIC_HEADER), req.get_header(SHOP_HEADER))
        return principal
