"""Documents `/api/account` and `/api/accounts`."""

from typing import Any, Final

from schemas.api.administration import AccountListResponse, AccountResponse
from service.api.accounts.accounts import AccountResource, AccountsResource, OwnAccountResource
from service.openapi.operations import AT, PAGING, OperationDescription, Operations, SuccessResponse, listed

TAG: Final = "Accounts"

_ACCOUNT: Final[dict[str, Any]] = {
    "id": 2,
    "name": "Example Ltd",
    "may_use_webhooks": True,
    "created_at": AT,
    "usage": {
        "findings": {"used": 312, "limit": 1_000_000},
        "waiting_exports": {"used": 40, "limit": 100_000},
        "targets": {"used": 2, "limit": 1_000},
        "uploads_24h": {"used": 7, "limit": 10_000},
    },
}

OPERATIONS: Final[Operations] = {
    ("GET", OwnAccountResource.path): OperationDescription(
        id="readOwnAccount",
        tag=TAG,
        summary="Read the account of the token",
        description="With what it stores, and its limits.",
        responses=(SuccessResponse(200, "The account.", AccountResponse, _ACCOUNT),),
    ),
    ("PATCH", OwnAccountResource.path): OperationDescription(
        id="renameOwnAccount",
        tag=TAG,
        summary="Rename the account of the token",
        description="The name is shown at the console.",
        responses=(SuccessResponse(200, "The account.", AccountResponse, _ACCOUNT),),
        examples={"Rename": {"name": "Example Ltd"}},
    ),
    ("POST", AccountsResource.path): OperationDescription(
        id="createAccount",
        tag=TAG,
        summary="Create an account",
        description="It has no users and no projects yet.",
        responses=(
            SuccessResponse(201, "The account.", AccountResponse, _ACCOUNT, ("Location",), ("readAccount", "changeAccount")),
        ),
        examples={"Create": {"name": "Example Ltd"}, "Without webhooks": {"name": "Trial", "may_use_webhooks": False}},
    ),
    ("GET", AccountsResource.path): OperationDescription(
        id="listAccounts",
        tag=TAG,
        summary="List accounts",
        description="All of the installation, the newest first.",
        responses=(listed("accounts", AccountListResponse, _ACCOUNT),),
        parameters=PAGING,
    ),
    ("GET", AccountResource.path): OperationDescription(
        id="readAccount",
        tag=TAG,
        summary="Read an account",
        description="With what it stores, and its limits.",
        responses=(SuccessResponse(200, "The account.", AccountResponse, _ACCOUNT),),
    ),
    ("PATCH", AccountResource.path): OperationDescription(
        id="changeAccount",
        tag=TAG,
        summary="Change an account",
        description="With `may_use_webhooks` false, its targets are blocked, and what waits for them is not sent. Allowed "
        "again, a target stays blocked until it is resumed.",
        responses=(SuccessResponse(200, "The account.", AccountResponse, {**_ACCOUNT, "may_use_webhooks": False}),),
        examples={"Rename": {"name": "Example Ltd"}, "Forbid webhooks": {"may_use_webhooks": False}},
    ),
}
