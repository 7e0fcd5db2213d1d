"""Documents the routes without authentication: health, metrics, the OpenAPI description and its page."""

from typing import Final

from schemas.api.health import HealthResponse, ReadinessChecksResponse, ReadinessResponse
from service.openapi.examples import example_of
from service.openapi.operations import NOT_MODIFIED, Operations, SuccessResponse, operation

_FAILED: Final = {"database": "unavailable", "schema": "unknown", "keys": "unknown", "workers": "unknown"}
_DOWN: Final = example_of(ReadinessResponse, status="unavailable", checks=example_of(ReadinessChecksResponse, **_FAILED))

OPERATIONS: Final[Operations] = {
    "GET /healthz": operation(
        "readHealth",
        "Check that the process responds",
        "Responds without a check of the database or Redis.",
        SuccessResponse(200, "The process responds.", HealthResponse),
    ),
    "GET /readyz": operation(
        "readReadiness",
        "Check the service's dependencies",
        "`degraded`: Redis or workers are unavailable, or the disk is nearly full; requests are accepted, "
        "and tickets are delivered later. `unavailable`: the database is unavailable, the disk is full, or "
        "the database needs another version or other keys.",
        SuccessResponse(200, "`ok` or `degraded`.", ReadinessResponse),
        SuccessResponse(503, "`unavailable`: do not route requests to this process.", ReadinessResponse, _DOWN),
    ),
    "GET /metrics": operation(
        "readMetrics",
        "Read metrics for Prometheus",
        "Counters of the processes of this host, and the current state of the installation. Cached for one second.",
        SuccessResponse(
            200,
            "The metrics in the text format of Prometheus.",
            example='riskrelay_exports{status="exported"} 1234\n',
            media_type="text/plain",
        ),
    ),
    "GET /openapi.json": operation(
        "readDescription",
        "Read this document",
        "An OpenAPI 3.1 document of the routes that this installation serves. It changes with the version "
        "and the deployment mode; send `If-None-Match` to detect changes.",
        SuccessResponse(200, "The OpenAPI document.", example={"openapi": "3.1.0"}, headers=("ETag",)),
        NOT_MODIFIED,
    ),
    "GET /docs": operation(
        "readPage",
        "Show this document as a page",
        "Swagger UI shows this document and sends test requests. The token that you enter is not stored.",
        SuccessResponse(200, "The page.", example="<!doctype html>\n", headers=("ETag",), media_type="text/html"),
        NOT_MODIFIED,
    ),
    "GET /docs/{file}": operation(
        "readPageFile",
        "Read a file of the page",
        "The scripts and style sheets of the page at `/docs`.",
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
