"""`/console/sessions`: who of the account is signed in, and the way to end it."""

from collections.abc import Mapping
from typing import Any

import falcon

from runtime.clock import utc_now
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE, Action, Page
from service.console.sessions import Visitor
from service.http.paging import next_page, read_page
from service.operations.sessions import revoke
from storage.accounts import sessions
from storage.db import identifiers


class Sessions(Page):
    """Lists the account's sessions that hold, the newest first."""

    path = f"{CONSOLE}/sessions"
    template = "sessions.html"
    family = RouteFamily.CONSOLE

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return a page of the list."""
        page = read_page(req, identifiers.SESSION)
        found = sessions.list_live(utc_now(), page.fetch_limit, page.before, visitor.account_id)
        return {
            "shown": found[: page.limit],
            "next": next_page(page, [session.id for session in found]),
            "is_first": page.before is None,
        }


class SessionRevocation(Action):
    """Ends a session of the account, one's own among them."""

    path = f"{Sessions.path}/{{session_id}}/revoke"
    family = RouteFamily.CONSOLE

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """End it; its next request leads to the sign-in."""
        revoke(ids["session_id"], visitor.principal)
        self._frame.go(resp, "/sessions", done="session_revoked")
