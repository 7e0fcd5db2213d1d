"""What every request and every answer has: a request id, safe headers, a database connection given back."""

import re
import time
from typing import Any, Final

import falcon

from storage import database, identifiers
from storage.clock import utc_now
from storage.logs import access_log

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")

#: The API serves data, never documents: nothing of it may be sniffed, kept, framed or referred to.
_SAFE_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", "default-src 'none'"),
)


class Manners:
    """Falcon middleware around every request."""

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Take or make the request's id before anything can fail."""
        offered = req.get_header("X-Request-Id") or ""
        is_fit = _REQUEST_ID.fullmatch(offered) is not None
        req.context.request_id = offered if is_fit else identifiers.new_id(identifiers.REQUEST, utc_now())
        req.context.began_at = time.perf_counter()
        resp.set_header("X-Request-Id", req.context.request_id)
        for name, value in _SAFE_HEADERS:
            resp.set_header(name, value)

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: Any, _req_succeeded: bool) -> None:
        """Give the connection back and write the access log: the route, never the path, the query or a header."""
        database.release()
        route = req.uri_template if resource is not None else None
        duration_ms = round((time.perf_counter() - req.context.began_at) * 1000, 1)
        access_log(req.method, route, resp.status_code, duration_ms, req.context.request_id)
