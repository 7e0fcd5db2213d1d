"""Projects, and the reports and scan runs that belong to one."""

from dataclasses import dataclass
from datetime import datetime

from peewee import IntegrityError, fn

from schemas.base.errors import Conflict, NotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.shop_domain import normalised_shop_domain
from storage.accounts.accounts import require_account
from storage.db.columns import columns, read
from storage.db.engine import transaction
from storage.db.models import ProjectRow, ReportRow, ScanRunRow


@dataclass(frozen=True, slots=True)
class Project:
    """A website of an account."""

    id: int
    name: str
    account_id: int
    shop_domain: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a project."""

    id: int
    title: str
    project_id: int


@dataclass(frozen=True, slots=True)
class ScanRun:
    """A run of a scanner."""

    id: int
    project_id: int
    status: str


def add_project(name: str, account_id: int, now: datetime, shop_domain: str | None = None) -> Project:
    """Create a project of an account; its shop domain is stored in the normalized form.

    Raises NotFound, and ValidationFailed for an invalid domain.
    """
    shop = None if shop_domain is None else normalised_shop_domain(shop_domain)
    if shop is None and shop_domain is not None:
        raise ValidationFailed(problem("/shop_domain", "invalid_shop_domain"))
    with transaction():
        require_account(account_id)
        row = ProjectRow.create(name=name, account=account_id, shop_domain=shop, created_at=now)
    return Project(row.id, name, account_id, shop)


def exists(project_id: int) -> bool:
    """Return whether a project has this id."""
    return ProjectRow.select().where(ProjectRow.id == project_id).exists()


def list_projects() -> list[Project]:
    """Return every project, the oldest first."""
    return read(Project, ProjectRow.select(*columns(Project, ProjectRow)).order_by(ProjectRow.id))


def add_report(title: str, project_id: int, now: datetime) -> Report:
    """Create a report of a project. Raises NotFound."""
    with transaction():
        _require_project(project_id)
        row = ReportRow.create(title=title, project=project_id, created_at=now)
    return Report(row.id, title, project_id)


def add_scan_run(project_id: int, now: datetime, scan_run_id: int | None = None) -> ScanRun:
    """Register a scan run, by default with the next free id. Raises NotFound, Conflict for an id that is taken."""
    with transaction():
        _require_project(project_id)
        chosen = scan_run_id or (ScanRunRow.select(fn.MAX(ScanRunRow.id)).scalar() or 0) + 1
        try:
            row = ScanRunRow.create(id=chosen, project=project_id, status="running", created_at=now, updated_at=now)
        except IntegrityError:
            raise Conflict(f"Scan run {chosen} exists already.") from None
    return ScanRun(chosen, project_id, row.status)


def _require_project(project_id: int) -> None:
    if not exists(project_id):
        raise NotFound(f"There is no project {project_id}; see `bin/riskrelay project list`.")
