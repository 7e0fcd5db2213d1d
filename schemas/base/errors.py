"""Every error of the domain: `code` is the error code in the API, the docstring is the default message that clients read.

An error never carries a submitted value. `service.http.error_responses` maps codes to HTTP statuses.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One invalid field: a JSON Pointer of documented names, a code and a sentence."""

    path: str
    code: str
    message: str


class RiskRelayError(Exception):
    """Internal error: report the request id to the operator."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    problems: tuple[FieldProblem, ...] = ()
    #: Whole seconds after which the same request may be repeated; None if waiting changes nothing.
    retry_after_s: int | None = None
    #: Further members of `details`: numbers that the message names.
    details: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)

    @property
    def message(self) -> str:
        """The sentence that a client or an operator reads."""
        return str(self.args[0])


def error_body(error: RiskRelayError, request_id: str) -> dict[str, Any]:
    """Return the response body of an error."""
    fields = [asdict(each) for each in error.problems]
    details = {**error.details, **({"fields": fields} if fields else {})}
    return {"error": {"code": error.code, "message": error.message, "details": details, "request_id": request_id}}


class Unauthorized(RiskRelayError):
    """Authentication failed: the token or secret is missing or invalid."""

    code = "UNAUTHORIZED"


class SignatureInvalid(Unauthorized):
    """The signature does not match the raw request body."""

    code = "SIGNATURE_INVALID"


class Forbidden(RiskRelayError):
    """This caller is not allowed to do this."""

    code = "FORBIDDEN"


class WebhooksForbidden(Forbidden):
    """This account is not allowed to use webhook or tracker targets."""


class NotFound(RiskRelayError):
    """No such path or record."""

    code = "NOT_FOUND"


class MethodNotAllowed(RiskRelayError):
    """This path does not support this method."""

    code = "METHOD_NOT_ALLOWED"


class NotAcceptable(RiskRelayError):
    """Responses are JSON only; allow application/json in Accept."""

    code = "NOT_ACCEPTABLE"


class UnsupportedMediaType(RiskRelayError):
    """Request bodies must be JSON; set Content-Type: application/json."""

    code = "UNSUPPORTED_MEDIA_TYPE"


class PayloadTooLarge(RiskRelayError):
    """The request body is larger than the setting MAX_BODY_BYTES allows."""

    code = "PAYLOAD_TOO_LARGE"


class RequestTimeout(RiskRelayError):
    """The request did not arrive in time; send it again."""

    code = "REQUEST_TIMEOUT"


class ExportNotFound(NotFound):
    """There is no such ticket export."""


class TargetNotFound(NotFound):
    """There is no such ticket export target."""


class Conflict(RiskRelayError):
    """The state of the record does not allow this action."""

    code = "CONFLICT"


class WrongStatus(Conflict):
    """The status of the record does not allow this action."""


class TicketChanged(Conflict):
    """The ticket is not the one with the digest of the request."""


class IdempotencyConflict(RiskRelayError):
    """This Idempotency-Key was used with a different payload; use a new key for a new request."""

    code = "IDEMPOTENCY_CONFLICT"


class IdempotencyInProgress(RiskRelayError):
    """The first request with this Idempotency-Key is still running; retry in a second."""

    code = "IDEMPOTENCY_IN_PROGRESS"
    retry_after_s = 1


class RateLimited(RiskRelayError):
    """Too many requests; retry after the number of seconds in Retry-After."""

    code = "RATE_LIMITED"

    def __init__(self, retry_after_s: int, setting: str | None = None, limit: int | None = None) -> None:
        """Name the `setting` and its `limit` in the message, if both are known."""
        named = f"Too many requests: {setting} is {limit} a minute. Retry after the number of seconds in Retry-After."
        super().__init__(None if setting is None else named)
        self.retry_after_s = retry_after_s


class ValidationFailed(RiskRelayError):
    """Validation failed"""

    code = "VALIDATION_FAILED"

    def __init__(self, *problems: FieldProblem) -> None:
        super().__init__()
        self.problems = problems


class ServiceUnavailable(RiskRelayError):
    """Service unavailable"""

    code = "SERVICE_UNAVAILABLE"
    #: By then, an operator may have added the missing setting, or an overload may have ended.
    retry_after_s = 30


class NoEncryptionKey(RiskRelayError):
    """ENCRYPTION_KEYS is not set; restore the .env of this database, or run `bin/riskrelay init` for a new one."""


class WrongEncryptionKey(RiskRelayError):
    """No key in ENCRYPTION_KEYS decrypts a stored secret; restore the key that encrypted it."""
