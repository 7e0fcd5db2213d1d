"""`/api/account`: the caller's own account. `/api/accounts`: every account, for administrators."""

from collections.abc import Sequence
from typing import Any

import falcon

from runtime.clock import utc_now
from schemas.accounts.forms import AccountChangeForm, AccountForm, AccountNameForm
from schemas.api.administration import AccountResponse
from schemas.api.response_fields import dump
from schemas.base.principal import Ability
from schemas.settings.definitions import RouteFamily
from service.api.accounts.authority import AccountAuthority, ManagedList
from service.http.idempotency import ApiResponse
from service.http.paging import PageRequest, send_record
from service.operations import accounts as operations
from service.operations.authority import found
from storage.accounts import accounts
from storage.accounts.account_limits import STORED, AccountLimits
from storage.accounts.accounts import Account


class OwnAccountResource:
    """Reads and renames the account of the token."""

    path = "/api/account"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority, limits: AccountLimits) -> None:
        reading = authority.operation()
        self.operations = {"GET": reading, "HEAD": reading, "PATCH": authority.operation(form=AccountNameForm())}
        self._executor = authority.executor
        self._limits = limits

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return the account."""
        send_record(resp, _record(accounts.get_account(req.context.principal.account_id), self._limits))

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Rename the account, and return it."""
        self._executor.respond(req, resp, lambda: self._rename(req))

    def _rename(self, req: falcon.Request) -> ApiResponse:
        principal, name = req.context.principal, req.context.payload["name"]
        return ApiResponse(200, _record(operations.rename_account(principal.account_id, name, principal), self._limits))


class AccountsResource(ManagedList):
    """Creates accounts, and lists them."""

    path = "/api/accounts"
    reading = Ability.ADMIN
    filters = {}  # noqa: RUF012 - never changed

    def __init__(self, authority: AccountAuthority, limits: AccountLimits) -> None:
        super().__init__(authority)
        self.operations["POST"] = authority.operation(Ability.ADMIN, AccountForm())
        self._limits = limits

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create the account."""
        self._authority.executor.respond(req, resp, lambda: self._create(req))

    def found(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Account]:
        """Return a page of all accounts."""
        return accounts.list_page(page.fetch_limit, before)

    def records(self, found: list[Account]) -> list[dict[str, Any]]:
        """Return accounts with what they use."""
        return _records(found, self._limits)

    def _create(self, req: falcon.Request) -> ApiResponse:
        body = req.context.payload
        account = operations.add_account(body["name"], req.context.actor, may_use_webhooks=body["may_use_webhooks"])
        return self._created(_record(account, self._limits))


class AccountResource:
    """Reads and changes one account."""

    path = f"{AccountsResource.path}/{{account_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority, limits: AccountLimits) -> None:
        reading = authority.operation(Ability.ADMIN)
        changing = authority.operation(Ability.ADMIN, AccountChangeForm())
        self.operations = {"GET": reading, "HEAD": reading, "PATCH": changing}
        self._executor = authority.executor
        self._limits = limits

    def on_get(self, req: falcon.Request, resp: falcon.Response, account_id: str) -> None:
        """Return the account."""
        send_record(resp, _record(_account(req, account_id), self._limits))

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response, account_id: str) -> None:
        """Change the account, and return it."""
        self._executor.respond(req, resp, lambda: self._change(req, account_id))

    def _change(self, req: falcon.Request, account_id: str) -> ApiResponse:
        account, actor, changes = _account(req, account_id), req.context.actor, req.context.payload
        if "name" in changes:
            account = operations.rename_account(account.id, changes["name"], actor)
        if "may_use_webhooks" in changes:
            account = operations.set_webhooks(account.id, changes["may_use_webhooks"], actor)
        return ApiResponse(200, _record(account, self._limits))


def _account(req: falcon.Request, account_id: str) -> Account:
    return found(account_id, "account", lambda number, _: accounts.find_account(number), req.context.actor)


def _record(account: Account, limits: AccountLimits) -> dict[str, Any]:
    return _records([account], limits)[0]


def _records(found: Sequence[Account], limits: AccountLimits) -> list[dict[str, Any]]:
    usage = limits.usage([each.id for each in found], utc_now())
    return [
        {
            **dump(AccountResponse, each),
            "usage": {STORED[of.limited]: {"used": of.used, "limit": of.limit} for of in usage[each.id]},
        }
        for each in found
    ]
