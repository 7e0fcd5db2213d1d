"""Falcon middleware around every request: request id, security headers, access log, metrics, release of the connection."""

import re
import time
from collections.abc import Mapping
from typing import Any, Final

import falcon

from runtime import logs, tracing
from runtime.clock import utc_now
from schemas.base.errors import NotFound
from service.http.request_metrics import RequestMetrics
from service.http.security_headers import SAFE_HEADERS
from storage.db import engine, identifiers

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")

#: The ids in our paths, by their names in the routes.
_IDS: Final = {"export_id": identifiers.EXPORT, "target_id": identifiers.TARGET}


class RequestContext:
    """Prepares every request, and finishes every response."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Accept or create the request id before anything can fail."""
        # From the environment: `get_header` takes ten times as long to find none, for every request.
        offered = req.env.get("HTTP_X_REQUEST_ID", "")
        is_fit = bool(offered) and _REQUEST_ID.fullmatch(offered) is not None
        request_id = offered if is_fit else identifiers.new_id(identifiers.REQUEST, utc_now())
        context = req.context
        context.request_id = request_id
        context.began_at = time.perf_counter()
        # Every log line and error report until the response carries the request id.
        logs.set_context(request_id=request_id)
        context.span = tracing.request_began(req.method, req.env.get("HTTP_TRACEPARENT"))
        resp.set_header("X-Request-Id", request_id)
        resp.set_headers(SAFE_HEADERS)
        if req.path.startswith("//"):
            # The router collapses repeated slashes; a proxy that protects /metrics may not.
            raise NotFound

    def process_resource(
        self, _req: falcon.Request, _resp: falcon.Response, _resource: Any, params: Mapping[str, str]
    ) -> None:
        """Log the ids in the path; what does not have the form of an id is the client's own text."""
        if params:
            named = {name: value for name, value in params.items() if name in _IDS and identifiers.is_id(_IDS[name], value)}
            logs.add_context(**named)

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: Any, _req_succeeded: bool) -> None:
        """Release the connection, count the response, and write the access log.

        The log names the caller and the route, never the path, the query or a header.
        """
        engine.release()
        route = req.uri_template if resource is not None else None
        took_s = time.perf_counter() - req.context.began_at
        principal = req.context.get("principal")
        caller = None if principal is None else principal.key
        self._requests.count(req.method, route, resp.status_code, took_s)
        logs.access_log(req.method, route, resp.status_code, round(took_s * 1000, 1), req.context.request_id, caller)
        logs.set_context()
        tracing.request_ended(req.context.span, req.method, route, resp.status_code, req.context.request_id)
