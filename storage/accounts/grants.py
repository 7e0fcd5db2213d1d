"""Checks that a token's user may submit data for a project or a report: by a grant for the project or that report.

A project or report that does not exist, belongs to another account or is not granted gives the same error.
"""

from dataclasses import dataclass

from peewee import fn

from schemas.base.errors import Forbidden, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import TokenPrincipal
from storage.db.models import GrantRow, ProjectRow, ReportRow
from storage.db.queries import tuples


@dataclass(frozen=True, slots=True)
class ManagedProject:
    """A project that the caller may submit data for; its shop's domain as an operator set it."""

    id: int
    account_id: int
    shop_domain: str | None


def manageable(principal: TokenPrincipal, project_id: int, report_id: int | None) -> ManagedProject:
    """Return the project if the caller may manage it as a whole, or `report_id` of it.

    Raises Forbidden, and ValidationFailed on `/report_id` if the caller manages the project and the report belongs to
    another project of the account.
    """
    # The account is part of every condition: a report of another account has no project here.
    account = ProjectRow.alias()
    # Compared as a list: `== None` would be true for every grant on a whole project.
    report_ids = [] if report_id is None else [report_id]
    grants = GrantRow.select(GrantRow.id).where(GrantRow.user == principal.user_id)
    report_project = (
        ReportRow.select(ReportRow.project)
        .join(account, on=account.id == ReportRow.project)
        .where(ReportRow.id.in_(report_ids), account.account == principal.account_id)
    )
    found = tuples(
        ProjectRow.select(
            ProjectRow.shop_domain,
            fn.EXISTS(grants.where(GrantRow.project == ProjectRow.id)),
            fn.EXISTS(grants.where(GrantRow.report.in_(report_ids))),
            report_project,
        ).where(ProjectRow.id == project_id, ProjectRow.account == principal.account_id)
    )
    if not found:
        raise _forbidden()
    [(shop_domain, has_project, has_report, reports_project_id)] = found
    if report_id is not None and reports_project_id != project_id:
        if reports_project_id is None or not has_project:
            raise _forbidden()
        raise ValidationFailed(problem("/report_id", "report_not_in_project"))
    if not (has_project or has_report):
        raise _forbidden()
    return ManagedProject(project_id, principal.account_id, shop_domain)


def _forbidden() -> Forbidden:
    return Forbidden("The token's user may not manage this project or report.")
