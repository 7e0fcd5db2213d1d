"""What users reach whose roles are in single projects: records of those projects; all else is as if it did not exist."""

from collections.abc import Callable, Mapping
from typing import Final

from schemas.base.errors import ExportNotFound, Forbidden, NotFound
from schemas.base.principal import ROLE_ABILITIES, Ability, TokenPrincipal
from storage.exports import queries
from storage.intake import finding_list


def _of_export(export_id: str) -> int | None:
    return queries.projects_of([export_id]).get(export_id)


def _named(project_id: str) -> int | None:
    return int(project_id) if project_id.isascii() and project_id.isdecimal() else None


#: The project of the record that a route's parameter names.
_PROJECT_OF: Final[Mapping[str, Callable[[str], int | None]]] = {
    "export_id": _of_export,
    "finding_id": finding_list.project_of,
    "project_id": _named,
}


def require_project_role(
    principal: TokenPrincipal, ability: Ability | None, ids: Mapping[str, str], *, of_projects: bool
) -> None:
    """Raise unless a role of the caller gives `ability` for the record that a route names; a role in the account does.

    `of_projects` says that the route is for such callers at all: its responder shows no other project's records.
    Raises NotFound for a record of a project without a role, Forbidden for a role that lacks the ability.
    """
    roles = principal.projects
    if roles is None:
        return
    if not of_projects:
        raise Forbidden("This needs a role in the whole account; your roles are in single projects.")
    for name, value in ids.items():
        if name not in _PROJECT_OF:
            continue
        project_id = _PROJECT_OF[name](value)
        if project_id is None or project_id not in roles:
            raise ExportNotFound if name == "export_id" else NotFound
        if ability is not None and ability not in ROLE_ABILITIES[roles[project_id]]:
            raise Forbidden(f"Your role in this project, {roles[project_id].value}, does not allow this.")
