"""Sends every error, of every route and of the framework, in the same format.

Each code has one HTTP status. `application/problem+json` (RFC 9457) is served if `Accept` prefers it. A response never
contains a stack trace, a submitted value or a request header.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import falcon

from schemas.base import errors
from storage.db.disk_space import is_full_error
from storage.db.engine import OUTAGES, DatabaseFull

STATUS: Final[Mapping[str, int]] = {
    "UNAUTHORIZED": 401,
    "SIGNATURE_INVALID": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "NOT_ACCEPTABLE": 406,
    "REQUEST_TIMEOUT": 408,
    "CONFLICT": 409,
    "IDEMPOTENCY_CONFLICT": 409,
    "IDEMPOTENCY_IN_PROGRESS": 409,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "VALIDATION_FAILED": 422,
    "RATE_LIMITED": 429,
    "INTERNAL_ERROR": 500,
    "SERVICE_UNAVAILABLE": 503,
}

#: Seconds in Retry-After. A restart of the database takes seconds, but a person has to free a full disk.
_OUTAGE_RETRY_S: Final = 5
_FULL_DISK_RETRY_S: Final = 60

PROBLEM_JSON: Final = "application/problem+json"

#: Our errors for the framework's statuses.
_FRAMEWORK: Final[Mapping[int, type[errors.RiskRelayError]]] = {
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    406: errors.NotAcceptable,
    413: errors.PayloadTooLarge,
    415: errors.UnsupportedMediaType,
    422: errors.ValidationFailed,
}

#: Headers of a success response; a request may fail after they were set, so an error removes them.
_SUCCESS_HEADERS: Final = ("Location", "ETag", "Link", "Retry-After", "Idempotency-Replayed")

_log: Final = logging.getLogger(__name__)


#: Shows an error as a page if the client requested a page; returns whether the client did.
ShowError = Callable[[falcon.Request, falcon.Response, errors.RiskRelayError], bool]

#: Records an error with its HTTP status; never fails.
RecordRejection = Callable[[falcon.Request, errors.RiskRelayError, int], None]


def install(app: "falcon.App[Any, Any]", show_error: ShowError | None = None, note: RecordRejection | None = None) -> None:
    """Handle every error of `app`: `show_error` shows errors of pages as pages, and `note` records each error."""
    handlers = _ErrorHandlers(show_error, note)
    app.add_error_handler(Exception, handlers.broken)
    app.add_error_handler(falcon.HTTPError, handlers.framework_error)
    app.add_error_handler(errors.RiskRelayError, handlers.domain_error)
    for outage in OUTAGES:
        app.add_error_handler(outage, handlers.outage)


class _ErrorHandlers:
    """Falcon's error handlers."""

    def __init__(self, show_error: ShowError | None, note: RecordRejection | None) -> None:
        self._show_error = show_error
        self._record_rejection = note

    def domain_error(self, req: falcon.Request, resp: falcon.Response, error: errors.RiskRelayError, params: object) -> None:
        """Handle an error that our own code raised."""
        if error.code == errors.RiskRelayError.code:
            # A mistake of the operator, such as a wrong encryption key: the log contains the cause, the response does not.
            self.broken(req, resp, error, params)
            return
        self._send_error(req, resp, error)

    def framework_error(self, req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, _params: object) -> None:
        """Handle an error of the framework."""
        kind = _FRAMEWORK.get(error.status_code)
        if kind is None:
            # A 400 of the framework: a path or query that cannot be decoded, or a header that cannot be parsed.
            kind = errors.ValidationFailed if error.status_code < 500 else errors.RiskRelayError
        if error.headers:
            resp.set_headers(error.headers)
        self._send_error(req, resp, kind())

    def outage(self, req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
        """Handle an outage of the database."""
        is_full = isinstance(error, DatabaseFull) or is_full_error(error)
        message = "the disk is full, nothing can be stored; free space" if is_full else "database unavailable"
        _log.error(message, extra={"error": type(error).__name__, "request_id": req.context.request_id})
        unavailable = errors.ServiceUnavailable()
        unavailable.retry_after_s = _FULL_DISK_RETRY_S if is_full else _OUTAGE_RETRY_S
        self._send_error(req, resp, unavailable)

    def broken(self, req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
        """Handle an unexpected error."""
        _log.error("unhandled error", exc_info=error, extra={"request_id": req.context.request_id})
        self._send_error(req, resp, errors.RiskRelayError())

    def _send_error(self, req: falcon.Request, resp: falcon.Response, error: errors.RiskRelayError) -> None:
        resp.status = STATUS[error.code]
        if self._record_rejection is not None:
            self._record_rejection(req, error, STATUS[error.code])
        for name in _SUCCESS_HEADERS:
            resp.delete_header(name)
        if error.retry_after_s is not None:
            resp.set_header("Retry-After", str(error.retry_after_s))
        if self._show_error is None or not self._show_error(req, resp, error):
            _send_error_json(req, resp, error)


def _send_error_json(req: falcon.Request, resp: falcon.Response, error: errors.RiskRelayError) -> None:
    if error.code == "UNAUTHORIZED" and req.context.get("challenge"):
        resp.set_header("WWW-Authenticate", req.context.challenge)
    as_problem = req.client_prefers((falcon.MEDIA_JSON, PROBLEM_JSON)) == PROBLEM_JSON
    body = errors.error_body(error, req.context.request_id)
    resp.content_type = PROBLEM_JSON if as_problem else falcon.MEDIA_JSON
    resp.data = json.dumps(problem_body(body["error"]) if as_problem else body, ensure_ascii=False).encode()


def problem_body(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return RFC 9457 problem details; `error` is the `error` object of our own body."""
    return {
        "type": "about:blank",
        "title": error["message"],
        "status": STATUS[error["code"]],
        "code": error["code"],
        "errors": error["details"].get("fields", []),
        **{name: value for name, value in error["details"].items() if name != "fields"},
        "request_id": error["request_id"],
    }
