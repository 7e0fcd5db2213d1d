"""Use cases of projects, scan runs and reports: create and change them, and set how findings become tickets."""

from typing import Final

from runtime.clock import utc_now
from schemas.base.errors import NotFound
from schemas.base.principal import Manager
from schemas.intake.grouping import TicketGrouping
from service.operations.accounts.authority import finder
from storage.accounts import audit_log, projects
from storage.accounts.projects import Project, Report, ScanRun
from storage.db.engine import transaction


def add(name: str, account_id: int, shop_domain: str | None, grouping: TicketGrouping, actor: Manager) -> Project:
    """Create a project of an account. Raises NotFound for the account, ValidationFailed for an invalid domain."""
    now = utc_now()
    with transaction():
        project = projects.add_project(name, account_id, now, shop_domain, grouping)
        audit_log.append(now, actor.key, "add_project", f"project:{project.id}")
    return project


def change(
    project_id: int, name: str | None, shop_domain: str | None, grouping: TicketGrouping | None, actor: Manager
) -> Project:
    """Change the given values of a project; an empty domain removes the domain. Raises NotFound, ValidationFailed."""
    with transaction():
        if grouping is not None:
            set_ticket_grouping(project_id, grouping, actor)
        return projects.change(project_id, actor.account_id, name, shop_domain, utc_now(), actor.key)


def set_ticket_grouping(project_id: int, grouping: TicketGrouping, actor: Manager) -> Project:
    """Set how new findings of a project become tickets. Raises NotFound."""
    return projects.set_ticket_grouping(project_id, actor.account_id, grouping, utc_now(), actor.key)


def add_scan_run(project_id: int, scan_run_id: int | None, actor: Manager) -> ScanRun:
    """Register a scan run, by default with the next free id. Raises NotFound, and Conflict if the id is already in use."""
    now = utc_now()
    with transaction():
        projects.get_project(project_id, actor.account_id)
        scan_run = projects.add_scan_run(project_id, now, scan_run_id)
        audit_log.append(now, actor.key, "add_scan_run", f"scan_run:{scan_run.id}", f"project:{project_id}")
    return scan_run


def add_report(title: str, project_id: int, actor: Manager) -> Report:
    """Create a report of a project. Raises NotFound."""
    now = utc_now()
    with transaction():
        projects.get_project(project_id, actor.account_id)
        report = projects.add_report(title, project_id, now)
        # The object is the project, because the account of an audit entry is derived from its object.
        audit_log.append(now, actor.key, "add_report", f"project:{project_id}", f"report:{report.id}")
    return report


def _find(project_id: int, account_id: int | None) -> Project | None:
    try:
        return projects.get_project(project_id, account_id)
    except NotFound:
        return None


#: Returns a project that the caller may see. Raises NotFound.
get: Final = finder("project", _find)
