"""`/console/sign-in` and `/console/sign-out`: an API token is traded in for a session, and a session ended."""

from typing import Final

import falcon

from schemas.base.console_session import Ended
from schemas.base.errors import Forbidden
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE, SIGN_IN, Action, Frame, fit_next
from service.console.sessions import SignInNeeded, TokenRefused

#: What a person reads who was signed in and is not any more.
_WHY: Final = {
    Ended.IDLE: "You were signed out: nothing was looked at for 12 hours.",
    Ended.TOO_OLD: "You were signed out: a session lasts a week at most.",
    Ended.SIGNED_OUT: "This session was signed out.",
    Ended.REVOKED: "This session was revoked.",
    Ended.CROWDED_OUT: "This session was ended: its token has ten newer ones.",
    Ended.TOKEN_OVER: "You were signed out: the token was revoked, has expired or lost the ability console.",
    Ended.ANOTHER_BROWSER: "This session was ended: its cookie came from another browser than the one it was given to, "
    "or from a newer version of it.",
    Ended.RESTORED: "You were signed out: a backup was restored.",
    Ended.UNKNOWN: "There is no such session any more.",
}


class SignIn:
    """Asks for an API token, and takes it."""

    path = SIGN_IN
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Show the form."""
        why = req.get_param("why") or ""
        told = _WHY.get(Ended(why)) if why in {*Ended} else None
        self._ask(req, resp, told, fit_next(req.get_param("next") or ""))

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Sign in, and go to where the person was going; a refusal is told above the form."""
        self._frame.entrance.require_unblocked(req)
        form = self._frame.entrance.form(req, None)
        there = fit_next(form.get("next", ""))
        try:
            self._frame.entrance.sign_in(req, resp, form.get("token", ""))
        except (TokenRefused, Forbidden) as refused:
            resp.status = falcon.HTTP_401 if isinstance(refused, TokenRefused) else falcon.HTTP_403
            self._ask(req, resp, refused.message, there)
            return
        self._frame.go(resp, there)

    def _ask(self, req: falcon.Request, resp: falcon.Response, told: str | None, there: str) -> None:
        self._frame.show(req, resp, "sign_in.html", {"told": told, "there": there})


class SignOut(Action):
    """Ends the visitor's own session."""

    path = f"{CONSOLE}/sign-out"
    family = RouteFamily.CONSOLE

    def on_post(self, req: falcon.Request, resp: falcon.Response, **_ids: str) -> None:
        """End it; whoever is signed out already is told so in the same way."""
        entrance = self._frame.entrance
        try:
            # Whoever has asked too often, or whose stolen cookie has, may leave all the same; a session ends but once.
            visitor = entrance.visitor(req, resp, is_counted=False)
            entrance.form(req, visitor)
        except SignInNeeded:
            self._frame.go(resp, "/sign-in", done="signed_out")
            return
        entrance.sign_out(resp, visitor)
        self._frame.go(resp, "/sign-in", done="signed_out")
