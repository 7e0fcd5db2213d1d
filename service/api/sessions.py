"""`/api/console-sessions`: list and revoke the account's console sessions.

Revoking a session that has ended returns it unchanged, because clients repeat requests that got no response.
"""

import falcon

from schemas.api.administration import ConsoleSessionResponse
from schemas.api.response_fields import dump
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import RouteFamily
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page
from service.http.request_pipeline import Body, Operation
from service.operations import sessions
from storage.db import identifiers


class ConsoleSessionsResource:
    """Lists the open sessions of the token's account."""

    path = "/api/console-sessions"
    family = RouteFamily.CONSOLE

    def __init__(self, public_base_url: str) -> None:
        reading = Operation(Bearer(TokenKind.API, Ability.CONSOLE, of_projects=True))
        self.operations = {"GET": reading, "HEAD": reading}
        self._url = public_base_url + self.path

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the list."""
        page = read_page(req, identifiers.SESSION)
        found = sessions.list_page(req.context.principal, page.fetch_limit, page.before)
        send_page(resp, self._url, page, [dump(ConsoleSessionResponse, session) for session in found])

    on_head = on_get


class ConsoleSessionRevocationResource:
    """Ends one session."""

    path = f"{ConsoleSessionsResource.path}/{{session_id}}/revoke"
    family = RouteFamily.CONSOLE

    def __init__(self, executor: IdempotentExecutor) -> None:
        self.operations = {
            "POST": Operation(Bearer(TokenKind.API, Ability.CONSOLE, of_projects=True), NoMembers(), Body.OPTIONAL)
        }
        self._executor = executor

    def on_post(self, req: falcon.Request, resp: falcon.Response, session_id: str) -> None:
        """End the session, and return it."""
        self._executor.respond(
            req,
            resp,
            lambda: ApiResponse(200, dump(ConsoleSessionResponse, sessions.revoke(session_id, req.context.principal))),
        )
