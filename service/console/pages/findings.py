"""`/console/findings`: scanner findings on the account's websites, with their exports, and how they become tickets."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import falcon

from schemas.base.errors import Forbidden
from schemas.base.principal import Ability
from schemas.content_policy.checked_form import read_checked
from schemas.intake.grouping import ProjectForm, TicketGrouping
from schemas.intake.scanner import SEVERITIES
from service.console.layout import CONSOLE, Action, ConsolePage, Redirect, list_content
from service.console.sessions import ConsoleUser
from service.http.paging import read_page
from service.operations import projects
from storage.db import identifiers
from storage.intake import findings
from storage.intake.findings import ScannedProject

#: Entries of the drop-down; the page of any other project is reachable by its number in the URL.
MOST_PROJECTS: Final = 200

#: What tickets are, by the grouping of their project.
GROUPINGS: Final[Mapping[str, str]] = {
    TicketGrouping.RULE.value: "one for each rule",
    TicketGrouping.FINDING.value: "one for each finding",
}

#: Whole numbers that fit a database's integer column.
_PROJECT_ID: Final = re.compile(r"[1-9][0-9]{0,8}")


class _ProjectIds(frozenset[str]):
    """Contains every text that is well-formed as a project's id."""

    def __contains__(self, text: object) -> bool:
        return _PROJECT_ID.fullmatch(str(text)) is not None


_FILTERS: Final = {"project": _ProjectIds(), "severity": SEVERITIES}


class FindingsPage(ConsolePage):
    """Lists the findings of one project, newest first; the default is the project with the newest finding."""

    path = f"{CONSOLE}/findings"
    template = "findings.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the findings. Raises NotFound for a project of another account."""
        page = read_page(req, identifiers.FINDING, _FILTERS)
        known = findings.scanned_projects(user.account_id, MOST_PROJECTS)
        project = _choose(page.filters.get("project"), known, user.account_id)
        if project is not None:
            # The next page must show the same project, even if another one is scanned meanwhile.
            page = replace(page, filters={**page.filters, "project": str(project.id)})
        severity = page.filters.get("severity")
        found = [] if project is None else findings.list_page(project.id, page.fetch_limit, page.before, severity)
        return {
            **list_content(page, found),
            "project": project,
            "projects": known if project is None or project in known else [*known, project],
            "severity": severity,
            "severities": SEVERITIES,
            "groupings": GROUPINGS,
            "may_group": Ability.MANAGE_ACCOUNT in user.principal.abilities,
        }


class SetTicketGrouping(Action):
    """Sets how the new findings of a project become tickets."""

    path = f"{CONSOLE}/projects/{{project_id}}/grouping"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Set the grouping. Raises Forbidden without the ability `account:manage`, NotFound, ValidationFailed."""
        if Ability.MANAGE_ACCOUNT not in user.principal.abilities:
            raise Forbidden(f"This needs the ability {Ability.MANAGE_ACCOUNT}, which the token of this session lacks.")
        project = projects.get(ids["project_id"], user.principal)
        grouping = read_checked(ProjectForm(), {"ticket_grouping": form.get("ticket_grouping", "")})
        projects.set_ticket_grouping(project.id, grouping, user.principal)
        return Redirect(f"/findings?project={project.id}", "grouping_set")


def _choose(project_id: str | None, known: list[ScannedProject], account_id: int) -> ScannedProject | None:
    """Return the project to show, or None if the account has none."""
    if project_id is None:
        return max(known, key=lambda project: (project.newest_finding_id or "", project.id), default=None)
    among = [project for project in known if project.id == int(project_id)]
    return among[0] if among else findings.scanned_project(int(project_id), account_id)
