"""Every error, of every route and the framework's own, in one body.

A code has one HTTP status. `application/problem+json` (RFC 9457) is served where `Accept` asks for it. No stack trace, no
submitted value, no header of the request ever stands in an answer.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import falcon

from schemas.base import errors
from storage.db.engine import OUTAGES

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

PROBLEM_JSON: Final = "application/problem+json"

#: What the framework itself raises, in our words.
_FRAMEWORK: Final[Mapping[int, type[errors.RiskRelayError]]] = {
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    406: errors.NotAcceptable,
    413: errors.PayloadTooLarge,
    415: errors.UnsupportedMediaType,
    422: errors.ValidationFailed,
}

#: What broke behind an answer that was written already leaves its headers there: where a record is read, say.
_OF_WHAT_WAS_DONE: Final = ("Location", "ETag", "Link", "Retry-After", "Idempotency-Replayed")

_log: Final = logging.getLogger(__name__)


#: Shows an error to a person, where it is a page that was asked for; tells whether it was.
ShowError = Callable[[falcon.Request, falcon.Response, errors.RiskRelayError], bool]


def no_page(_req: falcon.Request, _resp: falcon.Response, _error: errors.RiskRelayError) -> bool:
    """Tell that nothing is shown to persons here."""
    return False


#: Takes note of an error and the status it is answered with; never fails.
RecordRejection = Callable[[falcon.Request, errors.RiskRelayError, int], None]


def no_note(_req: falcon.Request, _error: errors.RiskRelayError, _status: int) -> None:
    """Take note of nothing."""


def install(app: "falcon.App[Any, Any]", show_error: ShowError = no_page, note: RecordRejection = no_note) -> None:
    """Answer every error of `app` here, those of pages as pages, and let `note` know of each."""
    told = _ErrorHandlers(show_error, note)
    app.add_error_handler(Exception, told.broken)
    app.add_error_handler(falcon.HTTPError, told.framework_error)
    app.add_error_handler(errors.RiskRelayError, told.domain_error)
    for outage in OUTAGES:
        app.add_error_handler(outage, told.outage)


class _ErrorHandlers:
    """Falcon's error handlers."""

    def __init__(self, show_error: ShowError, note: RecordRejection) -> None:
        self._show_error = show_error
        self._note = note

    def domain_error(self, req: falcon.Request, resp: falcon.Response, error: errors.RiskRelayError, params: object) -> None:
        """Answer what our own code refuses."""
        if error.code == errors.RiskRelayError.code:
            # A promise that the operator broke, such as a wrong encryption key: the log says which, the client does not.
            self.broken(req, resp, error, params)
            return
        self._answer(req, resp, error)

    def framework_error(self, req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, _params: object) -> None:
        """Answer what the framework refuses."""
        kind = _FRAMEWORK.get(error.status_code)
        if kind is None:
            # 400s of the framework: a path or query that does not decode, a header that does not parse.
            kind = errors.ValidationFailed if error.status_code < 500 else errors.RiskRelayError
        if error.headers:
            resp.set_headers(error.headers)
        self._answer(req, resp, kind())

    def outage(self, req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
        """Answer while the database is away."""
        _log.error("database away", extra={"error": type(error).__name__, "request_id": req.context.request_id})
        self._answer(req, resp, errors.ServiceUnavailable())

    def broken(self, req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
        """Answer what nobody foresaw."""
        _log.error("a request broke", exc_info=error, extra={"request_id": req.context.request_id})
        self._answer(req, resp, errors.RiskRelayError())

    def _answer(self, req: falcon.Request, resp: falcon.Response, error: errors.RiskRelayError) -> None:
        resp.status = STATUS[error.code]
        self._note(req, error, STATUS[error.code])
        for name in _OF_WHAT_WAS_DONE:
            resp.delete_header(name)
        if error.retry_after_s is not None:
            resp.set_header("Retry-After", str(error.retry_after_s))
        if not self._show_error(req, resp, error):
            _answer_data(req, resp, error)


def _answer_data(req: falcon.Request, resp: falcon.Response, error: errors.RiskRelayError) -> None:
    if error.code == "UNAUTHORIZED" and req.context.get("challenge"):
        resp.set_header("WWW-Authenticate", req.context.challenge)
    as_problem = _wants_problem_json(req)
    body = errors.error_body(error, req.context.request_id)
    resp.content_type = PROBLEM_JSON if as_problem else falcon.MEDIA_JSON
    resp.data = json.dumps(problem_body(body["error"]) if as_problem else body, ensure_ascii=False).encode()


def _wants_problem_json(req: falcon.Request) -> bool:
    return req.client_prefers((falcon.MEDIA_JSON, PROBLEM_JSON)) == PROBLEM_JSON


def problem_body(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error as RFC 9457 has it; `told` is the `error` of our own body."""
    return {
        "type": "about:blank",
        "title": told["message"],
        "status": STATUS[told["code"]],
        "code": told["code"],
        "errors": told["details"].get("fields", []),
        "request_id": told["request_id"],
    }
