"""`/api/projects`: list and read the account's projects, and set how their findings become tickets."""

import falcon

from schemas.api.accounts import ProjectResponse
from schemas.api.response_fields import dump
from schemas.base.principal import Ability, TokenKind
from schemas.intake.grouping import ProjectForm
from schemas.settings.definitions import RouteFamily
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_numbered_page, send_page, send_record
from service.http.request_pipeline import Operation
from service.operations import projects


class ProjectsResource:
    """Lists projects."""

    path = "/api/projects"
    family = RouteFamily.EXPORTS

    def __init__(self, public_base_url: str) -> None:
        reading = Operation(Bearer(TokenKind.API, of_projects=True))
        self.operations = {"GET": reading, "HEAD": reading}
        self._url = public_base_url + self.path

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the account's projects, newest first."""
        page = read_numbered_page(req)
        before = None if page.before is None else int(page.before)
        found = projects.list_page(req.context.principal, page.fetch_limit, before)
        send_page(resp, self._url, page, [dump(ProjectResponse, project) for project in found])

    on_head = on_get


class ProjectResource:
    """Reads one project, and sets its grouping."""

    path = "/api/projects/{project_id}"
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor) -> None:
        reading = Operation(Bearer(TokenKind.API, of_projects=True))
        changing = Operation(Bearer(TokenKind.API, Ability.MANAGE_ACCOUNT), ProjectForm())
        self.operations = {"GET": reading, "HEAD": reading, "PATCH": changing}
        self._executor = executor

    def on_get(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """Return the project."""
        project = projects.get(project_id, req.context.principal)
        send_record(resp, dump(ProjectResponse, project))

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """Set how new findings of the project become tickets."""
        self._executor.respond(req, resp, lambda: self._change(req, project_id))

    def _change(self, req: falcon.Request, project_id: str) -> ApiResponse:
        principal = req.context.principal
        project = projects.get(project_id, principal)
        changed = projects.set_ticket_grouping(project.id, req.context.payload, principal)
        return ApiResponse(200, dump(ProjectResponse, changed))
