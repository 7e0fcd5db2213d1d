"""Checks who may manage which account, and lists the records of accounts.

A token with `account:manage` manages its own account. A token with `admin` manages every account while its user belongs to
the operator's account.

Responders find the caller in `req.context.actor`, whose `account_id` is None if it is not limited to one account.
"""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, Final

import falcon

from schemas.base.errors import Forbidden, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, AdministratorPrincipal, Manager, TokenKind, TokenPrincipal
from service.api.routes import ApiContext, Endpoint, Show
from service.http.auth import Bearer
from service.http.paging import NUMBERS, PageRequest, read_numbered_page, send_page
from service.http.request_pipeline import Operation
from service.operations.accounts.authority import OperatorAccount
from storage.accounts import accounts

#: The query parameter with which administrators limit a list to one account.
ACCOUNT: Final = "account_id"


class AccountBearer(Bearer):
    """Requires an API token with one ability, or with `admin` while its user belongs to the operator's account."""

    def __init__(self, operator_account: OperatorAccount, ability: Ability | None = Ability.MANAGE_ACCOUNT) -> None:
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


def numbered(
    api: ApiContext,
    bearer: AccountBearer,
    list_page: Callable[..., Sequence[Any]],
    show: Show,
    filters: Mapping[str, Container[str]] | None = None,
) -> Endpoint:
    """List records that have numeric ids.

    `list_page` gets the id of the account, or None for all accounts, the value of each filter or None, the number of
    records, and the id of the last record of the previous page.
    """
    named = filters or {}

    def respond(req: falcon.Request, resp: falcon.Response) -> None:
        page = read_numbered_page(req, {ACCOUNT: NUMBERS, **named})
        actor: Manager = req.context.actor
        account_id = _value(page, ACCOUNT, NUMBERS)
        if account_id is not None and actor.account_id is not None:
            raise ValidationFailed(problem(f"/{ACCOUNT}", "admin_only"))
        values = [_value(page, name, allowed) for name, allowed in named.items()]
        before = None if page.before is None else int(page.before)
        found = list_page(actor.account_id or account_id, *values, page.fetch_limit, before)
        send_page(resp, api.url(req), page, [show(each) for each in found])

    return Endpoint(Operation(bearer), respond)


def _value(page: PageRequest, name: str, allowed: Container[str]) -> Any:
    value = page.filters.get(name)
    return int(value) if value is not None and allowed is NUMBERS else value


def named_account(req: falcon.Request) -> int:
    """Return the account that the body names, or the caller's own. Raises ValidationFailed on `/account_id`."""
    account_id: int | None = req.context.payload["account_id"]
    if account_id is None:
        own: int = req.context.principal.account_id
        return own
    if req.context.actor.account_id is not None:
        raise ValidationFailed(problem(f"/{ACCOUNT}", "admin_only"))
    if accounts.find_account(account_id) is None:
        raise ValidationFailed(problem(f"/{ACCOUNT}", "unknown_account"))
    return account_id
