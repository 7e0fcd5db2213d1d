"""Runs the checks before a responder.

The order is: size, authentication, rate limit, headers, parsing, schema, forbidden content. A resource declares its
`operations`. This middleware runs the checks of the operation, and stores the principal and the checked payload in
`req.context` for the responder. A method without an operation is not checked; Falcon responds with 405.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import falcon

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import (
    Forbidden,
    NotAcceptable,
    NotFound,
    PayloadTooLarge,
    Unauthorized,
    UnsupportedMediaType,
    ValidationFailed,
)
from schemas.base.fields import Form, problem
from schemas.base.strict_json import MAX_VALUES, JsonFault, MalformedJson, canonical, parse
from schemas.content_policy.checked_form import read_checked
from service.http.auth import Authenticate, is_of_another_site
from service.http.error_responses import PROBLEM_JSON
from service.http.limits.large_body_limiter import BodyBudgets, ByteBudget, LargeBodyQueue
from service.http.limits.rate_limits import RateLimits
from service.http.request_body import read_body, release
from storage.db import engine

#: A request whose body takes longer to arrive is authenticated again, because its token may have been revoked in that time.
REAUTHENTICATE_AFTER_S: Final = 1.0
#: The allowed values of `?dry_run=`.
_DRY_RUN: Final = {"true": True, "1": True, "false": False, "0": False}


class Body(Enum):
    """The kind of a request's body."""

    JSON = auto()
    #: JSON, or no body, which counts as an empty object.
    OPTIONAL = auto()
    #: JSON whose raw bytes are signed. They are read before `authenticate`, which finds them in `req.context.raw_body`.
    SIGNED = auto()


def _unchanged(value: Any, _checkpoint: Checkpoint = no_checkpoint) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Operation:
    """The checks before one method of a route."""

    authenticate: Authenticate
    form: Form | None = None
    body: Body = Body.JSON
    #: Whether `?dry_run=true` is supported.
    has_dry_run: bool = False
    #: Returns the part of the body to search for forbidden content, with every member at its own path.
    inspected: Callable[[Any], Any] = _unchanged
    #: Processes a valid payload without a transaction; the responder gets the result instead of the payload.
    prepare: Callable[[Any, Checkpoint], Any] = _unchanged


class RequestPipeline:
    """Falcon middleware that checks requests to resources with `operations`."""

    def __init__(self, max_body_bytes: int, rate_limits: RateLimits, body_budgets: BodyBudgets | None = None) -> None:
        self._max_body_bytes = max_body_bytes
        self._rate_limits = rate_limits
        self._body_budgets = body_budgets or BodyBudgets.for_bodies_of(max_body_bytes)
        self._large_bodies = LargeBodyQueue()

    def process_resource(self, req: falcon.Request, resp: falcon.Response, resource: Any, params: Mapping[str, Any]) -> None:
        """Run the checks in order; the first failed check determines the response."""
        operations: Mapping[str, Operation] = getattr(resource, "operations", {})
        operation = operations.get(req.method)
        if operation is None:
            return
        if (req.content_length or 0) > self._max_body_bytes:
            raise PayloadTooLarge
        self._rate_limits.require_unblocked(req)
        req.context.params = params
        if operation.body is Body.SIGNED:
            req.context.raw_body = self._read(req, self._body_budgets.unauthenticated)
        try:
            self._authenticate(req, operation)
        except (Forbidden, NotFound, ValidationFailed):
            # These callers are authenticated, but lack an ability or a role in the project, or sent invalid headers. Their
            # requests count against the rate limit, too.
            self._spend(req, resp)
            raise
        self._spend(req, resp)
        authenticated_at = time.monotonic()
        _check_accept(req)
        req.context.is_dry_run = _is_dry_run(req, operation)
        if operation.form is not None:
            # A body may take minutes to arrive. Connections are few, so none is held during this time.
            engine.release()
            body = self._json_body(req, operation)
            with self._large_bodies.slot(req.context.principal.key, len(body)) as yield_to_others:
                if time.monotonic() - authenticated_at > REAUTHENTICATE_AFTER_S:
                    self._authenticate(req, operation)
                    engine.release()
                value = _parsed(body)
                yield_to_others()
                payload = read_checked(operation.form, value, operation.inspected, yield_to_others)
                yield_to_others()
                req.context.canonical_payload = canonical(value)
                yield_to_others()
                req.context.payload = operation.prepare(payload, yield_to_others)

    def process_response(self, req: falcon.Request, _resp: falcon.Response, _resource: Any, _req_succeeded: bool) -> None:
        """Release the budget of a large body."""
        release(req)

    def _authenticate(self, req: falcon.Request, operation: Operation) -> None:
        try:
            req.context.principal = operation.authenticate(req)
        except Unauthorized:
            if not is_of_another_site(req):
                self._rate_limits.count_failure(req)
            raise

    def _spend(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._rate_limits.require_still_unblocked(req)
        self._rate_limits.spend(req, resp, req.context.principal.key)

    def _json_body(self, req: falcon.Request, operation: Operation) -> bytes:
        body = req.context.raw_body if operation.body is Body.SIGNED else None
        media_type = (req.content_type or "").partition(";")[0].strip().lower()
        if operation.body is Body.OPTIONAL and not media_type:
            body = self._read(req)
            if not body:
                return b"{}"
        # A provider signs bytes, not headers, so a signed body may have no content type, but not another one.
        if req.get_header("Content-Encoding", default="identity").lower() != "identity":
            raise UnsupportedMediaType("Compressed bodies are not supported; remove Content-Encoding.")
        if media_type != falcon.MEDIA_JSON and (media_type or operation.body is not Body.SIGNED):
            raise UnsupportedMediaType
        body = self._read(req) if body is None else body
        # Many clients send the content type of JSON with every request, even without a body.
        return b"{}" if operation.body is Body.OPTIONAL and not body else body

    def _read(self, req: falcon.Request, budget: ByteBudget | None = None) -> bytes:
        return read_body(req, self._max_body_bytes, budget or self._body_budgets.authenticated)


def _parsed(body: bytes) -> Any:
    try:
        return parse(body)
    except MalformedJson as malformed:
        if malformed.reason is JsonFault.TOO_MANY_VALUES:
            raise ValidationFailed(problem("", "too_many", f"{MAX_VALUES:,} values")) from None
        raise ValidationFailed(problem("", "malformed_json", malformed.reason)) from None


def _is_dry_run(req: falcon.Request, operation: Operation) -> bool:
    if "dry_run" not in req.params:
        return False
    if not operation.has_dry_run:
        raise ValidationFailed(problem("/dry_run", "not_supported"))
    value = req.params["dry_run"]
    if not isinstance(value, str) or value not in _DRY_RUN:
        # A request for a dry run must never do the work, so an unknown value is an error.
        raise ValidationFailed(problem("/dry_run", "not_allowed", ", ".join(_DRY_RUN)))
    return _DRY_RUN[value]


def _check_accept(req: falcon.Request) -> None:
    if not (req.client_accepts(falcon.MEDIA_JSON) or req.client_accepts(PROBLEM_JSON)):
        raise NotAcceptable
