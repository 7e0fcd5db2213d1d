"""Every error, of every route and the framework's own, in one body.

A code has one HTTP status. `application/problem+json` (RFC 9457) is served where `Accept` asks for it. No stack trace, no
submitted value, no header of the request ever stands in an answer.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

import falcon

from schemas import errors
from storage.database import OUTAGES

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


def install(app: "falcon.App[Any, Any]") -> None:
    """Answer every error of `app` here."""
    app.add_error_handler(Exception, _broken)
    app.add_error_handler(falcon.HTTPError, _framework_error)
    app.add_error_handler(errors.RiskRelayError, _domain_error)
    for outage in OUTAGES:
        app.add_error_handler(outage, _outage)


def _domain_error(req: falcon.Request, resp: falcon.Response, error: errors.RiskRelayError, params: object) -> None:
    if error.code == errors.RiskRelayError.code:
        # A promise that the operator broke, such as a wrong encryption key: the log says which, the client does not.
        _broken(req, resp, error, params)
        return
    _answer(req, resp, error)


def _framework_error(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, _params: object) -> None:
    kind = _FRAMEWORK.get(error.status_code)
    if kind is None:
        # 400s of the framework: a path or query that does not decode, a header that does not parse.
        kind = errors.ValidationFailed if error.status_code < 500 else errors.RiskRelayError
    if error.headers:
        resp.set_headers(error.headers)
    _answer(req, resp, kind())


def _outage(req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
    _log.error("database away", extra={"error": type(error).__name__, "request_id": req.context.request_id})
    _answer(req, resp, errors.ServiceUnavailable())


def _broken(req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
    _log.error("a request broke", exc_info=error, extra={"request_id": req.context.request_id})
    _answer(req, resp, errors.RiskRelayError())


def _answer(req: falcon.Request, resp: falcon.Response, error: errors.RiskRelayError) -> None:
    resp.status = STATUS[error.code]
    for name in _OF_WHAT_WAS_DONE:
        resp.delete_header(name)
    if error.retry_after_s is not None:
        resp.set_header("Retry-After", str(error.retry_after_s))
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
