"""Use cases of compliance: accept a webhook of the storefront platform."""

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from runtime.clock import utc_now
from schemas.base.errors import NoEncryptionKey, ServiceUnavailable, WrongEncryptionKey
from schemas.compliance.requests import ComplianceWebhook
from storage.compliance import requests
from storage.secrets.vault import Vault

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ComplianceOperations:
    """Stores encrypted requests about personal data; a worker carries them out."""

    vault: Vault

    def receive(self, order: ComplianceWebhook, raw_body: bytes, signature: bytes, actor: str) -> datetime | None:
        """Store a request and return when it is due by law; return None for a repeated webhook.

        Call `Operations.wake_workers` after the commit. Raises ValidationFailed for a body that was accepted under another
        topic. Raises ServiceUnavailable without this installation's encryption key: the platform then sends the webhook
        again, so no request is lost, stored unencrypted or encrypted with another key.
        """
        now = utc_now()
        try:
            stored = requests.receive(order, raw_body, signature, self.vault, now, actor)
        except (NoEncryptionKey, WrongEncryptionKey):
            _log.error("compliance webhooks need this installation's ENCRYPTION_KEYS")
            raise ServiceUnavailable from None
        return None if stored is None else requests.due_at(now)
