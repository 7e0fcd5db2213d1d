"""`/api/console-sessions`: who of the account is signed in at the console, and the way to end it.

A session that is over stays as it ended and is answered all the same, since clients repeat what they got no answer to.
"""

import falcon

from runtime.clock import utc_now
from schemas.base.console_session import Ended, session_record
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import RouteFamily
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page
from service.http.request_pipeline import Body, Operation
from storage.accounts import sessions
from storage.db import identifiers


class ConsoleSessionsResource:
    """Lists the sessions of the token's account that hold."""

    path = "/api/console-sessions"
    family = RouteFamily.CONSOLE

    def __init__(self, public_base_url: str) -> None:
        reading = Operation(Bearer(TokenKind.API, Ability.CONSOLE))
        self.operations = {"GET": reading, "HEAD": reading}
        self._url = public_base_url + self.path

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the list."""
        page = read_page(req, identifiers.SESSION)
        account_id = req.context.principal.account_id
        found = sessions.list_live(utc_now(), page.fetch_limit, page.before, account_id)
        send_page(resp, self._url, page, [session_record(session) for session in found])

    on_head = on_get


class ConsoleSessionRevocationResource:
    """Ends one of them."""

    path = f"{ConsoleSessionsResource.path}/{{session_id}}/revoke"
    family = RouteFamily.CONSOLE

    def __init__(self, executor: IdempotentExecutor) -> None:
        self.operations = {"POST": Operation(Bearer(TokenKind.API, Ability.CONSOLE), NoMembers(), Body.OPTIONAL)}
        self._executor = executor

    def on_post(self, req: falcon.Request, resp: falcon.Response, session_id: str) -> None:
        """End it, and answer with the session as it ended."""
        self._executor.respond(req, resp, lambda: self._revoke(req, session_id))

    def _revoke(self, req: falcon.Request, session_id: str) -> ApiResponse:
        principal = req.context.principal
        ended = sessions.end(session_id, Ended.REVOKED, utc_now(), principal.key, principal.account_id)
        return ApiResponse(200, session_record(ended))
