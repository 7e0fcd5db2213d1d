"""`/api/projects`: create, list, read and change projects; any API token reads those of its account."""

import falcon

from schemas.accounts.forms import NewProjectForm, ProjectChangeForm
from schemas.api.administration import ProjectResponse
from schemas.api.response_fields import dump
from schemas.intake.grouping import TicketGrouping
from schemas.settings.definitions import RouteFamily
from service.api.accounts.authority import AccountAuthority, ManagedList, named_account
from service.http.idempotency import ApiResponse
from service.http.paging import PageRequest, read_numbered_page, send_page, send_record
from service.operations import projects
from storage.accounts import projects as stored
from storage.accounts.projects import Project


class ProjectsResource(ManagedList):
    """Creates projects, and lists them."""

    path = "/api/projects"
    reading = None
    response = ProjectResponse

    def __init__(self, authority: AccountAuthority) -> None:
        super().__init__(authority)
        self.operations["POST"] = authority.operation(form=NewProjectForm())

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the projects that the caller sees: users with roles in single projects see these."""
        caller = req.context.principal
        if caller.projects is None:
            super().on_get(req, resp)
            return
        page = read_numbered_page(req)
        before = None if page.before is None else int(page.before)
        found = stored.list_page(caller.account_id, page.fetch_limit, before, tuple(caller.projects))
        send_page(resp, self._url, page, self.records(found))

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create the project."""
        self._authority.executor.respond(req, resp, lambda: self._create(req))

    def found(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Project]:
        """Return a page of projects."""
        return stored.list_page(account_id, page.fetch_limit, before)

    def _create(self, req: falcon.Request) -> ApiResponse:
        body = req.context.payload
        account_id, grouping = named_account(req, body["account_id"]), TicketGrouping(body["ticket_grouping"])
        project = projects.add(body["name"], account_id, body["shop_domain"], grouping, req.context.actor)
        return self._created(dump(ProjectResponse, project))


class ProjectResource:
    """Reads and changes one project."""

    path = "/api/projects/{project_id}"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority) -> None:
        reading = authority.operation(None)
        self.operations = {"GET": reading, "HEAD": reading, "PATCH": authority.operation(form=ProjectChangeForm())}
        self._executor = authority.executor

    def on_get(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """Return the project."""
        send_record(resp, dump(ProjectResponse, projects.get(project_id, req.context.actor)))

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """Change the project, and return it."""
        self._executor.respond(req, resp, lambda: self._change(req, project_id))

    def _change(self, req: falcon.Request, project_id: str) -> ApiResponse:
        project, changes = projects.get(project_id, req.context.actor), req.context.payload
        shop_domain = (changes["shop_domain"] or "") if "shop_domain" in changes else None
        grouping = TicketGrouping(changes["ticket_grouping"]) if "ticket_grouping" in changes else None
        changed = projects.change(project.id, changes.get("name"), shop_domain, grouping, req.context.actor)
        return ApiResponse(200, dump(ProjectResponse, changed))
