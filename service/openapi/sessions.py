"""Documents `/api/console-sessions`."""

from typing import Any, Final

from schemas.api.accounts import ConsoleSessionListResponse, ConsoleSessionResponse
from service.api.sessions import ConsoleSessionRevocationResource, ConsoleSessionsResource
from service.openapi.operations import AT, PAGING, SESSION_ID, OperationDescription, Operations, SuccessResponse, listed

TAG: Final = "Console sessions"

SESSION: Final[dict[str, Any]] = {
    "id": SESSION_ID,
    "user": "ada@example.com",
    "method": "token",
    "token_id": 3,
    "token_name": "Ada's console",
    "created_at": AT,
    "seen_at": "2026-03-01T12:40:00.000Z",
    "ended_at": None,
    "ended_reason": None,
}
_REVOKED: Final = {**SESSION, "ended_at": "2026-03-01T12:41:00.000Z", "ended_reason": "revoked"}

OPERATIONS: Final[Operations] = {
    ("GET", ConsoleSessionsResource.path): OperationDescription(
        id="listConsoleSessions",
        tag=TAG,
        summary="List console sessions",
        description="The open console sessions of the token's account, newest first.",
        responses=(listed("sessions", ConsoleSessionListResponse, SESSION),),
        parameters=PAGING,
    ),
    ("POST", ConsoleSessionRevocationResource.path): OperationDescription(
        id="revokeConsoleSession",
        tag=TAG,
        summary="End a session",
        description="Its next request must sign in again. A session that has ended stays as it is. To keep a person out, "
        "the operator revokes the token.",
        responses=(SuccessResponse(200, "The session as it ended.", ConsoleSessionResponse, _REVOKED),),
    ),
}
