"""The forms that control, change and remove a target.

A submitted secret is stored only in the vault; pages show its fingerprint. As in the API, actions that connect or deliver
need an account that may use webhook targets.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from runtime.clock import utc_now
from schemas.base.errors import NoEncryptionKey, ServiceUnavailable, ValidationFailed, WebhooksForbidden, WrongEncryptionKey
from schemas.base.fields import problem
from schemas.content_policy.checked_form import read_checked
from schemas.settings.secret_text import SecretFault, secret_from
from schemas.targets.forms import TargetEditForm
from schemas.targets.providers import provider_of
from schemas.targets.target import MAX_PER_MINUTE, TargetEdit
from service.console.layout import Action, PageLayout, Redirect
from service.console.sessions import ConsoleUser
from service.console.targets.pages import TARGET
from service.console.targets.provider_settings import settings_in
from service.operations.targets import TargetOperations
from storage.db import engine
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

_log: Final = logging.getLogger(__name__)


class TargetPageAction(Action):
    """A form on a target's page."""

    def __init__(self, layout: PageLayout, operations: TargetOperations) -> None:
        super().__init__(layout)
        self._targets = operations


class StopTarget(TargetPageAction):
    """Pauses or disables a target, which every account may do."""

    _DONE: Final = {"pause": "paused", "disable": "disabled"}

    def __init__(self, verb: str, layout: PageLayout, operations: TargetOperations) -> None:
        super().__init__(layout, operations)
        self.path = f"{TARGET}/{verb}"
        self._verb = verb

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Pause or disable the target. Raises TargetNotFound, Conflict."""
        self._targets.change_status(ids["target_id"], self._verb, user.principal)
        return _to_page(ids["target_id"], self._DONE[self._verb])


class ResumeTarget(TargetPageAction):
    """Resumes a target after its address passes the policy again."""

    path = f"{TARGET}/resume"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Validate the address, resume the target, notify the workers.

        Raises TargetNotFound, Conflict, ValidationFailed, Forbidden.
        """
        require_webhooks(user)
        validation = self._targets.check_before_resuming(ids["target_id"], user.principal)
        with engine.transaction():
            self._targets.resume(ids["target_id"], user.principal, validation)
        self._targets.wake_workers()
        return _to_page(ids["target_id"], "resumed")


class ValidateTarget(TargetPageAction):
    """Validates a target's address and certificate."""

    path = f"{TARGET}/validate"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Wait for a worker's validation; the target's page shows the result. Raises TargetNotFound, Forbidden."""
        require_webhooks(user)
        self._targets.validate(ids["target_id"], user.principal)
        why_not = self._targets.get(ids["target_id"], user.principal).validation_reason
        return _to_page(ids["target_id"], "validated" if why_not is None else "validation_failed")


class PingTarget(TargetPageAction):
    """Sends a signed test event through a worker."""

    path = f"{TARGET}/ping"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Wait for the ping; the target's page shows the result. Raises TargetNotFound, Conflict, Forbidden."""
        require_webhooks(user)
        found = self._targets.ping(ids["target_id"], user.principal)
        return _to_page(ids["target_id"], "pinged" if found.delivered else "ping_failed")


class SetTargetSecret(TargetPageAction):
    """Sets a target's own signing secret, or a tracker's token; no page or command shows it again."""

    path = f"{TARGET}/secret"

    def __init__(self, layout: PageLayout, operations: TargetOperations, vault: Vault) -> None:
        super().__init__(layout, operations)
        self._vault = vault

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Encrypt and store the secret. Raises TargetNotFound, ValidationFailed, ServiceUnavailable, Forbidden."""
        # The first secret activates an inactive target, which then connects.
        require_webhooks(user)
        target = self._targets.get(ids["target_id"], user.principal)
        secret = checked_secret(form, self._vault)
        self._targets.set_secret(target.id, secret, self._vault, user.principal)
        return _to_page(target.id, tried(self._targets, target.id, user) if target.is_tracker else "secret_set")


class EditTarget(TargetPageAction):
    """Changes a target's name, URL, settings and rate limit."""

    path = f"{TARGET}/edit"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Check a new URL and change the target. Raises TargetNotFound, ValidationFailed, Forbidden."""
        require_webhooks(user)
        target = self._targets.get(ids["target_id"], user.principal)
        members: dict[str, Any] = {**text_members(form), "max_per_minute": None, **limit_member(form)}
        if members.get("base_url") == target.shown_url:
            # A credential in the URL of an earlier version is shown masked.
            del members["base_url"]
        if target.is_tracker:
            settings = settings_in(provider_of(target), form)
            members |= {} if settings == target.provider_settings else {"provider_settings": settings}
        edit: TargetEdit = read_checked(TargetEditForm(), members)
        self._targets.require_safe_edit(target.id, edit, user.principal)
        self._targets.edit(target.id, edit, user.principal)
        self._targets.wake_workers()
        changed = self._targets.get(target.id, user.principal)
        if target.has_secret and not changed.has_secret:
            return _to_page(target.id, "token_erased")
        if changed.is_tracker and changed.has_secret and (edit.base_url or edit.provider_settings is not None):
            return _to_page(target.id, tried(self._targets, target.id, user))
        return _to_page(target.id, "target_moved" if edit.base_url else "target_edited")


class RemoveTarget(TargetPageAction):
    """Removes a target that no export waits for, which every account may do."""

    path = f"{TARGET}/remove"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Remove the target and erase its secret. Raises TargetNotFound, TargetInUse."""
        self._targets.remove(ids["target_id"], user.principal)
        return Redirect("/targets", "target_removed")


def _to_page(target_id: str, done: str) -> Redirect:
    return Redirect(f"/targets/{target_id}", done)


def require_webhooks(user: ConsoleUser) -> None:
    """Raises WebhooksForbidden for an account that may not use webhook targets."""
    if not user.principal.may_use_webhooks:
        raise WebhooksForbidden


def tried(operations: TargetOperations, target_id: str, user: ConsoleUser) -> str:
    """Have a worker try the token of a tracker, and return the notice about it."""
    operations.wake_workers()
    if not operations.validate_by_worker(target_id, user.principal):
        return "token_untried"
    reason = operations.get(target_id, user.principal).validation_reason
    return "token_works" if reason is None else "validation_failed"


def text_members(form: Mapping[str, str]) -> dict[str, str]:
    """Return the name and the URL as members of a form."""
    return {name: form[name].strip() for name in ("name", "base_url") if name in form}


def limit_member(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the rate limit as a member of a form; none if its field is empty."""
    entered = form.get("max_per_minute", "").strip()
    if not entered:
        return {}
    # More digits than any limit has are text, which the form refuses.
    is_number = entered.isascii() and entered.isdecimal() and len(entered) <= len(str(MAX_PER_MINUTE))
    return {"max_per_minute": int(entered) if is_number else entered}


def checked_secret(form: Mapping[str, str], vault: Vault) -> str:
    """Return the submitted secret.

    Raises ValidationFailed, and ServiceUnavailable if ENCRYPTION_KEYS are not the keys of this installation.
    """
    secret = secret_from(form.get("secret", ""))
    if isinstance(secret, SecretFault):
        raise ValidationFailed(problem("/secret", secret.value))
    require_keys(vault)
    return secret


def require_keys(vault: Vault) -> None:
    """Raise ServiceUnavailable if ENCRYPTION_KEYS are not the keys of this installation."""
    try:
        check_keys(vault, utc_now())
    except (NoEncryptionKey, WrongEncryptionKey) as wrong:
        _log.error("secret not set: %s", wrong.message)
        raise ServiceUnavailable("The secret was not set, because ENCRYPTION_KEYS lacks this installation's key.") from None
