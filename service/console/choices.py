"""The projects and targets that a form or a filter offers: the newest ones, and the chosen one, even if it is older."""

from collections.abc import Collection, Sequence
from typing import Final

from schemas.base.errors import NotFound
from schemas.triage.export_filter import PROJECT_ID
from service.console.sessions import ConsoleUser
from storage.accounts import projects
from storage.accounts.projects import Project
from storage.targets import summaries
from storage.targets.summaries import TargetSummary

#: Maximum number of entries in a drop-down; nobody reads a longer one. Any other project can be chosen by its number in the
#: URL.
MAX_PROJECTS: Final = 200
MAX_TARGETS: Final = 200


def offered_projects(user: ConsoleUser, chosen: str = "", visible: Collection[int] | None = None) -> list[Project]:
    """Return the account's projects to choose from; only those in `visible` if that is given.

    `chosen` is a project's number as text. The form must offer it, because without it the form would be sent for any
    project.
    """
    newest = projects.list_page(user.account_id, MAX_PROJECTS, visible=visible)
    if PROJECT_ID.fullmatch(chosen) is None or chosen in {str(each.id) for each in newest}:
        return newest
    is_visible = visible is None or int(chosen) in visible
    return [*newest, *(projects.list_page(user.account_id, 1, visible=[int(chosen)]) if is_visible else ())]


def chosen_project(offered: Sequence[Project], project_id: int) -> Project:
    """Return the offered project with this id. Raises NotFound."""
    found = [each for each in offered if each.id == project_id]
    if not found:
        raise NotFound("There is no such project.")
    return found[0]


def offered_targets(user: ConsoleUser, chosen_id: str = "") -> list[TargetSummary]:
    """Return the account's targets to choose from, including the chosen one, which may have been removed."""
    newest = summaries.list_page(user.account_id, MAX_TARGETS)
    missing = [chosen_id] if chosen_id and chosen_id not in {each.id for each in newest} else []
    return [*newest, *summaries.by_id(missing, user.account_id).values()]
