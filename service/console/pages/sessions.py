"""`/console/sessions`: the account's active sessions, each with a button to revoke it."""

from collections.abc import Mapping
from typing import Any

import falcon

from service.console.form_fields import Fields
from service.console.layout import CONSOLE, Action, ConsolePage, Redirect, list_content
from service.console.sessions import ConsoleUser
from service.http.paging import read_page
from service.operations.accounts import sessions
from storage.db import identifiers


class SessionsPage(ConsolePage):
    """Lists the account's active sessions, newest first."""

    path = f"{CONSOLE}/sessions"
    template = "sessions.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the sessions."""
        page = read_page(req, identifiers.SESSION)
        return list_content(page, sessions.list_page(user.principal, page.fetch_limit, page.before))


class SessionRevocation(Action):
    """Ends a session of the account; it may be the user's own."""

    path = f"{SessionsPage.path}/{{session_id}}/revoke"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """End the session; its next request is redirected to the sign-in. Raises NotFound."""
        sessions.revoke(ids["session_id"], user.principal)
        return Redirect("/sessions", "session_revoked")
