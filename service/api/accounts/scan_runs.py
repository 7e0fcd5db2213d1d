"""`/api/scan-runs`: scan runs, which assign a scanner's results to a project."""

import falcon

from schemas.accounts.forms import ScanRunForm
from schemas.api.administration import ScanRunResponse
from schemas.api.response_fields import dump
from schemas.base.errors import Forbidden, NotFound, ValidationFailed
from schemas.base.fields import MAX_ID, problem
from schemas.settings.definitions import RouteFamily
from service.api.accounts.authority import ACCOUNT, AccountAuthority, ManagedList, number
from service.http.idempotency import ApiResponse
from service.http.paging import NUMBERS, PageRequest, send_record
from service.operations import projects as operations
from service.operations.authority import found
from storage.accounts import projects
from storage.accounts.projects import ScanRun


class ScanRunsResource(ManagedList):
    """Registers scan runs, and lists them."""

    path = "/api/scan-runs"
    response = ScanRunResponse
    filters = {ACCOUNT: NUMBERS, "project_id": NUMBERS}  # noqa: RUF012 - never changed

    def __init__(self, authority: AccountAuthority) -> None:
        super().__init__(authority)
        self.operations["POST"] = authority.operation(form=ScanRunForm())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Register the scan run."""
        self._authority.executor.respond(req, resp, lambda: self._create(req))

    def found(self, page: PageRequest, account_id: int | None, before: int | None) -> list[ScanRun]:
        """Return a page of scan runs."""
        return projects.list_scan_runs(account_id, number(page, "project_id"), page.fetch_limit, before)

    def _create(self, req: falcon.Request) -> ApiResponse:
        body, principal = req.context.payload, req.context.principal
        # One scanner numbers the runs of all accounts: a number that another account registers first would get its results.
        if body["id"] is not None and not self._authority.operator_account.has_id(principal.account_id):
            raise Forbidden("Only tokens of the operator's account may choose the id of a scan run.")
        try:
            scan_run = operations.add_scan_run(body["project_id"], body["id"], req.context.actor)
        except NotFound:
            raise ValidationFailed(problem("/project_id", "unknown_project")) from None
        return self._created(dump(ScanRunResponse, scan_run))


class ScanRunResource:
    """Reads one scan run."""

    path = f"{ScanRunsResource.path}/{{scan_run_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority) -> None:
        reading = authority.operation()
        self.operations = {"GET": reading, "HEAD": reading}

    def on_get(self, req: falcon.Request, resp: falcon.Response, scan_run_id: str) -> None:
        """Return the scan run."""
        scan_run = found(scan_run_id, "scan run", projects.find_scan_run, req.context.actor, MAX_ID)
        send_record(resp, dump(ScanRunResponse, scan_run))

    on_head = on_get
