"""The forms that control, change and remove a target, and the forms for a webhook's options, headers and secret.

Submitted secrets and headers are stored only in the vault; pages show their fingerprints.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from runtime.clock import utc_now
from schemas.base.errors import NoEncryptionKey, ServiceUnavailable, ValidationFailed, WrongEncryptionKey
from schemas.base.fields import problem
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.content_policy.checked_form import read_checked
from schemas.settings.secret_text import SecretFault, secret_from
from schemas.targets.forms import TargetEditForm
from schemas.targets.providers import PROVIDERS
from schemas.targets.target import RESUMABLE, Target, TargetEdit
from schemas.targets.validations import PASSED
from schemas.url_policy.credentials import masked
from service.console.form_fields import Fields, Problems, normalize_line_breaks, whole_number
from service.console.layout import Action, PageAction, PageLayout, Redirect
from service.console.sessions import ConsoleUser
from service.console.targets.pages import TARGET, TargetPage, shown_fields, shown_options
from service.console.targets.provider_settings import PREFIX, by_setting, setting_inputs, settings_in, target_texts
from service.operations.wiring import Operations
from storage.db import engine
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault
from storage.targets import targets, webhook_secrets

#: The prefix of hidden fields with the values that the form originally showed.
_SHOWN: Final = "shown."

_log: Final = logging.getLogger(__name__)


class TargetAction(PageAction):
    """A form on the page of a target."""

    page = TargetPage

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Change the target and redirect to its page. Raises TargetNotFound, and what `change` raises."""
        target = self._operations.targets.get(ids["target_id"], user.principal)
        return Redirect(f"/targets/{target.id}", self.change(user, form, target))

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Change the target, and return the key of the notice."""
        raise NotImplementedError


class StopTarget(Action):
    """Pauses or disables a target; every account may do this."""

    _DONE: Final = {"pause": "paused", "disable": "disabled"}

    def __init__(self, verb: str, layout: PageLayout) -> None:
        super().__init__(layout)
        self.path = f"{TARGET}/{verb}"
        self._verb = verb

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Pause or disable the target. Raises TargetNotFound, Conflict."""
        self._operations.targets.change_status(ids["target_id"], self._verb, user.principal)
        return Redirect(f"/targets/{ids['target_id']}", self._DONE[self._verb])


class ResumeTarget(TargetAction):
    """Resumes a target if the URL policy allows its address."""

    path = f"{TARGET}/resume"

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Validate the address, resume the target, notify the workers. Raises Conflict, ValidationFailed."""
        validation = self._operations.targets.check_before_resuming(target.id, user.principal)
        with engine.transaction():
            self._operations.targets.resume(target.id, user.principal, validation)
        self._operations.wake_workers()
        return "resumed"


class ValidateTarget(TargetAction):
    """Validates a target's address and certificate."""

    path = f"{TARGET}/validate"

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Wait for a worker's validation; the page shows the result."""
        is_whole = self._operations.targets.validate(target.id, user.principal)
        done = _validated(self._operations.targets.get(target.id, user.principal), "validated")
        return done if is_whole or done == "validation_failed" else "validated_partly"


class PingTarget(TargetAction):
    """Sends a signed test event through a worker."""

    path = f"{TARGET}/ping"

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Wait for the ping; the page shows the result. Raises Conflict."""
        return "pinged" if self._operations.targets.ping(target.id, user.principal).delivered else "ping_failed"


class SetTargetSecret(TargetAction):
    """Sets a target's own signing secret, or a tracker's token; afterwards no page or command shows it."""

    path = f"{TARGET}/secret"

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Encrypt and store the secret. Raises ValidationFailed, ServiceUnavailable."""
        # The first secret activates an inactive target; from then on workers connect to it.
        secret = checked_secret(form, self._vault)
        self._operations.targets.set_secret(target.id, secret, self._vault, user.principal)
        return try_token(self._operations, target.id, user) if target.is_tracker else "secret_set"


class EditTarget(TargetAction):
    """Changes a target's name, URL, settings and rate limit."""

    path = f"{TARGET}/edit"
    fields = ("name", "base_url", "max_per_minute")
    text_fields = target_texts()

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Check a new URL and change the target. Raises ValidationFailed."""
        changed = _changed(form, shown_fields(target))
        members: dict[str, Any] = text_members(changed)
        if "max_per_minute" in changed:
            members |= {"max_per_minute": None, **limit_member(changed)}
        if any(name.startswith(PREFIX) for name in changed):
            members["provider_settings"] = settings_in(PROVIDERS[target.provider_key], {**shown_fields(target), **changed})
        return self._edit(user, target, members) if members else "target_edited"

    def _edit(self, user: ConsoleUser, target: Target, members: Mapping[str, Any]) -> str:
        edit: TargetEdit = read_checked(TargetEditForm(), members)
        self._operations.targets.require_safe_edit(target.id, edit, user.principal)
        self._operations.targets.edit(target.id, edit, user.principal)
        self._operations.wake_workers()
        edited = self._operations.targets.get(target.id, user.principal)
        if target.has_secret and not edited.has_secret:
            return "token_erased"
        if edited.is_tracker and edited.has_secret and (edit.base_url or edit.provider_settings is not None):
            return try_token(self._operations, target.id, user)
        return "target_moved" if edit.base_url else "target_edited"

    def typed(self, form: Fields) -> dict[str, str]:
        """Return the texts of the form by label; a credential in the URL is masked."""
        return super().typed(without_credential(form))

    def refused(self, form: Fields, problems: Problems, **ids: str) -> Mapping[str, Any]:
        """Return the refused form with the entered texts; a credential in the URL is masked. Raises TargetNotFound."""
        content = super().refused(without_credential(form), by_setting(problems), **ids)
        # No account is given, because the page has already checked that the target belongs to the user's account.
        inputs = setting_inputs(PROVIDERS[targets.get(ids["target_id"], None).provider_key], form)
        return {**content, "inputs": inputs, "shown_fields": _shown(form)}


class RemoveTarget(Action):
    """Removes a target for which no export waits; every account may do this."""

    path = f"{TARGET}/remove"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Remove the target and erase its secret. Raises TargetNotFound, TargetInUse."""
        self._operations.targets.remove(ids["target_id"], user.principal)
        return Redirect("/targets", "target_removed")


class SetWebhookOptions(TargetAction):
    """Changes the signature, the events and the format of a webhook's deliveries."""

    path = f"{TARGET}/webhook"
    fields = ("signature", "format", *(f"event_{each}" for each in ALL_EVENTS))

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Change the target. Raises ValidationFailed."""
        if "has_events" in form:
            form = {**form, "events": " ".join(each for each in ALL_EVENTS if f"event_{each}" in form)}
        changed: dict[str, Any] = _changed(form, shown_options(target))
        if "events" in changed:
            changed["events"] = changed["events"].split()
        if changed:
            self._operations.targets.edit(target.id, read_checked(TargetEditForm(), changed), user.principal)
            self._operations.wake_workers()
        return "target_edited"

    def refused(self, form: Fields, problems: Problems, **ids: str) -> Mapping[str, Any]:
        """Return the refused form with the chosen options, and with the options that it originally showed."""
        return {**super().refused(form, problems, **ids), "shown_options": _shown(form)}


class SetHeader(TargetAction):
    """Sets a header of a webhook's deliveries; afterwards no page or command shows its value."""

    path = f"{TARGET}/header"
    fields = ("name",)

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Encrypt and store the value. Raises ValidationFailed, ServiceUnavailable, Conflict."""
        name, value = form.get("name", "").strip(), form.get("value", "").removesuffix("\n").removesuffix("\r")
        webhook_secrets.require_header(name, value)
        require_keys(self._vault)
        webhook_secrets.set_header(target.id, name, value, self._vault, utc_now(), user.principal.key, user.account_id)
        return "header_set"


class RemoveHeader(TargetAction):
    """Removes a header of a webhook's deliveries."""

    path = f"{TARGET}/header/remove"

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Erase the value. Raises ValidationFailed, ServiceUnavailable, Conflict."""
        require_keys(self._vault)
        name = form.get("name", "")
        webhook_secrets.remove_header(target.id, name, self._vault, utc_now(), user.principal.key, user.account_id)
        return "header_removed"


class SetStandardSecret(TargetAction):
    """Sets the Standard Webhooks secret of a webhook; afterwards no page or command shows it."""

    path = f"{TARGET}/standard-secret"

    def change(self, user: ConsoleUser, form: Fields, target: Target) -> str:
        """Encrypt and store the secret. Raises ValidationFailed, ServiceUnavailable, Conflict."""
        require_keys(self._vault)
        secret, default = form.get("secret", "").strip(), self._operations.targets.default_secret
        webhook_secrets.set_standard_secret(
            target.id, secret, self._vault, default, utc_now(), user.principal.key, user.account_id
        )
        self._operations.wake_workers()
        return "standard_secret_set"


def _shown(form: Fields) -> dict[str, str]:
    """Return the values that the form originally showed, by field name."""
    return {name.removeprefix(_SHOWN): text for name, text in form.items() if name.startswith(_SHOWN)}


def _changed(form: Fields, current: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that the user changed; another user may have changed the `current` values of the others."""
    shown = {**current, **_shown(form)}
    return {
        name: form[name]
        for name in current
        if name in form and normalize_line_breaks(form[name]) != normalize_line_breaks(shown[name])
    }


def _validated(target: Target, passed: str) -> str:
    """Return the key of the notice about a validation, which resumes no target.

    A validation that passed may have a reason, too: a warning.
    """
    if target.validation_status != PASSED:
        return "validation_failed"
    return f"{passed}_off" if target.status in RESUMABLE else passed


def try_token(operations: Operations, target_id: str, user: ConsoleUser) -> str:
    """Have a worker try the token of a tracker, and return the key of the notice about it."""
    operations.wake_workers()
    if not operations.targets.validate_by_worker(target_id, user.principal):
        return "token_untried"
    return _validated(operations.targets.get(target_id, user.principal), "token_works")


def without_credential(form: Fields) -> dict[str, str]:
    """Return a form in which a credential in the URL is masked."""
    return {**form, "base_url": masked(form.get("base_url", ""))}


def text_members(form: Fields) -> dict[str, str]:
    """Return the name and the URL of a form, as members of the API's body."""
    return {name: form[name].strip() for name in ("name", "base_url") if name in form}


def limit_member(form: Fields) -> dict[str, Any]:
    """Return the rate limit of a form as a member of the API's body; no member if the field is empty."""
    entered = form.get("max_per_minute", "").strip()
    if not entered:
        return {}
    number = whole_number(entered)
    # The API's form refuses a text.
    return {"max_per_minute": entered if number is None else number}


def checked_secret(form: Fields, vault: Vault) -> str:
    """Return the submitted secret of a webhook, or token of a tracker.

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
