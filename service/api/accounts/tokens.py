"""`/api/tokens`: the tokens of the account; the text of one is in the first response to its creation, and never stored."""

import falcon

from runtime.clock import utc_now
from schemas.accounts.forms import TokenForm
from schemas.api.administration import TokenResponse
from schemas.api.response_fields import dump
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.settings.definitions import RouteFamily
from service.api.accounts.authority import ACCOUNT, AccountAuthority, ManagedList, number
from service.http.idempotency import ApiResponse
from service.http.paging import NUMBERS, PageRequest, send_record
from service.operations import tokens as operations
from service.operations.authority import found
from storage.accounts import accounts, tokens
from storage.accounts.tokens import Token


class TokensResource(ManagedList):
    """Creates tokens, and lists them."""

    path = "/api/tokens"
    response = TokenResponse
    filters = {ACCOUNT: NUMBERS, "user_id": NUMBERS}  # noqa: RUF012 - never changed

    def __init__(self, authority: AccountAuthority) -> None:
        super().__init__(authority)
        self.operations["POST"] = authority.operation(form=TokenForm())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create the token."""
        self._authority.executor.respond(req, resp, lambda: self._create(req))

    def found(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Token]:
        """Return a page of tokens."""
        return tokens.list_page(account_id, number(page, "user_id"), page.fetch_limit, before)

    def _create(self, req: falcon.Request) -> ApiResponse:
        body, actor, now = req.context.payload, req.context.actor, utc_now()
        user = accounts.find_user(body["user_id"] or req.context.principal.user_id, actor.account_id)
        if user is None or user.removed_at is not None:
            raise ValidationFailed(problem("/user_id", "unknown_user"))
        expires = None if body["expires_at"] is None else body["expires_at"] - now
        if expires is not None and body["expires_at"] <= now:
            raise ValidationFailed(problem("/expires_at", "in_the_past"))
        token, text = operations.create(user, body["kind"], body["abilities"], body["name"], expires, actor)
        record = {**dump(TokenResponse, token), "token": None}
        return self._created(record, secrets={"token": text})


class TokenResource:
    """Reads and revokes one token."""

    path = f"{TokensResource.path}/{{token_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority) -> None:
        managing = authority.operation()
        self.operations = {"GET": managing, "HEAD": managing, "DELETE": managing}

    def on_get(self, req: falcon.Request, resp: falcon.Response, token_id: str) -> None:
        """Return the token, without its text."""
        send_record(resp, dump(TokenResponse, _token(req, token_id)))

    on_head = on_get

    def on_delete(self, req: falcon.Request, resp: falcon.Response, token_id: str) -> None:
        """Revoke the token; one that is revoked already stays so."""
        operations.revoke(_token(req, token_id).id, req.context.actor)
        resp.status = falcon.HTTP_204


def _token(req: falcon.Request, token_id: str) -> Token:
    return found(token_id, "token", tokens.find, req.context.actor)
