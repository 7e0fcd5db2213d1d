"""`/api/tokens`: the tokens of the account.

Only the first response to a creation contains the text of a token, which is never stored.
"""

from dataclasses import replace

import falcon

from runtime.clock import utc_now
from schemas.accounts.forms import TokenForm
from schemas.api.administration import TokenResponse
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Manager
from service.api.accounts.authority import ACCOUNT, ManagedCollection, ManagedRecord, number
from service.http.idempotency import ApiResponse
from service.http.paging import NUMBERS, PageRequest
from service.operations.accounts import tokens as operations
from service.operations.accounts.authority import found
from storage.accounts import accounts, tokens
from storage.accounts.tokens import Token


class TokensResource(ManagedCollection):
    """Creates tokens, and lists them."""

    path = "/api/tokens"
    response = TokenResponse
    form = TokenForm
    filters = {ACCOUNT: NUMBERS, "user_id": NUMBERS}  # noqa: RUF012 - never changed

    def list_page(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Token]:
        """Return a page of tokens."""
        return tokens.list_page(account_id, number(page, "user_id"), page.fetch_limit, before)

    def create(self, req: falcon.Request) -> tuple[Token, str]:
        """Create the token, and return it with its text. Raises ValidationFailed."""
        body, actor, now = req.context.payload, req.context.actor, utc_now()
        user = accounts.find_user(body["user_id"] or req.context.principal.user_id, actor.account_id)
        if user is None or user.removed_at is not None:
            raise ValidationFailed(problem("/user_id", "unknown_user"))
        expires = None if body["expires_at"] is None else body["expires_at"] - now
        if expires is not None and body["expires_at"] <= now:
            raise ValidationFailed(problem("/expires_at", "in_the_past"))
        return operations.create(user, body["kind"], body["abilities"], body["name"], expires, actor, now)

    def created(self, made: tuple[Token, str]) -> ApiResponse:
        """Return the response with the token's text; a replayed response does not contain it."""
        token, text = made
        response = super().created(token)
        return replace(response, body={**response.body, "token": None}, secrets={"token": text})


class TokenResource(ManagedRecord):
    """Reads and revokes one token."""

    path = f"{TokensResource.path}/{{token_id}}"
    response = TokenResponse

    def find(self, text: str, actor: Manager) -> Token:
        """Return the token, without its text."""
        return found(text, "token", tokens.find, actor)

    def on_delete(self, req: falcon.Request, resp: falcon.Response, token_id: str) -> None:
        """Revoke the token; does nothing if it is already revoked."""
        operations.revoke(self.find(token_id, req.context.actor).id, req.context.actor)
        resp.status = falcon.HTTP_204
