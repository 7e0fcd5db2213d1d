"""Documents the open routes: health, metrics, this description and its page."""

from typing import Final

from schemas.api.health import HealthResponse, ReadinessResponse
from service.api.health import HealthResource, ReadinessResource
from service.api.metrics import MetricsResource
from service.openapi.docs_page import DocsFilesResource, DocsPageResource
from service.openapi.operations import OperationDescription, Operations, SuccessResponse

TAG: Final = "Health"
_HEALTH: Final = {"status": "ok", "installation": "3f1f2b6c00004e01"}
_CHECKS: Final = {"database": "ok", "disk": "ok", "schema": "ok", "keys": "ok", "redis": "ok", "workers": "ok"}
_AWAY: Final = dict.fromkeys(_CHECKS, "unknown")


OPERATIONS: Final[Operations] = {
    ("GET", HealthResource.path): OperationDescription(
        id="readHealth",
        tag=TAG,
        summary="Check that the process responds",
        description="Checks nothing else.",
        responses=(SuccessResponse(200, "The process responds.", HealthResponse, _HEALTH),),
    ),
    ("GET", ReadinessResource.path): OperationDescription(
        id="readReadiness",
        tag=TAG,
        summary="Check the service's dependencies",
        description="Without Redis or workers it is `degraded`: everything is taken in and delivered later. Without "
        "its database, on a full disk, or with a database of another version or of other keys, it is `unavailable`.",
        responses=(
            SuccessResponse(200, "`ok` or `degraded`.", ReadinessResponse, {"status": "ok", "checks": _CHECKS}),
            SuccessResponse(
                503,
                "`unavailable`: nothing can be answered.",
                ReadinessResponse,
                {
                    "status": "unavailable",
                    "checks": {
                        **_CHECKS,
                        "database": "unavailable",
                        "schema": "unknown",
                        "keys": "unknown",
                        "workers": "unknown",
                    },
                },
            ),
        ),
    ),
    ("GET", MetricsResource.path): OperationDescription(
        id="readMetrics",
        tag=TAG,
        summary="Metrics for Prometheus",
        description="What the processes of this installation have counted, and what there is. A page is good for a second.",
        responses=(
            SuccessResponse(
                200,
                "Prometheus' text format.",
                example='riskrelay_exports{status="exported"} 1234\n',
                media_type="text/plain",
            ),
        ),
    ),
    ("GET", "/openapi.json"): OperationDescription(
        id="readDescription",
        tag=TAG,
        summary="This description",
        description="OpenAPI 3.1, of the routes that this installation serves. It changes with a new version or "
        "another mode; use `If-None-Match` to find out.",
        responses=(
            SuccessResponse(200, "The description.", example={"openapi": "3.1.0"}, headers=("ETag",)),
            SuccessResponse(304, "You have this version.", headers=("ETag",)),
        ),
        parameters=("IfNoneMatch",),
    ),
    ("GET", DocsPageResource.path): OperationDescription(
        id="readPage",
        tag=TAG,
        summary="This description as a page",
        description="For people: Swagger UI shows the description and tries it out, with a token that is typed in and "
        "kept nowhere. Where Swagger UI's files are not installed there is no page.",
        responses=(
            SuccessResponse(200, "The page.", example="<!doctype html>\n", headers=("ETag",), media_type="text/html"),
            SuccessResponse(304, "You have this version.", headers=("ETag",)),
        ),
        error_codes=("NOT_FOUND",),
        parameters=("IfNoneMatch",),
    ),
    ("GET", DocsFilesResource.path): OperationDescription(
        id="readPageFile",
        tag=TAG,
        summary="What the page loads",
        description="Scripts and style sheets of the page.",
        responses=(
            SuccessResponse(
                200,
                "The file.",
                example='"use strict";\n',
                headers=("ETag",),
                media_type="text/javascript",
                others={"text/css": "body { margin: 0 }\n"},
            ),
            SuccessResponse(304, "You have this version.", headers=("ETag",)),
        ),
        error_codes=("NOT_FOUND",),
        parameters=("IfNoneMatch",),
    ),
}
