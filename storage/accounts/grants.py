"""Who may hand something in for a project or a report: whoever was granted the project, or exactly that report.

What is not there, what belongs to another account and what was not granted look the same from outside.
"""

from dataclasses import dataclass
from typing import Final

from schemas.base.errors import Forbidden, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import TokenPrincipal
from storage.db.engine import rows

# The account stands in every part, so that nothing of another account is ever seen. A report that is not the account's
# has no project here.
_STANDING: Final = """
SELECT p.shop_domain,
    EXISTS (SELECT 1 FROM grants g WHERE g.user_id = ? AND g.project_id = p.id),
    EXISTS (SELECT 1 FROM grants g WHERE g.user_id = ? AND g.report_id = ?),
    (SELECT r.project_id FROM reports r JOIN projects q ON q.id = r.project_id
        WHERE r.id = ? AND q.account_id = p.account_id)
FROM projects p WHERE p.id = ? AND p.account_id = ?"""


@dataclass(frozen=True, slots=True)
class ManagedProject:
    """A project that the caller may hand something in for; its shop's domain as an operator set it."""

    id: int
    account_id: int
    shop_domain: str | None


def manageable(principal: TokenPrincipal, project_id: int, report_id: int | None) -> ManagedProject:
    """Return the project, which the caller may manage as a whole or by a grant on the report alone.

    Raises Forbidden, and ValidationFailed on `/report_id` where a managed project has no such report but the account has.
    """
    found = rows(_STANDING, (principal.user_id, principal.user_id, report_id, report_id, project_id, principal.account_id))
    if not found:
        raise _refusal()
    shop_domain, has_project, has_report, reports_project_id = found[0]
    if report_id is not None and reports_project_id != project_id:
        if reports_project_id is None or not has_project:
            raise _refusal()
        raise ValidationFailed(problem("/report_id", "report_not_in_project"))
    if not (has_project or has_report):
        raise _refusal()
    return ManagedProject(project_id, principal.account_id, shop_domain)


def _refusal() -> Forbidden:
    return Forbidden("The token's user may not manage this project or report.")
