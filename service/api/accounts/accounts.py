"""`/api/account`: the caller's own account. `/api/accounts`: every account, for administrators."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.accounts.forms import AccountChangeForm, AccountForm, AccountNameForm
from schemas.api.administration import AccountResponse
from schemas.api.response_fields import dump
from schemas.base.principal import Ability, Manager
from service.api.accounts.authority import AccountBearer
from service.api.routes import ApiContext, ApiRoute, Endpoint, read
from service.http.idempotency import ApiResponse
from service.http.paging import read_numbered_page, send_page, send_record
from service.http.request_pipeline import Operation
from service.operations.accounts import accounts as operations
from service.operations.accounts.authority import finder
from storage.accounts import accounts
from storage.accounts.account_limits import STORED
from storage.accounts.accounts import Account


def routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of accounts; a record also says how much the account uses of each limit."""
    manager, administrator = AccountBearer(api.operator_account), AccountBearer(api.operator_account, Ability.ADMIN)

    def shown(found: Sequence[Account]) -> list[dict[str, Any]]:
        # One query per limit counts for all accounts.
        usage = api.limits.usage([each.id for each in found], utc_now())
        return [
            {
                **dump(AccountResponse, each),
                "usage": {STORED[of.limited]: {"used": of.used, "limit": of.limit} for of in usage[each.id]},
            }
            for each in found
        ]

    def show(account: Account) -> dict[str, Any]:
        return shown([account])[0]

    def read_own(req: falcon.Request, resp: falcon.Response) -> None:
        send_record(resp, show(accounts.get_account(req.context.principal.account_id)))

    def rename_own(req: falcon.Request) -> ApiResponse:
        principal = req.context.principal
        return ApiResponse(
            200, show(operations.rename_account(principal.account_id, req.context.payload["name"], principal))
        )

    def list_page(req: falcon.Request, resp: falcon.Response) -> None:
        page = read_numbered_page(req)
        before = None if page.before is None else int(page.before)
        send_page(resp, api.url(req), page, shown(accounts.list_page(page.fetch_limit, before)))

    yield ApiRoute(
        "/api/account",
        get=Endpoint(Operation(manager), read_own),
        patch=api.once_per_key(Operation(manager, AccountNameForm()), rename_own),
    )
    yield ApiRoute(
        "/api/accounts",
        get=Endpoint(Operation(administrator), list_page),
        post=api.created(administrator, AccountForm(), _create, show),
    )
    yield ApiRoute(
        "/api/accounts/{account_id}",
        get=read(administrator, _find, show),
        patch=api.changed(administrator, AccountChangeForm(), _change, show),
    )


def _create(req: falcon.Request) -> Account:
    body = req.context.payload
    return operations.add_account(body["name"], req.context.actor, may_use_webhooks=body["may_use_webhooks"])


_find: Final = finder("account", lambda account_id, _: accounts.find_account(account_id))


def _change(account_id: str, changes: Mapping[str, Any], actor: Manager) -> Account:
    """Rename the account, and allow or forbid its webhook targets."""
    account = _find(account_id, actor)
    if "name" in changes:
        account = operations.rename_account(account.id, changes["name"], actor)
    if "may_use_webhooks" in changes:
        account = operations.set_webhooks(account.id, changes["may_use_webhooks"], actor)
    return account
