"""Projects, and the reports and scan runs that belong to one."""

from datetime import datetime

from peewee import IntegrityError, fn

from schemas.base.errors import Conflict, NotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.shop_domain import normalised_shop_domain
from storage.db.engine import transaction
from storage.db.models import AccountRow, ProjectRow, ReportRow, ScanRunRow


def add_project(name: str, account_id: int, now: datetime, shop_domain: str | None = None) -> ProjectRow:
    """Make a project of an account, with its shop's domain in the form that is compared.

    Raises NotFound, ValidationFailed for a domain that is none.
    """
    shop = None if shop_domain is None else normalised_shop_domain(shop_domain)
    if shop is None and shop_domain is not None:
        raise ValidationFailed(problem("/shop_domain", "invalid_shop_domain"))
    with transaction():
        if not AccountRow.select().where(AccountRow.id == account_id).exists():
            raise NotFound(f"There is no account {account_id}; see `bin/riskrelay account list`.")
        return ProjectRow.create(name=name, account=account_id, shop_domain=shop, created_at=now)


def add_report(title: str, project_id: int, now: datetime) -> ReportRow:
    """Make a report of a project. Raises NotFound."""
    with transaction():
        _require_project(project_id)
        return ReportRow.create(title=title, project=project_id, created_at=now)


def add_scan_run(project_id: int, now: datetime, scan_run_id: int | None = None) -> ScanRunRow:
    """Register a scan run; without an id it gets the next free one. Raises NotFound, Conflict for an id that is taken."""
    with transaction():
        _require_project(project_id)
        chosen = scan_run_id or (ScanRunRow.select(fn.MAX(ScanRunRow.id)).scalar() or 0) + 1
        try:
            return ScanRunRow.create(id=chosen, project=project_id, status="running", created_at=now, updated_at=now)
        except IntegrityError:
            raise Conflict(f"Scan run {chosen} exists already.") from None


def _require_project(project_id: int) -> None:
    if not ProjectRow.select().where(ProjectRow.id == project_id).exists():
        raise NotFound(f"There is no project {project_id}; see `bin/riskrelay project list`.")
