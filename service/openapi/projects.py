"""Documents `/api/projects`."""

from typing import Any, Final

from schemas.api.accounts import ProjectListResponse, ProjectResponse
from service.api.projects import ProjectResource, ProjectsResource
from service.openapi.operations import AT, PAGING, OperationDescription, Operations, SuccessResponse, listed

TAG: Final = "Projects"

_PROJECT: Final[dict[str, Any]] = {
    "id": 1,
    "name": "Shop",
    "account_id": 2,
    "shop_domain": None,
    "ticket_grouping": "rule",
    "created_at": AT,
}

OPERATIONS: Final[Operations] = {
    ("POST", ProjectsResource.path): OperationDescription(
        id="createProject",
        tag=TAG,
        summary="Create a project",
        description="Users get rights in it by their role in the account or by grants.",
        responses=(
            SuccessResponse(201, "The project.", ProjectResponse, _PROJECT, ("Location",), ("readProject", "changeProject")),
        ),
        examples={
            "A website": {"name": "Shop"},
            "A storefront": {"name": "Shop", "shop_domain": "snow.shops.example", "ticket_grouping": "rule"},
        },
    ),
    ("GET", ProjectsResource.path): OperationDescription(
        id="listProjects",
        tag=TAG,
        summary="List projects",
        description="Those of the account, the newest first; with the ability `admin`, of all accounts. Any API token may "
        "read them.",
        responses=(listed("projects", ProjectListResponse, _PROJECT),),
        parameters=("OfAccount", *PAGING),
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
        summary="Change a project",
        description="Its name, its shop domain, and how findings become tickets: with `rule`, new findings of one rule "
        "share a prepared export; with `finding`, each prepares one. Exports that exist stay as they are.",
        responses=(SuccessResponse(200, "The project.", ProjectResponse, {**_PROJECT, "ticket_grouping": "finding"}),),
        examples={"Rename": {"name": "Shop"}, "One ticket for each finding": {"ticket_grouping": "finding"}},
    ),
}
