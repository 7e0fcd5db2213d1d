"""Documents the open routes: health, metrics, this description and its page."""

from typing import Final

from schemas.api.health import HealthResponse, ReadinessChecksResponse, ReadinessResponse
from service.openapi.examples import example_of
from service.openapi.operations import NOT_MODIFIED, Operations, SuccessResponse, operation

_FAILED: Final = {"database": "unavailable", "schema": "unknown", "keys": "unknown", "workers": "unknown"}
_AWAY: Final = example_of(ReadinessResponse, status="unavailable", checks=example_of(ReadinessChecksResponse, **_FAILED))

OPERATIONS: Final[Operations] = {
    "GET /healthz": operation(
        "readHealth",
        "Check that the process responds",
        "Checks nothing else.",
        SuccessResponse(200, "The process responds.", HealthResponse),
    ),
    "GET /readyz": operation(
        "readReadiness",
        "Check the service's dependencies",
        "Without Redis or workers it is `degraded`: everything is taken in and delivered later. Without "
        "its database, on a full disk, or with a database of another version or of other keys, it is `unavailable`.",
        SuccessResponse(200, "`ok` or `degraded`.", ReadinessResponse),
        SuccessResponse(503, "`unavailable`: nothing can be answered.", ReadinessResponse, _AWAY),
    ),
    "GET /metrics": operation(
        "readMetrics",
        "Metrics for Prometheus",
        "What the processes of this installation have counted, and what there is. A page is good for a second.",
        SuccessResponse(
            200, "Prometheus' text format.", example='riskrelay_exports{status="exported"} 1234\n', media_type="text/plain"
        ),
    ),
    "GET /openapi.json": operation(
        "readDescription",
        "This description",
        "OpenAPI 3.1, of the routes that this installation serves. It changes with a new version or "
        "another mode; use `If-None-Match` to find out.",
        SuccessResponse(200, "The description.", example={"openapi": "3.1.0"}, headers=("ETag",)),
        NOT_MODIFIED,
    ),
    "GET /docs": operation(
        "readPage",
        "This description as a page",
        "For people: Swagger UI shows the description and tries it out, with a token that is typed in and "
        "kept nowhere. Where Swagger UI's files are not installed there is no page.",
        SuccessResponse(200, "The page.", example="<!doctype html>\n", headers=("ETag",), media_type="text/html"),
        NOT_MODIFIED,
        error_codes=("NOT_FOUND",),
    ),
    "GET /docs/{file}": operation(
        "readPageFile",
        "What the page loads",
        "Scripts and style sheets of the page.",
        SuccessResponse(
            200,
            "The file.",
            example='"use strict";\n',
            headers=("ETag",),
            media_type="text/javascript",
            others={"text/css": "body { margin: 0 }\n"},
        ),
        NOT_MODIFIED,
        error_codes=("NOT_FOUND",),
    ),
}
