"""`/console/findings/trends`: trends of findings: unfixed ones by severity, changes per day, and time to fix."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.intake.scanner import SEVERITIES
from service.console import charts
from service.console.charts import Series, Stack
from service.console.choices import chosen_project, offered_projects
from service.console.layout import CONSOLE, ConsolePage
from service.console.pages.findings import PROJECT_IDS
from service.console.sessions import ConsoleUser
from service.http.paging import read_page
from storage.db import identifiers
from storage.reporting import finding_trends
from storage.reporting.finding_trends import Change

#: The possible lengths of a trend in days, including today.
DAYS: Final = ("7", "30", "90")
_DEFAULT_DAYS: Final = "30"
_CHANGES: Final = (Series("good", "fixed"), Series("high", "new"), Series("critical", "reopened"))
_COUNTED_CHANGES: Final = (Change.FIXED, Change.NEW, Change.REOPENED)


class FindingTrendsPage(ConsolePage):
    """Shows the trends of a project, or of the account."""

    path = f"{CONSOLE}/findings/trends"
    template = "finding_trends.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return charts and numbers. Raises ValidationFailed, NotFound for a project of another account."""
        filters = read_page(req, identifiers.FINDING, {"project_id": PROJECT_IDS, "days": frozenset(DAYS)}).filters
        days = filters.get("days", _DEFAULT_DAYS)
        project_id = int(filters["project_id"]) if "project_id" in filters else None
        visible = user.principal.projects_with(Ability.READ_FINDINGS)
        known = offered_projects(user, filters.get("project_id", ""), visible)
        if visible is not None and project_id is None:
            # The account's trends include all projects, so a user with roles in single projects sees those of one project.
            project_id = known[0].id
            filters = {**filters, "project_id": str(project_id)}
        if project_id is not None:
            chosen_project(known, project_id)
        today = utc_now().replace(hour=0, minute=0, second=0, microsecond=0)
        trend = finding_trends.read_trend(user.account_id, project_id, today - timedelta(days=int(days) - 1), int(days))
        changes = [Stack(day.at, tuple(day.changes.get(each, 0) for each in _COUNTED_CHANGES)) for day in trend.days]
        return {
            "filters": filters,
            "projects": known,
            "days": days,
            "all_days": DAYS,
            "unfixed": charts.severity_trend(trend.days),
            "by_severity": [(each, trend.days[-1].unfixed.get(each, 0)) for each in reversed(SEVERITIES)],
            "changes": charts.day_trend(changes, _CHANGES),
            "median_fix": trend.median_fix,
        }
