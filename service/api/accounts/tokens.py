"""`/api/tokens`: the tokens of the account.

Only the first response to a creation contains the text of a token, which is never stored.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import falcon

from runtime.clock import utc_now
from schemas.accounts.forms import TokenForm
from schemas.api.administration import TokenResponse
from schemas.api.response_fields import dump
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from service.api.accounts.authority import AccountBearer, numbered
from service.api.routes import ApiContext, Route, read, removed
from service.http.idempotency import ApiResponse
from service.http.paging import NUMBERS
from service.http.request_pipeline import Operation
from service.operations.accounts import tokens as operations
from service.operations.accounts.authority import finder
from storage.accounts import accounts, tokens


def routes(api: ApiContext) -> Iterator[Route]:
    """Yield the routes of tokens."""
    manager, show = AccountBearer(api.operator_account), partial(dump, TokenResponse)

    find = finder("token", tokens.find)

    def create(req: falcon.Request) -> ApiResponse:
        """Create the token; a replayed response does not contain its text. Raises ValidationFailed."""
        body, actor, now = req.context.payload, req.context.actor, utc_now()
        user = accounts.find_user(body["user_id"] or req.context.principal.user_id, actor.account_id)
        if user is None or user.removed_at is not None:
            raise ValidationFailed(problem("/user_id", "unknown_user"))
        expires = None if body["expires_at"] is None else body["expires_at"] - now
        if expires is not None and body["expires_at"] <= now:
            raise ValidationFailed(problem("/expires_at", "in_the_past"))
        token, text = operations.create(user, body["kind"], body["abilities"], body["name"], expires, actor, now)
        return replace(api.created_response(req, {**show(token), "token": None}), secrets={"token": text})

    yield Route(
        "/api/tokens",
        get=numbered(api, manager, tokens.list_page, show, {"user_id": NUMBERS}),
        post=api.once_per_key(Operation(manager, TokenForm()), create),
    )
    yield Route(
        "/api/tokens/{token_id}",
        get=read(manager, find, show),
        delete=removed(manager, lambda token_id, actor: operations.revoke(find(token_id, actor).id, actor)),
    )
