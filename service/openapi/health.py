"""The open routes in words: health, metrics, this description and its page."""

from typing import Final

from schemas.api.responses import Alive, Ready
from service.api.health import Health, Readiness
from service.http.metrics import Metrics
from service.openapi.docs_page import ApiPage, ApiPageFiles
from service.openapi.operations import Described, Good, Operations

TAG: Final = "Health"
_CHECKS: Final = {"database": "ok", "schema": "ok", "keys": "ok", "redis": "ok", "workers": "ok"}
_AWAY: Final = dict.fromkeys(_CHECKS, "unknown")


OPERATIONS: Final[Operations] = {
    ("GET", Health.path): Described(
        id="readHealth",
        tag=TAG,
        summary="Whether the process answers",
        description="Looks at nothing else.",
        answers=(Good(200, "It does.", Alive, {"status": "ok"}),),
    ),
    ("GET", Readiness.path): Described(
        id="readReadiness",
        tag=TAG,
        summary="Whether the service can answer, check by check",
        description="Without Redis or workers it is `degraded`: everything is taken in and delivered later. Without "
        "its database, or with one of another version or of other keys, it is `unavailable`.",
        answers=(
            Good(200, "`ok` or `degraded`.", Ready, {"status": "ok", "checks": _CHECKS}),
            Good(
                503,
                "`unavailable`: nothing can be answered.",
                Ready,
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
    ("GET", Metrics.path): Described(
        id="readMetrics",
        tag=TAG,
        summary="Metrics for Prometheus",
        description="What the processes of this installation have counted, and what there is. A page is good for a second.",
        answers=(
            Good(
                200,
                "Prometheus' text format.",
                example='riskrelay_exports{status="exported"} 1234\n',
                media_type="text/plain",
            ),
        ),
    ),
    ("GET", "/openapi.json"): Described(
        id="readDescription",
        tag=TAG,
        summary="This description",
        description="OpenAPI 3.1, of the routes that this installation serves. It changes with a new version or "
        "another mode; `If-None-Match` tells whether it has.",
        answers=(
            Good(200, "The description.", example={"openapi": "3.1.0"}, headers=("ETag",)),
            Good(304, "You have this one already.", headers=("ETag",)),
        ),
        parameters=("IfNoneMatch",),
    ),
    ("GET", ApiPage.path): Described(
        id="readPage",
        tag=TAG,
        summary="This description as a page",
        description="For people: Swagger UI shows the description and tries it out, with a token that is typed in and "
        "kept nowhere. Where Swagger UI's files are not installed there is no page.",
        answers=(
            Good(200, "The page.", example="<!doctype html>\n", headers=("ETag",), media_type="text/html"),
            Good(304, "You have this one already.", headers=("ETag",)),
        ),
        refusals=("NOT_FOUND",),
        parameters=("IfNoneMatch",),
    ),
    ("GET", ApiPageFiles.path): Described(
        id="readPageFile",
        tag=TAG,
        summary="What the page loads",
        description="Scripts and style sheets of the page.",
        answers=(
            Good(
                200,
                "The file.",
                example='"use strict";\n',
                headers=("ETag",),
                media_type="text/javascript",
                others={"text/css": "body { margin: 0 }\n"},
            ),
            Good(304, "You have this one already.", headers=("ETag",)),
        ),
        refusals=("NOT_FOUND",),
        parameters=("IfNoneMatch",),
    ),
}
