"""Checks who may manage which account.

A token with `account:manage` manages its own account. A token with `admin` manages every account while its user belongs to
the operator's account.

Resources find the caller in `req.context.actor`, whose `account_id` is None if it is not limited to one account.
"""

from collections.abc import Collection, Container, Mapping
from typing import Any, ClassVar, Final

import falcon

from schemas.api.response_fields import ResponseSchema, dump
from schemas.base.errors import Forbidden, ValidationFailed
from schemas.base.fields import Form, problem
from schemas.base.principal import Ability, AdministratorPrincipal, Manager, TokenKind, TokenPrincipal
from service.api.resources import ApiContext, ApiResource, once_per_key
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.paging import NUMBERS, PageRequest, read_numbered_page, send_page, send_record
from service.http.request_pipeline import Operation
from service.operations.accounts.authority import OperatorAccount
from storage.accounts import accounts

#: The query parameter with which administrators limit a list to one account.
ACCOUNT: Final = "account_id"


class AccountBearer(Bearer):
    """Requires an API token with one ability, or with `admin` while its user belongs to the operator's account."""

    def __init__(self, operator_account: OperatorAccount, ability: Ability | None) -> None:
        # Routes without an ability are open to every API token. Their responders return only the projects of the token's
        # user.
        super().__init__(TokenKind.API, ability, allows_project_roles=ability is None)
        self.alternatives = (Ability.ADMIN,) if ability not in {None, Ability.ADMIN} else ()
        self._operator_account = operator_account

    def __call__(self, req: falcon.Request) -> TokenPrincipal:
        principal = super().__call__(req)
        is_admin = Ability.ADMIN in self._abilities(principal)
        req.context.actor = AdministratorPrincipal(principal) if is_admin else principal
        return principal

    def _abilities(self, principal: TokenPrincipal) -> Collection[str]:
        if Ability.ADMIN not in principal.abilities:
            return principal.abilities
        if self._operator_account.has_id(principal.account_id):
            return {*principal.abilities, *({self.ability} if self.ability else ())}
        if self.ability is Ability.ADMIN:
            raise Forbidden("The ability admin counts only for users of the operator's account.")
        return principal.abilities - {Ability.ADMIN}


class ManagedResource(ApiResource):
    """Records that API tokens with the ability `reading` may read, or all API tokens if it is None.

    A POST or a PATCH requires the same ability, or `account:manage` if it is None; `form` validates the body.
    """

    reading: ClassVar[Ability | None] = Ability.MANAGE_ACCOUNT
    response: ClassVar[type[ResponseSchema]]
    form: ClassVar[type[Form]]

    def __init__(self, api: ApiContext) -> None:
        reading = Operation(AccountBearer(api.operator_account, self.reading))
        changing = AccountBearer(api.operator_account, self.reading or Ability.MANAGE_ACCOUNT)
        checks = {"GET": reading}
        for method in ("POST", "PATCH"):
            if hasattr(self, f"on_{method.lower()}"):
                checks[method] = Operation(changing, self.form())
        if hasattr(self, "on_delete"):
            checks["DELETE"] = reading
        super().__init__(api, checks)

    def records(self, found: list[Any]) -> list[dict[str, Any]]:
        """Return the JSON objects of records."""
        return [dump(self.response, each) for each in found]

    def record(self, found: Any) -> dict[str, Any]:
        """Return the JSON object of a record."""
        return self.records([found])[0]


class ManagedList(ManagedResource):
    """Lists records that have numeric ids."""

    filters: ClassVar[Mapping[str, Container[str]]] = {ACCOUNT: NUMBERS}

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the records that the caller sees."""
        page = read_numbered_page(req, self.filters)
        actor: Manager = req.context.actor
        account_id = number(page, ACCOUNT)
        if account_id is not None and actor.account_id is not None:
            raise ValidationFailed(problem(f"/{ACCOUNT}", "admin_only"))
        before = None if page.before is None else int(page.before)
        send_page(resp, self._url, page, self.records(self.list_page(page, actor.account_id or account_id, before)))

    def list_page(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Any]:
        """Return up to `page.fetch_limit` records of one account, or of all accounts if `account_id` is None."""
        raise NotImplementedError


class ManagedCollection(ManagedList):
    """Lists records, and creates one with a POST."""

    @once_per_key
    def on_post(self, req: falcon.Request) -> ApiResponse:
        """Create the record, and return it."""
        return self.created(self.create(req))

    def create(self, req: falcon.Request) -> Any:
        """Store a record with the values of the body, and return it."""
        raise NotImplementedError

    def created(self, made: Any) -> ApiResponse:
        """Return the response to the creation of a record."""
        record = self.record(made)
        return ApiResponse(201, record, {"Location": f"{self._url}/{record['id']}"})


class ManagedRecord(ManagedResource):
    """Reads one record by its id."""

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Return the record."""
        [record_id] = ids.values()
        send_record(resp, self.record(self.find(record_id, req.context.actor)))

    def find(self, text: str, actor: Manager) -> Any:
        """Return the record with an id, if the caller may see it. Raises NotFound."""
        raise NotImplementedError


class ChangeableRecord(ManagedRecord):
    """Reads one record, and changes it with a PATCH."""

    @once_per_key
    def on_patch(self, req: falcon.Request, **ids: str) -> ApiResponse:
        """Change the record, and return it."""
        [record_id] = ids.values()
        found = self.find(record_id, req.context.actor)
        return ApiResponse(200, self.record(self.change(found, req.context.payload, req.context.actor)))

    def change(self, found: Any, changes: Mapping[str, Any], actor: Manager) -> Any:
        """Store the changes of a record, and return the changed record."""
        raise NotImplementedError


def number(page: PageRequest, name: str) -> int | None:
    """Return the value of a filter as a number; None if the filter is not given."""
    value = page.filters.get(name)
    return None if value is None else int(value)


def named_account(req: falcon.Request, account_id: int | None) -> int:
    """Return the account that a body names, or the caller's own. Raises ValidationFailed on `/account_id`."""
    if account_id is None:
        own: int = req.context.principal.account_id
        return own
    if req.context.actor.account_id is not None:
        raise ValidationFailed(problem(f"/{ACCOUNT}", "admin_only"))
    if accounts.find_account(account_id) is None:
        raise ValidationFailed(problem(f"/{ACCOUNT}", "unknown_account"))
    return account_id
