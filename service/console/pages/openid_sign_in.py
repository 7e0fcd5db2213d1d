"""`/console/sign-in/openid-connect` and its callback: the way to the operator's issuer and back."""

from typing import Final

import falcon

from runtime.clock import utc_now
from schemas.base.console_session import SignInMethod
from schemas.base.errors import Conflict, Forbidden, ServiceUnavailable
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE, SIGN_IN, PageLayout, safe_next
from service.console.openid_connect import CALLBACK, OpenIdConnect, SignInFailed
from service.console.pages.sign_in import SignIn
from storage.accounts import identities

_PARAMETERS: Final = ("state", "code", "iss", "error")


class BeginOpenIdSignIn:
    """Sends the browser to the issuer."""

    path = f"{SIGN_IN}/openid-connect"
    family = RouteFamily.CONSOLE

    def __init__(self, page: SignIn, layout: PageLayout, openid: OpenIdConnect) -> None:
        self._page = page
        self._layout = layout
        self._openid = openid

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Redirect to the issuer, or show why that is not possible."""
        self._layout.gate.require_unblocked(req)
        next_path = safe_next(req.get_param("next") or "")
        try:
            url, cookie = self._openid.begin(next_path, utc_now())
        except ServiceUnavailable as failed:
            self._page.refuse(req, resp, failed, next_path)
            return
        self._layout.gate.keep_sign_in(resp, cookie)
        resp.status = falcon.HTTP_303
        resp.set_header("Location", url)


class FinishOpenIdSignIn:
    """Receives the browser from the issuer."""

    path = f"{CONSOLE}{CALLBACK}"
    family = RouteFamily.CONSOLE

    def __init__(self, page: SignIn, layout: PageLayout, openid: OpenIdConnect) -> None:
        self._page = page
        self._layout = layout
        self._openid = openid

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Begin a session and show the page that was asked for, or the sign-in with the reason for the refusal."""
        gate = self._layout.gate
        gate.require_unblocked(req)
        cookie = gate.kept_sign_in(req)
        # Whatever comes of it, this sign-in is over.
        gate.keep_sign_in(resp, "")
        answer = {name: value for name in _PARAMETERS if (value := req.get_param(name)) is not None}
        try:
            person = self._openid.finish(answer, cookie, utc_now())
            account_id = self._openid.account_id
            if account_id is None:
                raise Forbidden("There is no account yet.")
            user = identities.sign_in(person.identity, account_id, utc_now())
            gate.begin_for_user(
                req,
                resp,
                user.id,
                SignInMethod.OPENID_CONNECT,
                person.state,
                self._openid.sealer(person),
            )
        except SignInFailed as failed:
            gate.count_failure(req, "openid_connect")
            self._page.refuse(req, resp, failed, "")
        except (Forbidden, Conflict, ServiceUnavailable) as refused:
            self._page.refuse(req, resp, refused, "")
        else:
            # Not a redirect: after the issuer's, browsers would omit the SameSite cookie.
            self._layout.go_on(req, resp, self._layout.address(person.next_path))
