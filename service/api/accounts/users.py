"""Users of the account: `/api/users`, `/api/grants`, `/api/tokens` and `/api/console-sessions`.

Grants say which projects and reports a user may manage. Only the first response to the creation of a token contains its
text, which is never stored. Revoking a session that has already ended returns it unchanged, because clients repeat a request
if they got no response.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.accounts.forms import GrantForm, TokenForm, UserChangeForm, UserForm
from schemas.api.administration import ConsoleSessionResponse, GrantResponse, TokenResponse, UserResponse
from schemas.base.email_address import is_email_address
from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, Manager, Role, TokenKind
from schemas.settings.definitions import RouteFamily
from service.api.accounts.authority import AccountBearer, named_account, numbered
from service.api.routes import ApiContext, ApiRoute, read, removed, shown_as
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.paging import NUMBERS, Matching
from service.http.request_pipeline import Operation
from service.operations.accounts import accounts as operations
from service.operations.accounts import sessions
from service.operations.accounts import tokens as token_operations
from service.operations.accounts.authority import finder
from storage.accounts import accounts, grants, tokens
from storage.accounts.accounts import User
from storage.accounts.grants import Grant
from storage.db import identifiers

_SESSIONS: Final = "/api/console-sessions"


def routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of users and grants."""
    manager = AccountBearer(api.operator_account)
    show, show_grant = shown_as(UserResponse), shown_as(GrantResponse)
    yield ApiRoute(
        "/api/users",
        get=numbered(api, manager, accounts.list_users, show, {"email": Matching(is_email_address, "invalid_email")}),
        post=api.created(manager, UserForm(), _create_user, show),
    )
    yield ApiRoute(
        "/api/users/{user_id}",
        get=read(manager, _find_user, show),
        patch=api.changed(manager, UserChangeForm(), _change_user, show),
        delete=removed(manager, _remove_user),
    )
    find_grant = finder("grant", grants.find)
    yield ApiRoute(
        "/api/grants",
        get=numbered(api, manager, grants.list_page, show_grant, {"user_id": NUMBERS, "project_id": NUMBERS}),
        post=api.created(manager, GrantForm(), _create_grant, show_grant),
    )
    yield ApiRoute(
        "/api/grants/{grant_id}",
        get=read(manager, find_grant, show_grant),
        delete=removed(manager, lambda grant_id, actor: operations.remove_grant(find_grant(grant_id, actor).id, actor)),
    )


def _create_user(req: falcon.Request) -> User:
    body = req.context.payload
    return operations.add_user(body["email"], named_account(req), _role(body["role"]), req.context.actor)


_find_user: Final = finder("user", accounts.find_user)


def _change_user(user_id: str, changes: Mapping[str, Any], actor: Manager) -> User:
    """Change the role, disable or enable the user. Raises Conflict."""
    user = _find_user(user_id, actor)
    if user.removed_at is not None:
        raise Conflict("This user was removed.")
    if "role" in changes:
        user = operations.set_role(user.email, _role(changes["role"]), actor)
    if "state" in changes:
        switch = operations.enable_user if changes["state"] == "active" else operations.disable_user
        user = switch(user.email, actor)
    return user


def _remove_user(user_id: str, actor: Manager) -> None:
    """Remove the user permanently; does nothing if the user is already removed."""
    user = _find_user(user_id, actor)
    if user.removed_at is None:
        operations.remove_user(user.email, actor)


def _create_grant(req: falcon.Request) -> Grant:
    """Give the grant. Raises ValidationFailed for an unknown user."""
    body, actor = req.context.payload, req.context.actor
    user = _named_user(body["user_id"], actor)
    return operations.add_grant(user.email, body["project_id"], body["report_id"], _role(body["role"]), actor)


def token_routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of tokens."""
    manager, show = AccountBearer(api.operator_account), shown_as(TokenResponse)
    find = finder("token", tokens.find)

    def create(req: falcon.Request) -> ApiResponse:
        """Create the token; a replayed response does not contain its text. Raises ValidationFailed."""
        body, actor, now = req.context.payload, req.context.actor, utc_now()
        user = _named_user(body["user_id"] or req.context.principal.user_id, actor)
        expires = None if body["expires_at"] is None else body["expires_at"] - now
        if expires is not None and body["expires_at"] <= now:
            raise ValidationFailed(problem("/expires_at", "in_the_past"))
        token, text = token_operations.create(user, body["kind"], body["abilities"], body["name"], expires, actor, now)
        return replace(api.created_response(req, {**show(token), "token": None}), secrets={"token": text})

    yield ApiRoute(
        "/api/tokens",
        get=numbered(api, manager, tokens.list_page, show, {"user_id": NUMBERS}),
        post=api.once_per_key(Operation(manager, TokenForm()), create),
    )
    yield ApiRoute(
        "/api/tokens/{token_id}",
        get=read(manager, find, show),
        delete=removed(manager, lambda token_id, actor: token_operations.revoke(find(token_id, actor).id, actor)),
    )


def session_routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of console sessions."""
    user, show = Bearer(TokenKind.API, Ability.CONSOLE, allows_project_roles=True), shown_as(ConsoleSessionResponse)
    listed = api.listed(user, identifiers.SESSION, sessions.list_page, show)
    yield ApiRoute(_SESSIONS, get=listed, family=RouteFamily.CONSOLE)
    revoked = api.acted(user, sessions.revoke, show)
    yield ApiRoute(f"{_SESSIONS}/{{session_id}}/revoke", post=revoked, family=RouteFamily.CONSOLE)


def _named_user(user_id: int, actor: Manager) -> User:
    """Return the user whom a body names. Raises ValidationFailed."""
    user = accounts.find_user(user_id, actor.account_id)
    if user is None or user.removed_at is not None:
        raise ValidationFailed(problem("/user_id", "unknown_user"))
    return user


def _role(name: str | None) -> Role | None:
    return None if name is None else Role(name)
