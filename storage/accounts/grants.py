"""Checks that a token's user may submit data for a project or a report: by a grant for the project or that report.

A project that does not exist, belongs to another account or is not granted gives the same error; so does any report that is
not one of the project.
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

    Raises Forbidden for a project in which the caller manages nothing; then ValidationFailed on `/report_id` for any report
    that is not one of the project; then Forbidden for a report, or a whole project, that the caller does not manage.
    """
    # Compared as a list: `== None` would be true for every grant on a whole project.
    report_ids = [] if report_id is None else [report_id]
    grants = GrantRow.select(GrantRow.id).where(GrantRow.user == principal.user_id)
    granted_reports = grants.join(ReportRow, on=ReportRow.id == GrantRow.report).where(ReportRow.project == ProjectRow.id)
    named_report = ReportRow.select(ReportRow.id).where(ReportRow.id.in_(report_ids), ReportRow.project == ProjectRow.id)
    found = tuples(
        ProjectRow.select(
            ProjectRow.shop_domain,
            fn.EXISTS(grants.where(GrantRow.project == ProjectRow.id)),
            fn.EXISTS(granted_reports),
            fn.EXISTS(named_report),
            fn.EXISTS(grants.where(GrantRow.report.in_(report_ids))),
        ).where(ProjectRow.id == project_id, ProjectRow.account == principal.account_id)
    )
    [(shop_domain, has_project, has_reports, is_in_project, has_report)] = found or [(None, False, False, False, False)]
    if not (has_project or has_reports):
        raise _forbidden()
    # Alike for a report of another project, of another account, and for none: the answer says nothing about it.
    if report_id is not None and not is_in_project:
        raise ValidationFailed(problem("/report_id", "report_not_in_project"))
    if not (has_project or has_report):
        raise _forbidden()
    return ManagedProject(project_id, principal.account_id, shop_domain)


def _forbidden() -> Forbidden:
    return Forbidden("The token's user may not manage this project or report.")
