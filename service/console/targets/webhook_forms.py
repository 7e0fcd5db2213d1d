"""The forms for what a webhook is sent beside the ticket: its signature and format, headers, and another secret.

Submitted values are stored only in the vault; pages show their fingerprints.
"""

from collections.abc import Mapping
from typing import Any

from runtime.clock import utc_now
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.content_policy.checked_form import read_checked
from schemas.targets.forms import TargetEditForm
from service.console.layout import PageLayout, Redirect
from service.console.sessions import ConsoleUser
from service.console.targets.forms import TargetPageAction, require_keys, require_webhooks
from service.console.targets.pages import TARGET
from service.operations.targets import TargetOperations
from storage.secrets.vault import Vault
from storage.targets import webhook_secrets


class SetWebhookOptions(TargetPageAction):
    """Changes the signature, the events and the format of a webhook's deliveries."""

    path = f"{TARGET}/webhook"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Change the target. Raises TargetNotFound, ValidationFailed, Forbidden."""
        require_webhooks(user)
        members: dict[str, Any] = {name: form[name] for name in ("signature", "format") if name in form}
        if "has_events" in form:
            members["events"] = [each for each in ALL_EVENTS if f"event_{each}" in form]
        self._targets.edit(ids["target_id"], read_checked(TargetEditForm(), members), user.principal)
        self._targets.wake_workers()
        return _to_page(ids["target_id"], "target_edited")


class WebhookSecretAction(TargetPageAction):
    """A form with a value that is encrypted."""

    def __init__(self, layout: PageLayout, operations: TargetOperations, vault: Vault) -> None:
        super().__init__(layout, operations)
        self._vault = vault

    def _checked_id(self, user: ConsoleUser, ids: Mapping[str, str]) -> str:
        """Return the id of a target of the user's account. Raises TargetNotFound, Forbidden."""
        require_webhooks(user)
        return self._targets.get(ids["target_id"], user.principal).id


class SetHeader(WebhookSecretAction):
    """Sets a header of a webhook's deliveries; no page or command shows its value again."""

    path = f"{TARGET}/header"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Encrypt and store the value. Raises TargetNotFound, ValidationFailed, ServiceUnavailable, Forbidden, Conflict."""
        target_id = self._checked_id(user, ids)
        name, value = form.get("name", "").strip(), form.get("value", "").removesuffix("\n").removesuffix("\r")
        webhook_secrets.require_header(name, value)
        require_keys(self._vault)
        webhook_secrets.set_header(target_id, name, value, self._vault, utc_now(), user.principal.key, user.account_id)
        return _to_page(target_id, "header_set")


class RemoveHeader(WebhookSecretAction):
    """Removes a header of a webhook's deliveries."""

    path = f"{TARGET}/header/remove"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Erase the value. Raises TargetNotFound, ValidationFailed, ServiceUnavailable, Forbidden, Conflict."""
        target_id = self._checked_id(user, ids)
        require_keys(self._vault)
        name = form.get("name", "")
        webhook_secrets.remove_header(target_id, name, self._vault, utc_now(), user.principal.key, user.account_id)
        return _to_page(target_id, "header_removed")


class SetStandardSecret(WebhookSecretAction):
    """Sets the Standard Webhooks secret of a webhook; no page or command shows it again."""

    path = f"{TARGET}/standard-secret"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Encrypt and store the secret. Raises TargetNotFound, ValidationFailed, ServiceUnavailable, Forbidden, Conflict."""
        target_id = self._checked_id(user, ids)
        require_keys(self._vault)
        secret, default = form.get("secret", "").strip(), self._targets.default_secret
        webhook_secrets.set_standard_secret(
            target_id, secret, self._vault, default, utc_now(), user.principal.key, user.account_id
        )
        self._targets.wake_workers()
        return _to_page(target_id, "standard_secret_set")


def _to_page(target_id: str, done: str) -> Redirect:
    return Redirect(f"/targets/{target_id}", done)
