"""`/api/account`: the caller's own account. `/api/accounts`: every account, for administrators."""

from collections.abc import Mapping
from typing import Any

import falcon

from runtime.clock import utc_now
from schemas.accounts.forms import AccountChangeForm, AccountForm, AccountNameForm
from schemas.api.administration import AccountResponse
from schemas.api.response_fields import dump
from schemas.base.principal import Ability, Manager
from service.api.accounts.authority import ChangeableRecord, ManagedCollection, ManagedResource
from service.api.resources import once_per_key
from service.http.idempotency import ApiResponse
from service.http.paging import PageRequest, send_record
from service.operations.accounts import accounts as operations
from service.operations.accounts.authority import found
from storage.accounts import accounts
from storage.accounts.account_limits import STORED
from storage.accounts.accounts import Account


class _AccountRecords(ManagedResource):
    """Returns each account with how much it uses of each limit."""

    def records(self, found: list[Account]) -> list[dict[str, Any]]:
        """Return the JSON objects of accounts. One query per limit counts for all of them."""
        usage = self._api.limits.usage([each.id for each in found], utc_now())
        return [
            {
                **dump(AccountResponse, each),
                "usage": {STORED[of.limited]: {"used": of.used, "limit": of.limit} for of in usage[each.id]},
            }
            for each in found
        ]


class OwnAccountResource(_AccountRecords):
    """Reads and renames the account of the token."""

    path = "/api/account"
    form = AccountNameForm

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return the account."""
        send_record(resp, self.record(accounts.get_account(req.context.principal.account_id)))

    @once_per_key
    def on_patch(self, req: falcon.Request) -> ApiResponse:
        """Rename the account, and return it."""
        principal, name = req.context.principal, req.context.payload["name"]
        return ApiResponse(200, self.record(operations.rename_account(principal.account_id, name, principal)))


class AccountsResource(_AccountRecords, ManagedCollection):
    """Creates accounts, and lists them."""

    path = "/api/accounts"
    reading = Ability.ADMIN
    form = AccountForm
    filters = {}  # noqa: RUF012 - never changed

    def list_page(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Account]:
        """Return a page of all accounts."""
        return accounts.list_page(page.fetch_limit, before)

    def create(self, req: falcon.Request) -> Account:
        """Add the account."""
        body = req.context.payload
        return operations.add_account(body["name"], req.context.actor, may_use_webhooks=body["may_use_webhooks"])


class AccountResource(_AccountRecords, ChangeableRecord):
    """Reads and changes one account."""

    path = f"{AccountsResource.path}/{{account_id}}"
    reading = Ability.ADMIN
    form = AccountChangeForm

    def find(self, text: str, actor: Manager) -> Account:
        """Return the account."""
        return found(text, "account", lambda number, _: accounts.find_account(number), actor)

    def change(self, account: Account, changes: Mapping[str, Any], actor: Manager) -> Account:
        """Rename the account, and allow or forbid its webhook targets."""
        if "name" in changes:
            account = operations.rename_account(account.id, changes["name"], actor)
        if "may_use_webhooks" in changes:
            account = operations.set_webhooks(account.id, changes["may_use_webhooks"], actor)
        return account
