"""Documents `/api/tokens`."""

from typing import Any, Final

from schemas.api.administration import NewTokenResponse, TokenListResponse, TokenResponse
from service.api.accounts.tokens import TokenResource, TokensResource
from service.openapi.operations import AT, PAGING, OperationDescription, Operations, SuccessResponse, listed

TAG: Final = "Tokens"

_TOKEN: Final[dict[str, Any]] = {
    "id": 31,
    "kind": "api",
    "name": "nightly export",
    "user_id": 7,
    "user": "ada@shop.example",
    "abilities": ["ticket-exports:read"],
    "created_at": AT,
    "expires_at": None,
    "revoked_at": None,
}

OPERATIONS: Final[Operations] = {
    ("POST", TokensResource.path): OperationDescription(
        id="createToken",
        tag=TAG,
        summary="Create a token",
        description="For the caller or another user of the account whose role is not above the caller's. An API token gets "
        "no ability that the token of this request lacks. `token` is in this response only: it is not stored, and the "
        "response to a repeated request has `null`. A token that was lost is revoked and created again.",
        responses=(
            SuccessResponse(
                201,
                "The token.",
                NewTokenResponse,
                {**_TOKEN, "token": "rrt_…"},
                ("Location",),
                ("readToken", "revokeToken"),
            ),
        ),
        error_codes=("CONFLICT",),
        examples={
            "For a client": {"kind": "api", "abilities": ["ticket-exports:read"], "name": "nightly export"},
            "For a plugin": {"user_id": 7, "kind": "platform", "abilities": ["cms-plugin:diagnostics-upload"]},
        },
    ),
    ("GET", TokensResource.path): OperationDescription(
        id="listTokens",
        tag=TAG,
        summary="List tokens",
        description="Without their texts, the newest first, with those that are revoked or expired.",
        responses=(listed("tokens", TokenListResponse, _TOKEN),),
        parameters=("OfUser", "OfAccount", *PAGING),
    ),
    ("GET", TokenResource.path): OperationDescription(
        id="readToken",
        tag=TAG,
        summary="Read a token",
        description="Without its text.",
        responses=(SuccessResponse(200, "The token.", TokenResponse, _TOKEN),),
    ),
    ("DELETE", TokenResource.path): OperationDescription(
        id="revokeToken",
        tag=TAG,
        summary="Revoke a token",
        description="The next request with it gets 401.",
        responses=(SuccessResponse(204, "It is revoked."),),
    ),
}
