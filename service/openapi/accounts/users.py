"""Documents `/api/users` and `/api/grants`."""

from typing import Any, Final

from schemas.api.administration import GrantListResponse, GrantResponse, UserListResponse, UserResponse
from service.api.accounts.grants import GrantResource, GrantsResource
from service.api.accounts.users import UserResource, UsersResource
from service.openapi.operations import AT, PAGING, OperationDescription, Operations, SuccessResponse, listed

TAG: Final = "Users"

_USER: Final[dict[str, Any]] = {
    "id": 7,
    "email": "ada@shop.example",
    "account_id": 2,
    "role": "triager",
    "state": "active",
    "created_at": AT,
}
_GRANT: Final[dict[str, Any]] = {
    "id": 12,
    "user_id": 7,
    "user": "ada@shop.example",
    "project_id": 1,
    "report_id": None,
    "role": None,
    "created_at": AT,
}

OPERATIONS: Final[Operations] = {
    ("POST", UsersResource.path): OperationDescription(
        id="createUser",
        tag=TAG,
        summary="Create a user",
        description="No role above that of the caller. The address is unique in the installation.",
        responses=(
            SuccessResponse(201, "The user.", UserResponse, _USER, ("Location",), ("readUser", "changeUser", "removeUser")),
        ),
        error_codes=("CONFLICT",),
        examples={
            "Triager": {"email": "ada@shop.example", "role": "triager"},
            "Rights in projects only": {"email": "ada@shop.example", "role": None},
        },
    ),
    ("GET", UsersResource.path): OperationDescription(
        id="listUsers",
        tag=TAG,
        summary="List users",
        description="The newest first, with those that are disabled or removed.",
        responses=(listed("users", UserListResponse, _USER),),
        parameters=("Email", "OfAccount", *PAGING),
    ),
    ("GET", UserResource.path): OperationDescription(
        id="readUser",
        tag=TAG,
        summary="Read a user",
        description="A removed user has no address.",
        responses=(SuccessResponse(200, "The user.", UserResponse, _USER),),
    ),
    ("PATCH", UserResource.path): OperationDescription(
        id="changeUser",
        tag=TAG,
        summary="Change a user's role, disable or enable a user",
        description="Counts from the next request on. The last active owner of an account keeps the role and stays active: "
        "409.",
        responses=(SuccessResponse(200, "The user.", UserResponse, {**_USER, "role": "manager"}),),
        error_codes=("CONFLICT",),
        examples={"Change the role": {"role": "manager"}, "Disable": {"state": "disabled"}},
    ),
    ("DELETE", UserResource.path): OperationDescription(
        id="removeUser",
        tag=TAG,
        summary="Remove a user for good",
        description="Erases the address, revokes tokens, ends sessions and deletes grants. Uploads and the audit log keep "
        "the user's id. The last active owner of an account stays: 409.",
        responses=(SuccessResponse(204, "The user is removed."),),
        error_codes=("CONFLICT",),
    ),
    ("POST", GrantsResource.path): OperationDescription(
        id="createGrant",
        tag=TAG,
        summary="Let a user manage a project or a report",
        description="Without a `role`, the user may upload to it. With one, a user without a role in the account may also "
        "see the project and act in it.",
        responses=(SuccessResponse(201, "The grant.", GrantResponse, _GRANT, ("Location",), ("readGrant", "removeGrant")),),
        error_codes=("CONFLICT",),
        examples={
            "Uploads to a project": {"user_id": 7, "project_id": 1},
            "Triage of a project": {"user_id": 7, "project_id": 1, "role": "triager"},
            "Uploads to a report": {"user_id": 7, "report_id": 3},
        },
    ),
    ("GET", GrantsResource.path): OperationDescription(
        id="listGrants",
        tag=TAG,
        summary="List grants",
        description="The newest first.",
        responses=(listed("grants", GrantListResponse, _GRANT),),
        parameters=("OfUser", "OfProject", "OfAccount", *PAGING),
    ),
    ("GET", GrantResource.path): OperationDescription(
        id="readGrant",
        tag=TAG,
        summary="Read a grant",
        description="Exactly one of `project_id` and `report_id` is set.",
        responses=(SuccessResponse(200, "The grant.", GrantResponse, _GRANT),),
    ),
    ("DELETE", GrantResource.path): OperationDescription(
        id="removeGrant",
        tag=TAG,
        summary="Withdraw a grant",
        description="Counts from the next request on.",
        responses=(SuccessResponse(204, "It is withdrawn."),),
    ),
}
