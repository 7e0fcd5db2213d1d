"""Use cases of intake: record a postback, an email, an upload or a compliance webhook; read the progress of an upload."""

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from runtime.clock import utc_now
from schemas.base.checkpoint import Checkpoint
from schemas.base.errors import Forbidden, NoEncryptionKey, ServiceUnavailable, WrongEncryptionKey
from schemas.base.principal import TokenPrincipal
from schemas.compliance.requests import ComplianceWebhook
from schemas.exports.handoffs import Handoff, HandoffProgress
from schemas.intake.artifacts import artifact_url
from schemas.intake.email import EmailAccepted
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.scanner import ScanPostback
from storage.accounts.grants import manageable
from storage.compliance import requests
from storage.intake import emails, findings, handoffs
from storage.intake.emails import PreparedEmail
from storage.intake.findings import PreparedPostback
from storage.intake.handoffs import PreparedUpload
from storage.intake.options import IntakeOptions
from storage.secrets.vault import Vault

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IntakeOperations:
    """Stores the requests of scanners, email providers, plugins and apps, and prepares exports from them.

    A worker carries out the storefront platform's requests about personal data.
    """

    default_project_id: int | None
    options: IntakeOptions
    artifacts_base_url: str
    vault: Vault

    def prepare_postback(self, postback: ScanPostback, checkpoint: Checkpoint) -> PreparedPostback:
        """Compare a postback with the known findings. Call this before the transaction that records the postback."""
        url = artifact_url(self.artifacts_base_url, postback.screenshot_path)
        postback = postback if url is None else replace(postback, screenshot_url=url)
        return findings.prepare_postback(postback, self.default_project_id, checkpoint)

    def record_postback(self, prepared: PreparedPostback, actor: str) -> PostbackResult:
        """Store the page and its findings, and prepare or extend exports. Raises ValidationFailed."""
        return findings.record(prepared, self.default_project_id, utc_now(), actor, self.options)

    def accept_email(self, prepared: PreparedEmail, actor: str) -> EmailAccepted:
        """Store an email and prepare its export; a repeated message id returns the first email. Raises ValidationFailed."""
        return emails.accept(prepared, self.default_project_id, utc_now(), actor, self.options)

    def record_upload(self, prepared: PreparedUpload, principal: TokenPrincipal) -> Handoff:
        """Store an upload and prepare an export from it; checks the grant as well. Raises ValidationFailed at a limit."""
        return handoffs.record_upload(prepared, principal, utc_now(), self.options)

    def receive_compliance(self, order: ComplianceWebhook, signature: bytes, actor: str) -> datetime | None:
        """Store a request encrypted and return when it is due by law; return None for a repeated webhook.

        Call `Operations.wake_workers` after the commit. Raises ValidationFailed for a body that was accepted under another
        topic. Raises ServiceUnavailable without this installation's encryption key: the platform then sends the webhook
        again, so no request is lost, stored unencrypted or encrypted with another key.
        """
        now = utc_now()
        try:
            stored = requests.receive(order, signature, self.vault, now, actor)
        except (NoEncryptionKey, WrongEncryptionKey):
            _log.error("compliance webhooks need this installation's ENCRYPTION_KEYS")
            raise ServiceUnavailable from None
        return None if stored is None else requests.due_at(now)


def get_handoff(handoff_id: str, principal: TokenPrincipal) -> HandoffProgress:
    """Return the progress of an upload of the caller's user.

    Raises NotFound. Raises Forbidden without the ability that the upload needed, or if the user no longer manages its
    project.
    """
    handoff = handoffs.get(handoff_id, principal.user_id)
    if handoff.ability not in principal.abilities:
        raise Forbidden(f"This token lacks the ability {handoff.ability.value}.")
    # The handoff contains the ticket's id, which a user who no longer manages the project must not see.
    manageable(principal, handoff.project_id, handoff.report_id)
    return handoff
