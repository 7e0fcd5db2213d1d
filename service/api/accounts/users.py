"""`/api/users` and `/api/grants`: the users of the account, their roles, and which projects and reports they may manage."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import falcon

from schemas.accounts.forms import GrantForm, UserChangeForm, UserForm
from schemas.api.administration import GrantResponse, UserResponse
from schemas.api.response_fields import dump
from schemas.base.email_address import is_email_address
from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Manager, Role
from service.api.accounts.authority import AccountBearer, named_account, numbered
from service.api.routes import ApiContext, Route, read, removed
from service.http.paging import NUMBERS, Matching
from service.operations.accounts import accounts as operations
from service.operations.accounts.authority import finder
from storage.accounts import accounts, grants
from storage.accounts.accounts import User
from storage.accounts.grants import Grant


def routes(api: ApiContext) -> Iterator[Route]:
    """Yield the routes of users and grants."""
    manager = AccountBearer(api.operator_account)
    show, show_grant = partial(dump, UserResponse), partial(dump, GrantResponse)
    yield Route(
        "/api/users",
        get=numbered(api, manager, accounts.list_users, show, {"email": Matching(is_email_address, "invalid_email")}),
        post=api.created(manager, UserForm(), _create_user, show),
    )
    yield Route(
        "/api/users/{user_id}",
        get=read(manager, _find_user, show),
        patch=api.changed(manager, UserChangeForm(), _change_user, show),
        delete=removed(manager, _remove_user),
    )
    find_grant = finder("grant", grants.find)
    yield Route(
        "/api/grants",
        get=numbered(api, manager, grants.list_page, show_grant, {"user_id": NUMBERS, "project_id": NUMBERS}),
        post=api.created(manager, GrantForm(), _create_grant, show_grant),
    )
    yield Route(
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
    user = accounts.find_user(body["user_id"], actor.account_id)
    if user is None or user.removed_at is not None:
        raise ValidationFailed(problem("/user_id", "unknown_user"))
    return operations.add_grant(user.email, body["project_id"], body["report_id"], _role(body["role"]), actor)


def _role(name: str | None) -> Role | None:
    return None if name is None else Role(name)
