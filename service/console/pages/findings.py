"""`/console/findings`: what scanners found on an account's websites, and the tickets it became."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import falcon

from schemas.intake.scanner import SEVERITIES
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE, Page
from service.console.sessions import Visitor
from service.http.paging import next_page, read_page
from storage.db import identifiers
from storage.intake import findings
from storage.intake.findings import ScannedProject

#: More than this nobody looks through in a drop-down; a project that is not in it is reached by its number in the URL.
MOST_PROJECTS: Final = 200

#: Whole numbers that a database takes for an id.
_ID: Final = re.compile(r"[1-9][0-9]{0,8}")


class _Numbers(frozenset[str]):
    """Every text that is the id of a project in form."""

    def __contains__(self, text: object) -> bool:
        return _ID.fullmatch(str(text)) is not None


_FILTERS: Final = {"project": _Numbers(), "severity": SEVERITIES}


class Findings(Page):
    """Lists the findings of one project, the newest first: of the one with the newest finding, unless one is named."""

    path = f"{CONSOLE}/findings"
    template = "findings.html"
    family = RouteFamily.CONSOLE

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return a page of the list, and the filters that lead to it. Raises NotFound."""
        page = read_page(req, identifiers.FINDING, _FILTERS)
        known = findings.scanned_projects(visitor.account_id, MOST_PROJECTS)
        project = _chosen(page.filters.get("project"), known, visitor.account_id)
        if project is not None:
            # The next page is of this project, whichever is scanned meanwhile.
            page = replace(page, filters={**page.filters, "project": str(project.id)})
        severity = page.filters.get("severity")
        found = [] if project is None else findings.list_page(project.id, page.fetch_limit, page.before, severity)
        return {
            "shown": found[: page.limit],
            "project": project,
            "projects": known if project is None or project in known else [*known, project],
            "filters": page.filters,
            "severity": severity,
            "severities": SEVERITIES,
            "next": next_page(page, [finding.id for finding in found]),
            "is_first": page.before is None,
        }


def _chosen(asked: str | None, known: list[ScannedProject], account_id: int) -> ScannedProject | None:
    """Return the project whose findings are shown; None where the account has no project."""
    if asked is None:
        return max(known, key=lambda project: (project.newest_finding_id or "", project.id), default=None)
    among = [project for project in known if project.id == int(asked)]
    return among[0] if among else findings.scanned_project(int(asked), account_id)
