"""The errors of this package.

No error contains the token, a secret or a submitted value: messages come from RiskRelay, which does not repeat what it was
sent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from riskrelay_client.models import FieldProblem


class RiskRelayError(Exception):
    """The base class of all errors of this package."""


class Unreachable(RiskRelayError):
    """No complete response arrived; with `is_transient`, a later request may succeed."""

    def __init__(self, message: str, is_transient: bool = True) -> None:
        super().__init__(message, is_transient)
        self.is_transient = is_transient

    def __str__(self) -> str:
        return str(self.args[0])


class WaitTimeout(RiskRelayError, TimeoutError):
    """The record was not finished in time; `last` is its latest version."""

    def __init__(self, last: Any) -> None:
        super().__init__(last)
        self.last = last

    def __str__(self) -> str:
        return f"not finished in time; the last status was {self.last['status']}"


class ApiError(RiskRelayError):
    """An error response.

    `status` is the HTTP status; `code` the error code of RiskRelay, or None if something else responded, such as a proxy;
    `fields` the invalid fields, each with path, code and message; `details` other facts, such as `count`; `request_id`
    identifies the request in the logs of RiskRelay; `retry_after` is the number of seconds to wait, 0 if it is unknown.
    """

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        fields: Sequence[FieldProblem] = (),
        details: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        retry_after: float = 0.0,
    ) -> None:
        # All arguments, so that the error can be pickled.
        super().__init__(status, code, message, fields, details, request_id, retry_after)
        self.status = status
        self.code = code
        self.message = message
        self.fields = list(fields)
        self.details = dict(details or {})
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        fields = "".join(f"; {each.get('path')}: {each.get('message')} ({each.get('code')})" for each in self.fields)
        return f"{self.status} {self.code or 'without an error code'}: {self.message}{fields} [{self.request_id}]"


class Unauthorized(ApiError):
    """401: the token or the shared secret is missing, wrong, expired or revoked."""


class Forbidden(ApiError):
    """403: the token does not have the ability that the request needs, or its user may not do this."""


class NotFound(ApiError):
    """404: there is no such record in the account, or no such route in this installation."""


class Conflict(ApiError):
    """409: the state of the record does not allow the request; read it again."""


class IdempotencyConflict(Conflict):
    """409: the idempotency key was used for another request; choose a new key if this is a new request."""


class ValidationFailed(ApiError):
    """422: `fields` says what to correct."""


class RateLimited(ApiError):
    """429: too many requests, also after repeats; `retry_after` says how long to wait."""


class ServerError(ApiError):
    """5xx: RiskRelay failed or is unavailable."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: ValidationFailed,
    429: RateLimited,
}


def error_class(status: int, code: str | None) -> type[ApiError]:
    """Return the class of the error for a response."""
    if code == "IDEMPOTENCY_CONFLICT":
        return IdempotencyConflict
    return _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
