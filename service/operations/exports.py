"""What a person or a client decides about an export, by the same rules whoever asks: approve, retry, dismiss.

Each leaves from the states that `schemas.exports.state_machine` names; from any other one it is refused. Whoever makes an
export due notifies the workers once that is committed. No transaction and no connection is held while a resolver is asked.
"""

from runtime.clock import utc_now
from schemas.base.errors import WebhooksForbidden
from schemas.base.principal import TokenPrincipal
from schemas.exports.record import Approval, Export
from schemas.targets.validations import Validation
from service.operations.address_check import AddressCheck
from storage.db import engine
from storage.exports import transitions


class ExportOperations:
    """Decides about one export of the caller's account. Every verb raises ExportNotFound, Conflict."""

    def __init__(self, check: AddressCheck, *, has_default_secret: bool) -> None:
        self._check = check
        self._has_default_secret = has_default_secret

    def approve(self, export_id: str, principal: TokenPrincipal, approval: Approval) -> Export:
        """Freeze the ticket for a target and make it due. Raises ValidationFailed for the target or the preview."""
        return transitions.approve(export_id, principal.account_id, approval, utc_now(), principal.key)

    def check_blocked_target(self, export_id: str, principal: TokenPrincipal) -> Validation | None:
        """Look at the address of an export's blocked target; None where nothing is blocked. It may wait for the resolver.

        Raises WebhooksForbidden where the account may not use webhook targets any more.
        """
        url = transitions.blocked_url(export_id, principal.account_id)
        if url is not None and not principal.may_use_webhooks:
            raise WebhooksForbidden
        engine.release()
        return None if url is None else self._check.validate(url)

    def retry(self, export_id: str, principal: TokenPrincipal, validation: Validation | None) -> Export:
        """Make a failed or blocked export due with its whole schedule; `looked_at` as `look_at_blocked` found.

        Where its target is blocked, and its address may be used by now, the target is resumed with it.
        """
        return transitions.retry(
            export_id,
            principal.account_id,
            utc_now(),
            principal.key,
            validation,
            has_default_secret=self._has_default_secret,
        )

    def dismiss(self, export_id: str, principal: TokenPrincipal) -> Export:
        """Put a prepared export aside for good."""
        return transitions.dismiss(export_id, principal.account_id, utc_now(), principal.key)
