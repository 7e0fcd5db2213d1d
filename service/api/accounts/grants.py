"""`/api/grants`: which projects and reports users may manage, and what they may do there."""

import falcon

from schemas.accounts.forms import GrantForm
from schemas.api.administration import GrantResponse
from schemas.api.response_fields import dump
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Role
from schemas.settings.definitions import RouteFamily
from service.api.accounts.authority import ACCOUNT, AccountAuthority, ManagedList, number
from service.http.idempotency import ApiResponse
from service.http.paging import NUMBERS, PageRequest, send_record
from service.operations import accounts as operations
from service.operations.authority import found
from storage.accounts import accounts, grants
from storage.accounts.grants import UserGrant


class GrantsResource(ManagedList):
    """Gives grants, and lists them."""

    path = "/api/grants"
    response = GrantResponse
    filters = {ACCOUNT: NUMBERS, "user_id": NUMBERS, "project_id": NUMBERS}  # noqa: RUF012 - never changed

    def __init__(self, authority: AccountAuthority) -> None:
        super().__init__(authority)
        self.operations["POST"] = authority.operation(form=GrantForm())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Give the grant."""
        self._authority.executor.respond(req, resp, lambda: self._create(req))

    def found(self, page: PageRequest, account_id: int | None, before: int | None) -> list[UserGrant]:
        """Return a page of grants."""
        user_id, project_id = number(page, "user_id"), number(page, "project_id")
        return grants.list_page(account_id, user_id, project_id, page.fetch_limit, before)

    def _create(self, req: falcon.Request) -> ApiResponse:
        body, actor = req.context.payload, req.context.actor
        user = accounts.find_user(body["user_id"], actor.account_id)
        if user is None or user.removed_at is not None:
            raise ValidationFailed(problem("/user_id", "unknown_user"))
        role = None if body["role"] is None else Role(body["role"])
        made = operations.add_grant(user.email, body["project_id"], body["report_id"], role, actor)
        return self._created(dump(GrantResponse, grants.find(made.id, None)))


class GrantResource:
    """Reads and withdraws one grant."""

    path = f"{GrantsResource.path}/{{grant_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority) -> None:
        managing = authority.operation()
        self.operations = {"GET": managing, "HEAD": managing, "DELETE": managing}

    def on_get(self, req: falcon.Request, resp: falcon.Response, grant_id: str) -> None:
        """Return the grant."""
        send_record(resp, dump(GrantResponse, _grant(req, grant_id)))

    on_head = on_get

    def on_delete(self, req: falcon.Request, resp: falcon.Response, grant_id: str) -> None:
        """Withdraw the grant."""
        operations.remove_grant(_grant(req, grant_id).id, req.context.actor)
        resp.status = falcon.HTTP_204


def _grant(req: falcon.Request, grant_id: str) -> UserGrant:
    return found(grant_id, "grant", grants.find, req.context.actor)
