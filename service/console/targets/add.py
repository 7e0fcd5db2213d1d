"""`/console/targets/add`: choose the provider, then fill in the form for that provider.

A token is stored in the vault and shown on no page. A worker tries it at once, so that the next page shows problems.
"""

import falcon

from schemas.content_policy.checked_form import read_checked
from schemas.targets.forms import TargetForm
from schemas.targets.providers import PROVIDERS
from schemas.targets.target import TargetRequest
from schemas.trackers.registry import GENERIC_WEBHOOK, TRACKERS
from service.console.form_fields import Fields, Problems, by_path
from service.console.layout import Content, FormPage, Redirect
from service.console.sessions import ConsoleUser
from service.console.targets.forms import checked_secret, limit_member, text_members, try_token, without_credential
from service.console.targets.pages import TARGETS
from service.console.targets.provider_settings import by_setting, setting_inputs, settings_in, target_texts
from storage.db import engine


class AddTargetPage(FormPage):
    """Adds a target; `?provider=` selects its provider, and without it the page lists the providers."""

    path = f"{TARGETS}/add"
    template = "target_add.html"
    text_fields = target_texts()

    def form(self, req: falcon.Request, user: ConsoleUser, typed: Fields | None, problems: Problems, **_ids: str) -> Content:
        """Return the providers, or the form of one provider, without its secret."""
        key = req.get_param("provider") if typed is None else _key(typed)
        found = PROVIDERS.get(key or "")
        inputs = setting_inputs(found, typed or {}) if found else []
        return {
            "providers": list(PROVIDERS.values()),
            "provider": found,
            "tracker": None if found is None else TRACKERS.get(found.key),
            "inputs": inputs,
            "shown_paths": {"/name", "/base_url", "/max_per_minute", "/secret", *(each.path for each in inputs)},
            "typed": {**without_credential(typed or {}), "secret": ""},
            "problems": by_path(by_setting(problems)),
        }

    def typed(self, form: Fields) -> dict[str, str]:
        """Return the texts of the form by label; a credential in the URL is masked."""
        return super().typed(without_credential(form))

    def act(self, user: ConsoleUser, form: Fields, **_ids: str) -> Redirect:
        """Check the URL, create the target, and have a worker try a tracker's token.

        Raises ValidationFailed, ServiceUnavailable.
        """
        key = _key(form)
        found = PROVIDERS.get(key)
        settings = settings_in(found, form) if found else {}
        members = {"provider_key": key, "provider_settings": settings, **text_members(form), **limit_member(form)}
        request: TargetRequest = read_checked(TargetForm(), members)
        secret = checked_secret(form, self._vault) if form.get("secret") else None
        engine.release()
        self._operations.targets.require_safe(request, user.account_id)
        with engine.transaction():
            made = self._operations.targets.create(request, user.account_id, user.principal)
            if secret is not None:
                self._operations.targets.set_secret(made.id, secret, self._vault, user.principal)
        return Redirect(f"/targets/{made.id}", self._done(made.id, user, has_token=secret is not None))

    def _done(self, target_id: str, user: ConsoleUser, *, has_token: bool) -> str:
        """Return the key of the notice about a new target; for a tracker with a token, wait until a worker has tried it."""
        if not self._operations.targets.get(target_id, user.principal).is_tracker:
            return "target_added"
        if not has_token:
            return "tracker_added"
        return try_token(self._operations, target_id, user)


def _key(form: Fields) -> str:
    return form.get("provider", GENERIC_WEBHOOK)
