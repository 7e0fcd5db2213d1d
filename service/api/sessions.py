"""`/api/console-sessions`: list and revoke the account's console sessions.

Revoking a session that has already ended returns it unchanged, because clients repeat a request if they got no response.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from schemas.api.administration import ConsoleSessionResponse
from schemas.api.response_fields import dump
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import RouteFamily
from service.api.routes import ApiContext, Route
from service.http.auth import Bearer
from service.operations.accounts import sessions
from storage.db import identifiers

SESSIONS: Final = "/api/console-sessions"


def routes(api: ApiContext) -> Iterator[Route]:
    """Yield the routes of console sessions."""
    user, show = Bearer(TokenKind.API, Ability.CONSOLE, allows_project_roles=True), partial(dump, ConsoleSessionResponse)
    listed = api.listed(user, identifiers.SESSION, sessions.list_page, show)
    yield Route(SESSIONS, get=listed, family=RouteFamily.CONSOLE)
    revoked = api.acted(user, sessions.revoke, show)
    yield Route(f"{SESSIONS}/{{session_id}}/revoke", post=revoked, family=RouteFamily.CONSOLE)
