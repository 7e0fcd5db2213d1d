"""Projects, and the reports and scan runs that belong to one."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from peewee import IntegrityError, fn

from schemas.base.errors import Conflict, NotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.shop_domain import normalised_shop_domain
from schemas.intake.grouping import TicketGrouping
from storage.accounts.accounts import require_account
from storage.accounts.audit_log import append
from storage.db.columns import columns, read, read_first
from storage.db.engine import transaction
from storage.db.models import ProjectRow, ReportRow, ScanRunRow


@dataclass(frozen=True, slots=True)
class Project:
    """A website of an account."""

    id: int
    name: str
    account_id: int
    shop_domain: str | None
    ticket_grouping: TicketGrouping
    created_at: datetime


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


def add_project(
    name: str,
    account_id: int,
    now: datetime,
    shop_domain: str | None = None,
    ticket_grouping: TicketGrouping = TicketGrouping.RULE,
) -> Project:
    """Create a project of an account; its shop domain is stored in the normalized form.

    Raises NotFound, and ValidationFailed for an invalid domain.
    """
    shop = None if shop_domain is None else normalised_shop_domain(shop_domain)
    if shop is None and shop_domain is not None:
        raise ValidationFailed(problem("/shop_domain", "invalid_shop_domain"))
    with transaction():
        require_account(account_id)
        row = ProjectRow.create(
            name=name,
            account=account_id,
            shop_domain=shop,
            created_at=now,
            ticket_grouping=ticket_grouping.value,
        )
    return get_project(row.id)


def get_project(project_id: int, account_id: int | None = None) -> Project:
    """Return a project, of one account where `account_id` is given. Raises NotFound."""
    found = read_first(Project, _projects(account_id).where(ProjectRow.id == project_id))
    if found is None:
        # A client learns nothing of other accounts' ids, not even from its own number.
        of_whom = "such project" if account_id is not None else f"project {project_id}; see `bin/riskrelay project list`"
        raise NotFound(f"There is no {of_whom}.")
    return found


def list_page(
    account_id: int, limit: int, before: int | None = None, visible: Collection[int] | None = None
) -> list[Project]:
    """Return up to `limit` projects of an account, the newest first, or those that follow the project `before`.

    Only the `visible` ones, where these are given.
    """
    query = _projects(account_id).order_by(ProjectRow.id.desc()).limit(limit)
    if visible is not None:
        query = query.where(ProjectRow.id.in_(visible))
    return read(Project, query if before is None else query.where(ProjectRow.id < before))


def set_ticket_grouping(
    project_id: int, account_id: int | None, grouping: TicketGrouping, now: datetime, actor: str
) -> Project:
    """Set how a project's new findings become tickets; the tickets that exist stay as they are. Raises NotFound."""
    with transaction():
        before = get_project(project_id, account_id)
        if before.ticket_grouping is not grouping:
            ProjectRow.update(ticket_grouping=grouping.value).where(ProjectRow.id == project_id).execute()
            append(now, actor, "set_ticket_grouping", f"project:{project_id}", grouping.value)
        return get_project(project_id)


def exists(project_id: int) -> bool:
    """Return whether a project has this id."""
    return ProjectRow.select().where(ProjectRow.id == project_id).exists()


def list_projects() -> list[Project]:
    """Return every project, the oldest first."""
    return read(Project, _projects(None).order_by(ProjectRow.id))


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


def _projects(account_id: int | None) -> Any:
    query = ProjectRow.select(*columns(Project, ProjectRow))
    return query if account_id is None else query.where(ProjectRow.account == account_id)


def _require_project(project_id: int) -> None:
    if not exists(project_id):
        raise NotFound(f"There is no project {project_id}; see `bin/riskrelay project list`.")
