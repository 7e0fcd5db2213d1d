"""Use cases of projects: read them, and set how their findings become tickets."""

from runtime.clock import utc_now
from schemas.base.principal import Actor
from schemas.intake.grouping import TicketGrouping
from storage.accounts import projects
from storage.accounts.projects import Project


def set_ticket_grouping(project_id: int, grouping: TicketGrouping, actor: Actor) -> Project:
    """Set how new findings of a project of the caller's account become tickets. Raises NotFound."""
    return projects.set_ticket_grouping(project_id, actor.account_id, grouping, utc_now(), actor.key)
