"""`/api/projects` and `/api/scan-runs`: the websites of the account, and the scan runs that assign scan results to them."""

from collections.abc import Iterator, Mapping
from typing import Any

import falcon

from schemas.accounts.forms import NewProjectForm, ProjectChangeForm, ScanRunForm
from schemas.api.administration import ProjectResponse, ScanRunResponse
from schemas.base.errors import Forbidden, NotFound, ValidationFailed
from schemas.base.fields import MAX_ID, problem
from schemas.base.principal import Manager
from schemas.intake.grouping import TicketGrouping
from service.api.accounts.authority import AccountBearer, named_account, numbered
from service.api.routes import ApiContext, ApiRoute, Endpoint, read, shown_as
from service.http.paging import NUMBERS, read_numbered_page, send_page
from service.http.request_pipeline import Operation
from service.operations.accounts import projects as operations
from service.operations.accounts.authority import finder
from storage.accounts import projects
from storage.accounts.projects import Project, ScanRun


def routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of projects; any API token may read the projects of its account."""
    reader, manager = AccountBearer(api.operator_account, None), AccountBearer(api.operator_account)
    show = shown_as(ProjectResponse)
    of_account = numbered(api, reader, projects.list_page, show)

    def list_page(req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the projects that the caller may see. A user with roles in single projects sees only these."""
        caller = req.context.principal
        if caller.projects is None:
            of_account.respond(req, resp)
            return
        page = read_numbered_page(req)
        before = None if page.before is None else int(page.before)
        found = projects.list_page(caller.account_id, page.fetch_limit, before, tuple(caller.projects))
        send_page(resp, api.url(req), page, [show(each) for each in found])

    yield ApiRoute(
        "/api/projects",
        get=Endpoint(Operation(reader), list_page),
        post=api.created(manager, NewProjectForm(), _create, show),
    )
    yield ApiRoute(
        "/api/projects/{project_id}",
        get=read(reader, operations.get, show),
        patch=api.changed(manager, ProjectChangeForm(), _change, show),
    )


def _create(req: falcon.Request) -> Project:
    body, account_id = req.context.payload, named_account(req)
    grouping = TicketGrouping(body["ticket_grouping"])
    return operations.add(body["name"], account_id, body["shop_domain"], grouping, req.context.actor)


def _change(project_id: str, changes: Mapping[str, Any], actor: Manager) -> Project:
    """Change the project's name, its shop domain or how its findings become tickets."""
    project = operations.get(project_id, actor)
    shop_domain = (changes["shop_domain"] or "") if "shop_domain" in changes else None
    grouping = TicketGrouping(changes["ticket_grouping"]) if "ticket_grouping" in changes else None
    return operations.change(project.id, changes.get("name"), shop_domain, grouping, actor)


def scan_run_routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of scan runs."""
    manager, show = AccountBearer(api.operator_account), shown_as(ScanRunResponse)

    def create(req: falcon.Request) -> ScanRun:
        """Register the scan run. Raises Forbidden, ValidationFailed."""
        # The scanner numbers the runs of all accounts in one sequence. If an account could choose a number, it could
        # register the number of another account's later run and receive its results.
        scan_run_id: int | None = req.context.payload["id"]
        if not api.operator_account.has_id(req.context.principal.account_id):
            if scan_run_id is not None:
                raise Forbidden("Only tokens of the operator's account may choose the id of a scan run.")
            scan_run_id = projects.random_scan_run_id()
        try:
            return operations.add_scan_run(req.context.payload["project_id"], scan_run_id, req.context.actor)
        except NotFound:
            raise ValidationFailed(problem("/project_id", "unknown_project")) from None

    yield ApiRoute(
        "/api/scan-runs",
        get=numbered(api, manager, projects.list_scan_runs, show, {"project_id": NUMBERS}),
        post=api.created(manager, ScanRunForm(), create, show),
    )
    yield ApiRoute(
        "/api/scan-runs/{scan_run_id}", get=read(manager, finder("scan run", projects.find_scan_run, MAX_ID), show)
    )
