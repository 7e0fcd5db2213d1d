"""Use cases of projects: read them, and set how their findings become tickets."""

import re
from typing import Final

from runtime.clock import utc_now
from schemas.base.errors import NotFound
from schemas.base.principal import Actor, TokenPrincipal
from schemas.intake.grouping import TicketGrouping
from storage.accounts import projects
from storage.accounts.projects import Project

#: A larger number does not fit into the column.
_ID: Final = re.compile(r"[1-9][0-9]{0,8}")


def list_page(principal: TokenPrincipal, limit: int, before: int | None = None) -> list[Project]:
    """Return up to `limit` projects of the caller's account, the newest first, or those that follow the project `before`.

    A caller whose roles are in single projects sees these.
    """
    visible = None if principal.projects is None else tuple(principal.projects)
    return projects.list_page(principal.account_id, limit, before, visible)


def get(project_id: str, principal: TokenPrincipal) -> Project:
    """Return a project of the caller's account. Raises NotFound."""
    if _ID.fullmatch(project_id) is None:
        raise NotFound("There is no such project.")
    return projects.get_project(int(project_id), principal.account_id)


def set_ticket_grouping(project_id: int, grouping: TicketGrouping, actor: Actor) -> Project:
    """Set how new findings of a project of the caller's account become tickets. Raises NotFound."""
    return projects.set_ticket_grouping(project_id, actor.account_id, grouping, utc_now(), actor.key)
