"""Documents `/api/projects`."""

from typing import Any, Final

from schemas.api.accounts import ProjectListResponse, ProjectResponse
from service.api.projects import ProjectResource, ProjectsResource
from service.openapi.operations import AT, PAGING, OperationDescription, Operations, SuccessResponse, listed

TAG: Final = "Projects"

_PROJECT: Final[dict[str, Any]] = {
    "id": 1,
    "name": "Shop",
    "shop_domain": None,
    "ticket_grouping": "rule",
    "created_at": AT,
}

OPERATIONS: Final[Operations] = {
    ("GET", ProjectsResource.path): OperationDescription(
        id="listProjects",
        tag=TAG,
        summary="List projects",
        description="Those of the account, the newest first. Any API token may read them.",
        responses=(listed("projects", ProjectListResponse, _PROJECT),),
        parameters=PAGING,
    ),
    ("GET", ProjectResource.path): OperationDescription(
        id="readProject",
        tag=TAG,
        summary="Read a project",
        description="Any API token of the account may read it.",
        responses=(SuccessResponse(200, "The project.", ProjectResponse, _PROJECT),),
    ),
    ("PATCH", ProjectResource.path): OperationDescription(
        id="changeProject",
        tag=TAG,
        summary="Set how findings become tickets",
        description="With `rule`, new findings of one rule share a prepared export; with `finding`, each prepares one. "
        "Exports that exist stay as they are.",
        responses=(SuccessResponse(200, "The project.", ProjectResponse, {**_PROJECT, "ticket_grouping": "finding"}),),
        examples={"One ticket for each finding": {"ticket_grouping": "finding"}},
    ),
}
