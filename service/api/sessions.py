"""`/api/console-sessions`: list and revoke the account's console sessions.

Revoking a session that has already ended returns it unchanged, because clients repeat a request if they got no response.
"""

from typing import Final

import falcon

from schemas.api.administration import ConsoleSessionResponse
from schemas.api.response_fields import dump
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import RouteFamily
from service.api.resources import ApiResource, by_method, once_per_key
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.paging import read_page, send_page
from service.http.request_pipeline import Body, Operation
from service.operations.accounts import sessions
from storage.db import identifiers

_USER: Final = Bearer(TokenKind.API, Ability.CONSOLE, allows_project_roles=True)


class ConsoleSessionsResource(ApiResource):
    """Lists the open sessions of the token's account."""

    path = "/api/console-sessions"
    family = RouteFamily.CONSOLE
    checks = by_method(GET=Operation(_USER))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the sessions."""
        page = read_page(req, identifiers.SESSION)
        found = sessions.list_page(req.context.principal, page.fetch_limit, page.before)
        send_page(resp, self._url, page, [dump(ConsoleSessionResponse, session) for session in found])


class ConsoleSessionRevocationResource(ApiResource):
    """Ends one session."""

    path = f"{ConsoleSessionsResource.path}/{{session_id}}/revoke"
    family = RouteFamily.CONSOLE
    checks = by_method(POST=Operation(_USER, NoMembers(), Body.OPTIONAL))

    @once_per_key
    def on_post(self, req: falcon.Request, session_id: str) -> ApiResponse:
        """End the session, and return it."""
        return ApiResponse(200, dump(ConsoleSessionResponse, sessions.revoke(session_id, req.context.principal)))
