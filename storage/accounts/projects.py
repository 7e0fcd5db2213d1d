"""Projects, and the reports and scan runs that belong to one."""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from peewee import fn

from schemas.base.errors import Conflict, NotFound, ValidationFailed
from schemas.base.fields import MAX_ID, problem
from schemas.base.shop_domain import normalized_shop_domain
from schemas.intake.grouping import TicketGrouping
from storage.accounts.accounts import get_account
from storage.accounts.audit_log import append
from storage.db.columns import columns, read, read_first
from storage.db.engine import transaction
from storage.db.models import ProjectRow, ReportRow, ScanRunRow
from storage.db.queries import newest_first, where_given

#: The lowest random id.
_FIRST_RANDOM_RUN: Final = 10**11


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
    created_at: datetime
    updated_at: datetime


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
    shop = None if shop_domain is None else _normalized(shop_domain)
    with transaction():
        get_account(account_id)
        row = ProjectRow.create(
            name=name, account=account_id, shop_domain=shop, created_at=now, ticket_grouping=ticket_grouping.value
        )
    return get_project(row.id)


def get_project(project_id: int, account_id: int | None = None) -> Project:
    """Return a project; with `account_id`, only of that account. Raises NotFound."""
    found = read_first(Project, _projects(account_id).where(ProjectRow.id == project_id))
    if found is None:
        # The error must not tell a client which ids other accounts have, not even by repeating the number.
        of_whom = "such project" if account_id is not None else f"project {project_id}; see `bin/riskrelay project list`"
        raise NotFound(f"There is no {of_whom}.")
    return found


def list_page(
    account_id: int | None = None,
    limit: int | None = None,
    before: int | None = None,
    visible: Collection[int] | None = None,
) -> list[Project]:
    """Return up to `limit` projects, newest first, older than the project `before`; with `account_id`, only of that account.

    With `visible`, returns only projects with these ids.
    """
    query = _projects(account_id)
    if visible is not None:
        query = query.where(ProjectRow.id.in_(visible))
    return read(Project, newest_first(query, ProjectRow.id, limit, before))


def change(
    project_id: int, account_id: int | None, name: str | None, shop_domain: str | None, now: datetime, actor: str
) -> Project:
    """Set a project's name or shop domain; None leaves it, and an empty domain removes it.

    Raises NotFound, and ValidationFailed for an invalid domain.
    """
    with transaction():
        before = get_project(project_id, account_id)
        changes = {"name": name, "shop_domain": _normalized(shop_domain) if shop_domain else shop_domain}
        values = {key: value for key, value in changes.items() if value is not None and value != getattr(before, key)}
        if values:
            stored = {key: value or None for key, value in values.items()}
            ProjectRow.update(**stored).where(ProjectRow.id == project_id).execute()
            append(now, actor, "change_project", f"project:{project_id}", " ".join(sorted(values)))
        return get_project(project_id)


def set_ticket_grouping(
    project_id: int, account_id: int | None, grouping: TicketGrouping, now: datetime, actor: str
) -> Project:
    """Set how a project's new findings become tickets; existing tickets are unchanged. Raises NotFound."""
    with transaction():
        before = get_project(project_id, account_id)
        if before.ticket_grouping is not grouping:
            ProjectRow.update(ticket_grouping=grouping.value).where(ProjectRow.id == project_id).execute()
            append(now, actor, "set_ticket_grouping", f"project:{project_id}", grouping.value)
        return get_project(project_id)


def exists(project_id: int) -> bool:
    """Return whether a project has this id."""
    return ProjectRow.select().where(ProjectRow.id == project_id).exists()


def add_report(title: str, project_id: int, now: datetime) -> Report:
    """Create a report of a project. Raises NotFound."""
    with transaction():
        get_project(project_id)
        row = ReportRow.create(title=title, project=project_id, created_at=now)
    return Report(row.id, title, project_id)


def add_scan_run(project_id: int, now: datetime, scan_run_id: int | None = None) -> ScanRun:
    """Register a scan run, by default with the next free id. Raises NotFound, Conflict for an id that is taken."""
    with transaction():
        get_project(project_id)
        # Another request may take the next free id first; then the loop tries the next one.
        while True:
            chosen = scan_run_id or (ScanRunRow.select(fn.MAX(ScanRunRow.id)).scalar() or 0) + 1
            if chosen > MAX_ID:
                chosen = random_scan_run_id()
            if register_scan_run(chosen, project_id, "running", now):
                return ScanRun(chosen, project_id, "running", now, now)
            if scan_run_id is not None:
                raise Conflict(f"Scan run {chosen} exists already.")


def register_scan_run(scan_run_id: int, project_id: int, status: str, now: datetime) -> bool:
    """Store a scan run unless its id is taken, in the caller's transaction; return whether it was stored."""
    row = ScanRunRow.insert(id=scan_run_id, project=project_id, status=status, created_at=now, updated_at=now)
    return bool(row.on_conflict_ignore().as_rowcount().execute())


def random_scan_run_id() -> int:
    """Return a random id of twelve digits: a scanner that counts its runs will not reach such numbers soon."""
    return _FIRST_RANDOM_RUN + secrets.randbelow(9 * _FIRST_RANDOM_RUN)


def list_scan_runs(account_id: int | None, project_id: int | None, limit: int, before: int | None) -> list[ScanRun]:
    """Return up to `limit` scan runs, the greatest id first; with an account or project, only its runs."""
    query = where_given(_scan_runs(account_id), (ScanRunRow.project, project_id))
    return read(ScanRun, newest_first(query, ScanRunRow.id, limit, before))


def find_scan_run(scan_run_id: int, account_id: int | None) -> ScanRun | None:
    """Return a scan run; with `account_id`, only of that account. None if there is no such scan run."""
    return read_first(ScanRun, _scan_runs(account_id).where(ScanRunRow.id == scan_run_id))


def _scan_runs(account_id: int | None) -> Any:
    query = ScanRunRow.select(*columns(ScanRun, ScanRunRow))
    return query if account_id is None else query.join(ProjectRow).where(ProjectRow.account == account_id)


def _normalized(shop_domain: str) -> str:
    """Return a shop domain in the form that is stored. Raises ValidationFailed."""
    shop = normalized_shop_domain(shop_domain)
    if shop is None:
        raise ValidationFailed(problem("/shop_domain", "invalid_shop_domain"))
    return shop


def _projects(account_id: int | None) -> Any:
    return where_given(ProjectRow.select(*columns(Project, ProjectRow)), (ProjectRow.account, account_id))
