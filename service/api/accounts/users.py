"""`/api/users`: the users of the account, their roles, and whether their tokens are accepted."""

import falcon

from schemas.accounts.forms import UserChangeForm, UserForm
from schemas.api.administration import UserResponse
from schemas.api.response_fields import dump
from schemas.base.email_address import is_email_address
from schemas.base.errors import Conflict
from schemas.base.principal import Role
from schemas.settings.definitions import RouteFamily
from service.api.accounts.authority import ACCOUNT, AccountAuthority, ManagedList, named_account
from service.http.idempotency import ApiResponse
from service.http.paging import NUMBERS, Matching, PageRequest, send_record
from service.operations import accounts as operations
from service.operations.authority import found
from storage.accounts import accounts
from storage.accounts.accounts import User


class UsersResource(ManagedList):
    """Creates users, and lists them."""

    path = "/api/users"
    response = UserResponse
    filters = {ACCOUNT: NUMBERS, "email": Matching(is_email_address)}  # noqa: RUF012 - never changed

    def __init__(self, authority: AccountAuthority) -> None:
        super().__init__(authority)
        self.operations["POST"] = authority.operation(form=UserForm())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create the user."""
        self._authority.executor.respond(req, resp, lambda: self._create(req))

    def found(self, page: PageRequest, account_id: int | None, before: int | None) -> list[User]:
        """Return a page of users."""
        return accounts.list_users(account_id, page.filters.get("email"), page.fetch_limit, before)

    def _create(self, req: falcon.Request) -> ApiResponse:
        body = req.context.payload
        account_id = named_account(req, body["account_id"])
        user = operations.add_user(body["email"], account_id, _role(body["role"]), req.context.actor)
        return self._created(dump(UserResponse, user))


class UserResource:
    """Reads, changes and removes one user."""

    path = f"{UsersResource.path}/{{user_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority) -> None:
        managing = authority.operation()
        changing = authority.operation(form=UserChangeForm())
        self.operations = {"GET": managing, "HEAD": managing, "PATCH": changing, "DELETE": managing}
        self._executor = authority.executor

    def on_get(self, req: falcon.Request, resp: falcon.Response, user_id: str) -> None:
        """Return the user."""
        send_record(resp, dump(UserResponse, _user(req, user_id)))

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response, user_id: str) -> None:
        """Change the user, and return it."""
        self._executor.respond(req, resp, lambda: self._change(req, user_id))

    def on_delete(self, req: falcon.Request, resp: falcon.Response, user_id: str) -> None:
        """Remove the user for good; one that is removed already stays so."""
        user = _user(req, user_id)
        if user.removed_at is None:
            operations.remove_user(user.email, req.context.actor)
        resp.status = falcon.HTTP_204

    def _change(self, req: falcon.Request, user_id: str) -> ApiResponse:
        user, actor, changes = _user(req, user_id), req.context.actor, req.context.payload
        if user.removed_at is not None:
            raise Conflict("This user was removed.")
        if "role" in changes:
            user = operations.set_role(user.email, _role(changes["role"]), actor)
        if "state" in changes:
            switch = operations.enable_user if changes["state"] == "active" else operations.disable_user
            user = switch(user.email, actor)
        return ApiResponse(200, dump(UserResponse, user))


def _user(req: falcon.Request, user_id: str) -> User:
    return found(user_id, "user", accounts.find_user, req.context.actor)


def _role(name: str | None) -> Role | None:
    return None if name is None else Role(name)
