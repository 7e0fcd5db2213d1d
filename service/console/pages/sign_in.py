"""`/console/sign-in` and `/console/sign-out`: exchange an API token for a session, and end it."""

from typing import Final

import falcon

from schemas.base.console_session import Ended, SignInMethod
from schemas.base.errors import Forbidden, RiskRelayError
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE, SIGN_IN, PageLayout, safe_next
from service.console.openid_connect import OpenIdConnect
from service.console.sessions import SignInRequired, TokenRejected
from service.http.error_responses import STATUS
from storage.accounts import sessions

#: Messages for users whose session has ended.
_ENDED: Final = {
    Ended.IDLE: "You were signed out after 12 hours without activity.",
    Ended.TOO_OLD: "You were signed out because your session is a week old.",
    Ended.SIGNED_OUT: "This session was signed out.",
    Ended.REVOKED: "This session was revoked.",
    Ended.CROWDED_OUT: "This session ended because there are ten newer ones, which is the maximum.",
    Ended.TOKEN_OVER: "You were signed out because the token was revoked, has expired or lost the ability console.",
    Ended.USER_OVER: "You were signed out because you have no role with access to the console any more.",
    Ended.ANOTHER_BROWSER: "This session ended because its cookie came from a different browser or browser version.",
    Ended.RESTORED: "You were signed out because a backup was restored.",
    Ended.UNKNOWN: "This session no longer exists.",
}


class SignIn:
    """Shows the sign-in form and processes it."""

    path = SIGN_IN
    family = RouteFamily.CONSOLE

    def __init__(self, layout: PageLayout, openid_label: str | None, *, has_links: bool) -> None:
        self._layout = layout
        self._methods = {"openid_label": openid_label, "has_links": has_links}

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Show the form."""
        why = req.get_param("why") or ""
        self._render(req, resp, _ENDED.get(Ended(why)) if why in {*Ended} else None, safe_next(req.get_param("next") or ""))

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Sign in and redirect to the requested page, or show the form with the reason for the rejection."""
        self._layout.gate.require_unblocked(req)
        form = self._layout.gate.read_form(req, None)
        next_path = safe_next(form.get("next", ""))
        try:
            self._layout.gate.sign_in(req, resp, form.get("token", ""))
        except (TokenRejected, Forbidden) as rejected:
            self.refuse(req, resp, rejected, next_path)
            return
        self._layout.redirect(resp, next_path)

    def refuse(self, req: falcon.Request, resp: falcon.Response, refused: RiskRelayError, next_path: str) -> None:
        """Show the form with the reason why a sign-in was refused."""
        resp.status = falcon.code_to_http_status(STATUS[refused.code])
        self._render(req, resp, refused.message, next_path)

    def _render(self, req: falcon.Request, resp: falcon.Response, message: str | None, next_path: str) -> None:
        self._layout.render(req, resp, "sign_in.html", {"message": message, "next": next_path, **self._methods})


class SignOut:
    """Ends the user's own session."""

    path = f"{CONSOLE}/sign-out"
    family = RouteFamily.CONSOLE

    def __init__(self, layout: PageLayout, openid: OpenIdConnect | None) -> None:
        self._layout = layout
        self._openid = openid

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """End the session, then the one at the issuer if that has a page for it; without a session, respond as with one."""
        gate = self._layout.gate
        try:
            # Not counted: a user over the rate limit, perhaps because the cookie was stolen, must be able to sign out.
            user = gate.authenticate(req, resp, is_counted=False)
            gate.read_form(req, user)
        except SignInRequired:
            pass
        else:
            session = user.session
            sealed = sessions.sealed_id_token(session.id)
            gate.sign_out(req, resp)
            if self._openid is not None and session.method is SignInMethod.OPENID_CONNECT:
                url = self._openid.sign_out_url(session.id, sealed)
                if url is not None:
                    # Not a redirect: our form-action allows forms to lead to our own pages only.
                    self._layout.go_on(req, resp, url)
                    return
        self._layout.redirect(resp, "/sign-in", done="signed_out")
