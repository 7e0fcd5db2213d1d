"""`/api/projects` and `/api/scan-runs`: the websites of the account, and the scan runs that assign scan results to them."""

from collections.abc import Mapping
from typing import Any

import falcon

from schemas.accounts.forms import NewProjectForm, ProjectChangeForm, ScanRunForm
from schemas.api.administration import ProjectResponse, ScanRunResponse
from schemas.base.errors import Forbidden, NotFound, ValidationFailed
from schemas.base.fields import MAX_ID, problem
from schemas.base.principal import Manager
from schemas.intake.grouping import TicketGrouping
from service.api.accounts.authority import ACCOUNT, ChangeableRecord, ManagedCollection, ManagedRecord, named_account, number
from service.http.paging import NUMBERS, PageRequest, read_numbered_page, send_page
from service.operations.accounts import projects as operations
from service.operations.accounts.authority import found
from storage.accounts import projects
from storage.accounts.projects import Project, ScanRun


class ProjectsResource(ManagedCollection):
    """Creates projects, and lists them; any API token may list the projects of its account."""

    path = "/api/projects"
    reading = None
    response = ProjectResponse
    form = NewProjectForm

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the projects that the caller may see. A user with roles in single projects sees only these."""
        caller = req.context.principal
        if caller.projects is None:
            super().on_get(req, resp)
            return
        page = read_numbered_page(req)
        before = None if page.before is None else int(page.before)
        found = projects.list_page(caller.account_id, page.fetch_limit, before, tuple(caller.projects))
        send_page(resp, self._url, page, self.records(found))

    def list_page(self, page: PageRequest, account_id: int | None, before: int | None) -> list[Project]:
        """Return a page of projects."""
        return projects.list_page(account_id, page.fetch_limit, before)

    def create(self, req: falcon.Request) -> Project:
        """Add the project."""
        body = req.context.payload
        account_id, grouping = named_account(req, body["account_id"]), TicketGrouping(body["ticket_grouping"])
        return operations.add(body["name"], account_id, body["shop_domain"], grouping, req.context.actor)


class ProjectResource(ChangeableRecord):
    """Reads and changes one project."""

    path = f"{ProjectsResource.path}/{{project_id}}"
    reading = None
    response = ProjectResponse
    form = ProjectChangeForm

    def find(self, text: str, actor: Manager) -> Project:
        """Return the project."""
        return operations.get(text, actor)

    def change(self, project: Project, changes: Mapping[str, Any], actor: Manager) -> Project:
        """Change the project's name, its shop domain or how its findings become tickets."""
        shop_domain = (changes["shop_domain"] or "") if "shop_domain" in changes else None
        grouping = TicketGrouping(changes["ticket_grouping"]) if "ticket_grouping" in changes else None
        return operations.change(project.id, changes.get("name"), shop_domain, grouping, actor)


class ScanRunsResource(ManagedCollection):
    """Registers scan runs, and lists them."""

    path = "/api/scan-runs"
    response = ScanRunResponse
    form = ScanRunForm
    filters = {ACCOUNT: NUMBERS, "project_id": NUMBERS}  # noqa: RUF012 - never changed

    def list_page(self, page: PageRequest, account_id: int | None, before: int | None) -> list[ScanRun]:
        """Return a page of scan runs."""
        return projects.list_scan_runs(account_id, number(page, "project_id"), page.fetch_limit, before)

    def create(self, req: falcon.Request) -> ScanRun:
        """Register the scan run. Raises Forbidden, ValidationFailed."""
        body, principal = req.context.payload, req.context.principal
        # The scanner numbers the runs of all accounts in one sequence. If an account could choose a number, it could
        # register the number of another account's later run and receive its results.
        scan_run_id: int | None = body["id"]
        if not self._api.operator_account.has_id(principal.account_id):
            if scan_run_id is not None:
                raise Forbidden("Only tokens of the operator's account may choose the id of a scan run.")
            scan_run_id = projects.random_scan_run_id()
        try:
            return operations.add_scan_run(body["project_id"], scan_run_id, req.context.actor)
        except NotFound:
            raise ValidationFailed(problem("/project_id", "unknown_project")) from None


class ScanRunResource(ManagedRecord):
    """Reads one scan run."""

    path = f"{ScanRunsResource.path}/{{scan_run_id}}"
    response = ScanRunResponse

    def find(self, text: str, actor: Manager) -> ScanRun:
        """Return the scan run."""
        return found(text, "scan run", projects.find_scan_run, actor, MAX_ID)
