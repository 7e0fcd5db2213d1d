"""`/console/sign-in/link`: request a one-time link by email, open it, and sign in with it."""

import json

import falcon

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.console_session import SignInMethod
from schemas.base.email_address import is_email_address
from schemas.base.errors import Conflict, Forbidden
from schemas.settings.definitions import RouteFamily
from service.console.layout import SIGN_IN, PageLayout
from service.console.pages.sign_in import SignIn
from storage.accounts import sign_in_links
from storage.secrets.encrypted_columns import LINK_MAIL
from storage.secrets.vault import Vault


class SignInLink:
    """Takes a request for a link, and shows the page that a link opens: mail scanners follow links, but send no forms."""

    path = f"{SIGN_IN}/link"
    family = RouteFamily.CONSOLE

    def __init__(self, layout: PageLayout, vault: Vault, wake_ups: WakeUpQueue) -> None:
        self._layout = layout
        self._vault = vault
        self._wake_ups = wake_ups

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Show the button that signs in; the link is not spent."""
        self._layout.render(req, resp, "sign_in_link.html", {"token": req.get_param("token") or ""})

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store the request; the response is the same for every address."""
        gate = self._layout.gate
        gate.require_unblocked(req)
        email = gate.read_form(req, None).get("email", "").strip()
        # Requests count as failed sign-ins, so that nobody sends them by the thousand.
        gate.count_failure(req, "link_requested")
        if is_email_address(email):

            def seal(link_id: str, token: str) -> bytes:
                return self._vault.seal(json.dumps([email, token]), LINK_MAIL.context(link_id))

            gate.keep_sign_in(resp, sign_in_links.request(seal, utc_now()).browser)
            self._wake_ups.notify()
        self._layout.redirect(resp, "/sign-in", done="link_requested")


class SignInByLink:
    """Signs in with a link, in the browser that asked for it."""

    path = f"{SIGN_IN}/link/open"
    family = RouteFamily.CONSOLE

    def __init__(self, page: SignIn, layout: PageLayout) -> None:
        self._page = page
        self._layout = layout

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Begin a session, or show the sign-in with the reason for the refusal."""
        gate = self._layout.gate
        gate.require_unblocked(req)
        token = gate.read_form(req, None).get("token", "")
        try:
            user_id = sign_in_links.use(token, gate.kept_sign_in(req), utc_now())
            gate.begin_for_user(req, resp, user_id, SignInMethod.EMAIL_LINK, token)
        except (Forbidden, Conflict) as refused:
            gate.count_failure(req, "link")
            self._page.refuse(req, resp, refused, "")
        else:
            gate.keep_sign_in(resp, "")
            self._layout.redirect(resp, "")
