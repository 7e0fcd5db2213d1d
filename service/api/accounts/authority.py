"""Who manages what: tokens with `account:manage` their own account, tokens with `admin` of the operator's account every one.

Resources find the caller in `req.context.actor`, whose `account_id` is None if it is not limited to one account.
"""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import falcon

from schemas.api.response_fields import ResponseSchema, dump
from schemas.base.errors import Forbidden, ValidationFailed
from schemas.base.fields import Form, problem
from schemas.base.principal import Ability, AdministratorPrincipal, Manager, TokenKind, TokenPrincipal
from schemas.settings.definitions import RouteFamily, Settings
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import NUMBERS, PageRequest, read_numbered_page, send_page
from service.http.request_pipeline import Operation
from service.operations.authority import OperatorAccount
from storage.accounts import accounts

#: The query parameter of lists for administrators.
ACCOUNT: Final = "account_id"


class AccountBearer(Bearer):
    """Requires an API token with one ability, or with `admin` while its user belongs to the operator's account."""

    def __init__(self, operator_account: OperatorAccount, ability: Ability | None = None) -> None:
        # What every API token may read has a responder that limits it to the projects of its user.
        super().__init__(TokenKind.API, ability, of_projects=ability is None)
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


@dataclass(frozen=True, slots=True)
class AccountAuthority:
    """What resources that manage accounts share."""

    executor: IdempotentExecutor
    operator_account: OperatorAccount
    public_base_url: str

    @classmethod
    def of(cls, settings: Settings, executor: IdempotentExecutor) -> "AccountAuthority":
        """Return that of an installation."""
        return cls(executor, OperatorAccount(settings), settings.public_base_url)

    def operation(self, ability: Ability | None = Ability.MANAGE_ACCOUNT, form: Form | None = None) -> Operation:
        """Return the checks before a method: a caller who has the ability or `admin`, and the body."""
        return Operation(AccountBearer(self.operator_account, ability), form)


class ManagedList:
    """A list of records with numeric ids; the ability of its readers is `reading`."""

    path: ClassVar[str]
    family: ClassVar[RouteFamily] = RouteFamily.EXPORTS
    reading: ClassVar[Ability | None] = Ability.MANAGE_ACCOUNT
    response: ClassVar[type[ResponseSchema]]
    filters: ClassVar[Mapping[str, Container[str]]] = {ACCOUNT: NUMBERS}

    def __init__(self, authority: AccountAuthority) -> None:
        self._authority = authority
        self._url = authority.public_base_url + self.path
        reading = authority.operation(self.reading)
        self.operations = {"GET": reading, "HEAD": reading}

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the records that the caller sees."""
        page = read_numbered_page(req, self.filters)
        actor: Manager = req.context.actor
        account_id = number(page, ACCOUNT)
        if account_id is not None and actor.account_id is not None:
            raise ValidationFailed(problem(f"/{ACCOUNT}", "admin_only"))
        before = None if page.before is None else int(page.before)
        send_page(resp, self._url, page, self.records(self.found(page, actor.account_id or account_id, before)))

    on_head = on_get

    def found(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Any]:
        """Return up to `page.fetch_limit` records of one account, or of all."""
        raise NotImplementedError

    def records(self, found: list[Any]) -> list[dict[str, Any]]:
        """Return the JSON objects of records."""
        return [dump(self.response, each) for each in found]

    def _created(self, record: Mapping[str, Any], **more: Any) -> ApiResponse:
        return ApiResponse(201, record, {"Location": f"{self._url}/{record['id']}"}, **more)


def number(page: PageRequest, name: str) -> int | None:
    """Return a filter that is an id."""
    value = page.filters.get(name)
    return None if value is None else int(value)


def named_account(req: falcon.Request, account_id: int | None) -> int:
    """Return the account that a body names, or the caller's own. Raises ValidationFailed on `/account_id`."""
    if account_id is None:
        own: int = req.context.principal.account_id
        return own
    if req.context.actor.account_id is not None:
        raise ValidationFailed(problem(f"/{ACCOUNT}", "admin_only"))
    if not accounts.exists(account_id):
        raise ValidationFailed(problem(f"/{ACCOUNT}", "unknown_account"))
    return account_id
