"""Every error of the domain: its code is the API's, its docstring the message a client reads.

An error never carries what was submitted. HTTP statuses are given to codes in `service.http.error_responses`.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One refused member: a JSON Pointer made of our own names, a code and a sentence."""

    path: str
    code: str
    message: str


class RiskRelayError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    problems: tuple[FieldProblem, ...] = ()
    #: Whole seconds after which the same request may be made again; None where waiting alone changes nothing.
    retry_after_s: int | None = None

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)

    @property
    def message(self) -> str:
        """The sentence a client or an operator reads."""
        return str(self.args[0])


def error_body(error: RiskRelayError, request_id: str) -> dict[str, Any]:
    """Return the one body that every error has."""
    fields = [asdict(each) for each in error.problems]
    details = {"fields": fields} if fields else {}
    return {
        "error": {"code": error.code, "message": error.message, "details": details, "request_id": request_id},
    }


class Unauthorized(RiskRelayError):
    """Authentication is missing or wrong."""

    code = "UNAUTHORIZED"


class SignatureInvalid(Unauthorized):
    """The signature does not match the raw body."""

    code = "SIGNATURE_INVALID"


class Forbidden(RiskRelayError):
    """This caller may not do this."""

    code = "FORBIDDEN"


class WebhooksForbidden(Forbidden):
    """This account may not use generic_webhook targets."""


class NotFound(RiskRelayError):
    """There is nothing here."""

    code = "NOT_FOUND"


class MethodNotAllowed(RiskRelayError):
    """This path does not take this method."""

    code = "METHOD_NOT_ALLOWED"


class NotAcceptable(RiskRelayError):
    """Answers are JSON only; allow application/json in Accept."""

    code = "NOT_ACCEPTABLE"


class UnsupportedMediaType(RiskRelayError):
    """Bodies are JSON; set Content-Type: application/json."""

    code = "UNSUPPORTED_MEDIA_TYPE"


class PayloadTooLarge(RiskRelayError):
    """The body is larger than this installation takes."""

    code = "PAYLOAD_TOO_LARGE"


class RequestTimeout(RiskRelayError):
    """The request did not come in time; send it again."""

    code = "REQUEST_TIMEOUT"


class ExportNotFound(NotFound):
    """There is no such ticket export."""


class TargetNotFound(NotFound):
    """There is no such ticket export target."""


class Conflict(RiskRelayError):
    """The state of the record does not allow this."""

    code = "CONFLICT"


class IdempotencyConflict(RiskRelayError):
    """This Idempotency-Key was used with another payload; use a new key for a new request."""

    code = "IDEMPOTENCY_CONFLICT"


class IdempotencyInProgress(RiskRelayError):
    """The first request with this Idempotency-Key is still running; ask again in a second."""

    code = "IDEMPOTENCY_IN_PROGRESS"
    retry_after_s = 1


class RateLimited(RiskRelayError):
    """Too many requests; wait for Retry-After."""

    code = "RATE_LIMITED"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__()
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


class NoEncryptionKey(RiskRelayError):
    """ENCRYPTION_KEYS is not set; `bin/riskrelay init` writes one, or set base64 of 32 random bytes."""


class WrongEncryptionKey(RiskRelayError):
    """A stored secret does not open with any of ENCRYPTION_KEYS; put back the key that wrote it."""
