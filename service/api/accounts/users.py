"""`/api/users` and `/api/grants`: the users of the account, their roles, and which projects and reports they may manage."""

from collections.abc import Mapping
from typing import Any

import falcon

from schemas.accounts.forms import GrantForm, UserChangeForm, UserForm
from schemas.api.administration import GrantResponse, UserResponse
from schemas.base.email_address import is_email_address
from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Manager, Role
from service.api.accounts.authority import ACCOUNT, ChangeableRecord, ManagedCollection, ManagedRecord, named_account, number
from service.http.paging import NUMBERS, Matching, PageRequest
from service.operations.accounts import accounts as operations
from service.operations.accounts.authority import found
from storage.accounts import accounts, grants
from storage.accounts.accounts import User
from storage.accounts.grants import Grant


class UsersResource(ManagedCollection):
    """Creates users, and lists them."""

    path = "/api/users"
    response = UserResponse
    form = UserForm
    filters = {ACCOUNT: NUMBERS, "email": Matching(is_email_address, "invalid_email")}  # noqa: RUF012 - never changed

    def list_page(self, page: PageRequest, account_id: int | None, before: int | None) -> list[User]:
        """Return a page of users."""
        return accounts.list_users(account_id, page.filters.get("email"), page.fetch_limit, before)

    def create(self, req: falcon.Request) -> User:
        """Add the user."""
        body = req.context.payload
        account_id = named_account(req, body["account_id"])
        return operations.add_user(body["email"], account_id, _role(body["role"]), req.context.actor)


class UserResource(ChangeableRecord):
    """Reads, changes and removes one user."""

    path = f"{UsersResource.path}/{{user_id}}"
    response = UserResponse
    form = UserChangeForm

    def find(self, text: str, actor: Manager) -> User:
        """Return the user."""
        return found(text, "user", accounts.find_user, actor)

    def change(self, user: User, changes: Mapping[str, Any], actor: Manager) -> User:
        """Change the role, disable or enable the user. Raises Conflict."""
        if user.removed_at is not None:
            raise Conflict("This user was removed.")
        if "role" in changes:
            user = operations.set_role(user.email, _role(changes["role"]), actor)
        if "state" in changes:
            switch = operations.enable_user if changes["state"] == "active" else operations.disable_user
            user = switch(user.email, actor)
        return user

    def on_delete(self, req: falcon.Request, resp: falcon.Response, user_id: str) -> None:
        """Remove the user permanently; does nothing if the user is already removed."""
        user = self.find(user_id, req.context.actor)
        if user.removed_at is None:
            operations.remove_user(user.email, req.context.actor)
        resp.status = falcon.HTTP_204


class GrantsResource(ManagedCollection):
    """Gives grants, and lists them."""

    path = "/api/grants"
    response = GrantResponse
    form = GrantForm
    filters = {ACCOUNT: NUMBERS, "user_id": NUMBERS, "project_id": NUMBERS}  # noqa: RUF012 - never changed

    def list_page(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Grant]:
        """Return a page of grants."""
        user_id, project_id = number(page, "user_id"), number(page, "project_id")
        return grants.list_page(account_id, user_id, project_id, page.fetch_limit, before)

    def create(self, req: falcon.Request) -> Grant:
        """Give the grant. Raises ValidationFailed for an unknown user."""
        body, actor = req.context.payload, req.context.actor
        user = accounts.find_user(body["user_id"], actor.account_id)
        if user is None or user.removed_at is not None:
            raise ValidationFailed(problem("/user_id", "unknown_user"))
        return operations.add_grant(user.email, body["project_id"], body["report_id"], _role(body["role"]), actor)


class GrantResource(ManagedRecord):
    """Reads and withdraws one grant."""

    path = f"{GrantsResource.path}/{{grant_id}}"
    response = GrantResponse

    def find(self, text: str, actor: Manager) -> Grant:
        """Return the grant."""
        return found(text, "grant", grants.find, actor)

    def on_delete(self, req: falcon.Request, resp: falcon.Response, grant_id: str) -> None:
        """Withdraw the grant."""
        operations.remove_grant(self.find(grant_id, req.context.actor).id, req.context.actor)
        resp.status = falcon.HTTP_204


def _role(name: str | None) -> Role | None:
    return None if name is None else Role(name)
