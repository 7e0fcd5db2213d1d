"""The check of a user's grants, hand-written because every upload runs it twice and every poll of a handoff once."""

from typing import Final, NamedTuple

from schemas.base.principal import Role, TokenPrincipal
from storage.db.engine import rows


class GrantsInProject(NamedTuple):
    """Whether a user may submit data for a project or its reports, and whether the given report belongs to the project."""

    shop_domain: str | None
    has_project: bool
    has_some_report: bool
    is_report_in_project: bool
    has_report: bool


_IS_MINE: Final = f"g.user_id = ? AND (g.role IS NULL OR g.role <> '{Role.VIEWER.value}')"
_FIND: Final = f"""
SELECT p.shop_domain,
    EXISTS (SELECT 1 FROM grants g WHERE g.project_id = p.id AND {_IS_MINE}),
    EXISTS (SELECT 1 FROM grants g JOIN reports r ON r.id = g.report_id WHERE r.project_id = p.id AND {_IS_MINE}),
    EXISTS (SELECT 1 FROM reports r WHERE r.id = ? AND r.project_id = p.id),
    EXISTS (SELECT 1 FROM grants g WHERE g.report_id = ? AND {_IS_MINE})
FROM projects p WHERE p.id = ? AND p.account_id = ?"""  # noqa: S608 - our own names


def find(principal: TokenPrincipal, project_id: int, report_id: int | None) -> GrantsInProject | None:
    """Return the caller's grants in a project of the account; None if there is no such project."""
    user_id = principal.user_id
    parameters = (user_id, user_id, report_id, report_id, user_id, project_id, principal.account_id)
    found = rows(_FIND, parameters)
    return GrantsInProject(*found[0]) if found else None
