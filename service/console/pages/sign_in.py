"""`/console/sign-in` and `/console/sign-out`: begin a session with an API token, a link or at an issuer, and end it."""

import json
from typing import Final

import falcon

from runtime.clock import utc_now
from schemas.base.console_session import SessionEndReason, SignInMethod
from schemas.base.email_address import is_email_address
from schemas.base.errors import Conflict, Forbidden, RiskRelayError, ServiceUnavailable
from service.console.form_fields import safe_next
from service.console.layout import CONSOLE, SIGN_IN, ConsoleRoute, PageLayout
from service.console.openid_connect import CALLBACK, OpenIdConnect, SignInFailed
from service.console.sessions import SignInRequired, TokenRejected
from service.http.error_responses import STATUS
from storage.accounts import identities, sessions, sign_in_links
from storage.secrets.encrypted_columns import LINK_MAIL

#: Messages for users whose session has ended.
_ENDED: Final = {
    SessionEndReason.IDLE: "You were signed out after 12 hours without activity.",
    SessionEndReason.TOO_OLD: "You were signed out because your session is a week old.",
    SessionEndReason.SIGNED_OUT: "This session was signed out.",
    SessionEndReason.REVOKED: "This session was revoked.",
    SessionEndReason.REPLACED: "This session ended because there are ten newer ones, which is the maximum.",
    SessionEndReason.TOKEN_INVALID: "You were signed out: the token was revoked, has expired or lost the ability console.",
    SessionEndReason.USER_INVALID: "You were signed out because you have no role with access to the console any more.",
    SessionEndReason.ANOTHER_BROWSER: "This session ended because another browser or browser version sent its cookie.",
    SessionEndReason.RESTORED: "You were signed out because a backup was restored.",
    SessionEndReason.UNKNOWN: "This session no longer exists.",
}
#: The parameters of an issuer's redirect.
_PARAMETERS: Final = ("state", "code", "iss", "error")


class _SignInRoute(ConsoleRoute):
    """A way to sign in; if it is refused, the form is shown with the reason."""

    def refuse(self, req: falcon.Request, resp: falcon.Response, refused: RiskRelayError, next_path: str = "") -> None:
        """Show the form with the reason why a sign-in was refused."""
        resp.status = falcon.code_to_http_status(STATUS[refused.code])
        self._render(req, resp, refused.message, next_path)

    def _render(self, req: falcon.Request, resp: falcon.Response, message: str | None, next_path: str) -> None:
        openid, has_links = self._layout.openid, self._settings.console_sign_in_links
        methods = {"openid_label": openid.label if openid else None, "has_links": has_links}
        self._layout.render(req, resp, "sign_in.html", {"message": message, "next": next_path, **methods})


class SignIn(_SignInRoute):
    """Shows the sign-in form and processes it."""

    path = SIGN_IN

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Show the form."""
        why = req.get_param("why") or ""
        ended = _ENDED.get(SessionEndReason(why)) if why in {*SessionEndReason} else None
        self._render(req, resp, ended, safe_next(req.get_param("next") or ""))

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Sign in and redirect to the requested page, or show the form with the reason for the refusal."""
        self._layout.gate.require_unblocked(req)
        form = self._layout.gate.read_fields(req)
        next_path = safe_next(form.get("next", ""))
        try:
            self._layout.gate.sign_in(req, resp, form.get("token", ""))
        except (TokenRejected, Forbidden) as rejected:
            self.refuse(req, resp, rejected, next_path)
            return
        self._layout.redirect(resp, next_path)


class SignInLink(ConsoleRoute):
    """Accepts requests for a link, and serves the page that a link opens.

    The page has a button, because mail scanners follow links but send no forms.
    """

    path = f"{SIGN_IN}/link"

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Show the button that signs in; opening the page does not use the link up."""
        self._layout.render(req, resp, "sign_in_link.html", {"token": req.get_param("token") or ""})

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store the request; the response is the same for every address."""
        gate = self._layout.gate
        gate.require_unblocked(req)
        email = gate.read_fields(req).get("email", "").strip()
        # Counted as a failed sign-in, so that one address cannot send thousands of requests.
        gate.limits.count_failure(req)
        # Beyond the limit no link is sent, so the cookie must keep belonging to the last link that was sent.
        if is_email_address(email) and gate.may_request_link(req, email):

            def seal(link_id: str, token: str) -> bytes:
                return self._vault.seal(json.dumps([email, token]), LINK_MAIL.context(link_id))

            gate.set_sign_in_cookie(resp, sign_in_links.request(seal, utc_now()).browser)
            self._layout.wake_ups.notify()
        self._layout.redirect(resp, "/sign-in", done="link_requested")


class SignInByLink(_SignInRoute):
    """Signs in with a link, in the browser that requested the link."""

    path = f"{SIGN_IN}/link/open"

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Begin a session, or show the sign-in form with the reason for the refusal."""
        gate = self._layout.gate
        gate.require_unblocked(req)
        token = gate.read_fields(req).get("token", "")
        try:
            user_id = sign_in_links.consume(token, gate.sign_in_cookie(req), utc_now())
            gate.begin_for_user(req, resp, user_id, SignInMethod.EMAIL_LINK, token)
        except (Forbidden, Conflict) as refused:
            gate.count_failure(req, "link")
            self.refuse(req, resp, refused)
        else:
            gate.set_sign_in_cookie(resp, "")
            self._layout.redirect(resp, "")


class _OpenIdRoute(_SignInRoute):
    """A step of the sign-in at the operator's issuer."""

    def __init__(self, layout: PageLayout, openid: OpenIdConnect) -> None:
        super().__init__(layout)
        self._openid = openid


class BeginOpenIdSignIn(_OpenIdRoute):
    """Redirects the browser to the issuer."""

    path = f"{SIGN_IN}/openid-connect"

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Redirect to the issuer, or show the form with the reason why that is not possible."""
        self._layout.gate.require_unblocked(req)
        next_path = safe_next(req.get_param("next") or "")
        try:
            url, cookie = self._openid.begin(next_path, utc_now())
        except ServiceUnavailable as failed:
            self.refuse(req, resp, failed, next_path)
            return
        self._layout.gate.set_sign_in_cookie(resp, cookie)
        resp.status = falcon.HTTP_303
        resp.set_header("Location", url)


class FinishOpenIdSignIn(_OpenIdRoute):
    """Handles the redirect from the issuer."""

    path = f"{CONSOLE}{CALLBACK}"

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Begin a session and show the requested page, or show the sign-in form with the reason for the refusal."""
        gate = self._layout.gate
        gate.require_unblocked(req)
        cookie = gate.sign_in_cookie(req)
        if cookie:
            # Delete the cookie first: this sign-in ends here, whether it succeeds or not.
            gate.set_sign_in_cookie(resp, "")
        params = {name: value for name in _PARAMETERS if (value := req.get_param(name)) is not None}
        try:
            person = self._openid.finish(params, cookie, utc_now())
            account_id = self._openid.account_id
            if account_id is None:
                raise Forbidden("There is no account yet.")
            user = identities.sign_in(person.identity, account_id, utc_now())
            sealer = self._openid.sealer(person)
            gate.begin_for_user(req, resp, user.id, SignInMethod.OPENID_CONNECT, person.state, sealer)
        except SignInFailed as failed:
            # Without the cookie, a page of another site may have sent the request, so it is not counted.
            if cookie:
                gate.count_failure(req, "openid_connect")
            self.refuse(req, resp, failed)
        except (Forbidden, Conflict, ServiceUnavailable) as refused:
            self.refuse(req, resp, refused)
        else:
            # A page instead of a redirect: after the issuer's redirect, browsers would omit the SameSite cookie.
            self._layout.render_redirect_page(req, resp, self._layout.address(person.next_path))


class SignOut(ConsoleRoute):
    """Ends the user's own session."""

    path = f"{CONSOLE}/sign-out"

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """End the session, then the one at the issuer if the issuer has a page for that; succeeds without a session, too."""
        gate = self._layout.gate
        try:
            # Not counted: a user over the rate limit must be able to sign out. A stolen cookie may be the cause.
            user = gate.authenticate(req, resp, is_counted=False)
            gate.require_own_form(req, user, gate.read_fields(req))
        except SignInRequired:
            pass
        else:
            session = user.session
            sealed = sessions.sealed_id_token(session.id)
            gate.sign_out(req, resp)
            openid = self._layout.openid
            if openid is not None and session.method is SignInMethod.OPENID_CONNECT:
                url = openid.sign_out_url(session.id, sealed)
                if url is not None:
                    # A page instead of a redirect: our form-action allows forms to lead only to our own pages.
                    self._layout.render_redirect_page(req, resp, url)
                    return
        self._layout.redirect(resp, "/sign-in", done="signed_out")
