"""`/console/findings`: the findings of scans on the account's websites, with filters, and each finding with its history.

Filtered by a rule or by a web page, the list serves as the page of that rule or web page, with its findings by state. The
grouping of a project's tickets is also set here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final
from urllib.parse import urlencode

import falcon

from runtime.clock import utc_now
from schemas.accounts.forms import ProjectChangeForm
from schemas.base.checkpoint import Checkpoint
from schemas.base.errors import NotFound
from schemas.base.principal import Ability
from schemas.content_policy.checked_form import read_checked
from schemas.findings.life_cycle import FindingState
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import SEVERITIES
from schemas.triage.export_filter import PROJECT_ID, join_values
from schemas.triage.finding_filter import FINDING_FILTERS, FindingQuery, finding_query_from
from service.api.findings import MAX_RUNS
from service.console import charts
from service.console.charts import Series, Stack
from service.console.choices import chosen_project, offered_projects
from service.console.form_fields import Fields
from service.console.layout import CONSOLE, Action, ConsolePage, PageLayout, Redirect, list_content
from service.console.sessions import ConsoleUser
from service.console.untrusted_text import safe_link
from service.console.wording import bounded
from service.http.limits.large_body_limiter import LARGE_BYTES, LargeBodyQueue
from service.http.paging import Matching, read_page
from service.operations import finding_reports
from service.operations.accounts import projects
from service.operations.finding_reports import MEDIA_TYPES, ReportFormat
from storage.accounts import projects as stored_projects
from storage.accounts.projects import Project
from storage.db import engine, identifiers
from storage.intake import finding_history, finding_list
from storage.intake.finding_list import MAX_COUNTED, Finding
from storage.reporting import finding_trends
from storage.reporting.finding_trends import Change

#: Maximum number of findings in a CSV or JSON download, for which a browser waits a few seconds.
MAX_DOWNLOADED: Final = 25_000
#: Maximum size of a download in memory, in bytes; a larger one is written to a file.
MAX_IN_MEMORY: Final = 1 << 20

#: Descriptions of a project's ticket grouping.
GROUPINGS: Final[Mapping[str, str]] = {
    TicketGrouping.RULE.value: "one for each rule",
    TicketGrouping.FINDING.value: "one for each finding",
}


_PROJECT_IDS: Final = Matching(PROJECT_ID.fullmatch)
#: Accepts any text, because the form of the filters validates it.
_TEXTS: Final = Matching(lambda _: True)
_DIGESTS: Final = Matching(re.compile("[0-9a-f]{32}").fullmatch)
_FILTERS: Final = {**dict.fromkeys(FINDING_FILTERS, _TEXTS), "page": _DIGESTS}
#: The possible lengths of a trend in days, including today.
_DAYS: Final = ("7", "30", "90")
_DEFAULT_DAYS: Final = "30"
_CHANGES: Final = (Series("good", "fixed"), Series("high", "new"), Series("critical", "reopened"))
_COUNTED_CHANGES: Final = (Change.FIXED, Change.NEW, Change.REOPENED)


class FindingsPage(ConsolePage):
    """Lists findings, newest first."""

    path = f"{CONSOLE}/findings"
    template = "findings.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the findings. Raises ValidationFailed, NotFound for a project of another account."""
        page, now = read_page(req, identifiers.FINDING, _FILTERS), utc_now()
        query = _query(page.filters, user)
        found = finding_list.list_page(query, now, page.fetch_limit, page.before)
        known = offered_projects(user, ",".join(map(str, query.project_ids)), query.visible_projects)
        project = _chosen(query, known)
        of_page = page.filters.get("page")
        return {
            **list_content(page, found),
            "project": project,
            "projects": known,
            "project_names": {each.id: each.name for each in known},
            "severities": tuple(reversed(SEVERITIES)),
            "states": [each.value for each in FindingState],
            "formats": [each.value for each in ReportFormat],
            "groupings": GROUPINGS,
            "may_group": Ability.MANAGE_ACCOUNT in user.principal.abilities & user.principal.role_abilities,
            "rule": query.rules[0] if len(query.rules) == 1 else None,
            "page_url": found[0].url if of_page and found else None,
            "counts": _counts(query, page.filters) if query.rules or of_page else (),
            "page_query": page_query,
            "rule_query": rule_query,
        }


class FindingPage(ConsolePage):
    """Shows one finding with its history over scan runs."""

    path = f"{CONSOLE}/findings/{{finding_id}}"
    template = "finding.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the finding, its project and its history. Raises NotFound."""
        finding = finding_list.get(ids["finding_id"], user.account_id, utc_now())
        runs = finding_history.list_runs(finding.id, MAX_RUNS + 1)
        return {
            "finding": finding,
            "project": stored_projects.get_project(finding.project_id, user.account_id),
            "link": safe_link(finding.url),
            "runs": runs[:MAX_RUNS],
            "most_runs": MAX_RUNS if len(runs) > MAX_RUNS else None,
            "page_query": page_query,
            "rule_query": rule_query,
        }


class FindingTrendsPage(ConsolePage):
    """Shows the trends of a project, or of the account."""

    path = f"{CONSOLE}/findings/trends"
    template = "finding_trends.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return charts and numbers. Raises ValidationFailed, NotFound for a project of another account."""
        filters = read_page(req, identifiers.FINDING, {"project_id": _PROJECT_IDS, "days": frozenset(_DAYS)}).filters
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
            "all_days": _DAYS,
            "unfixed": charts.severity_trend(trend.days),
            "by_severity": [(each, trend.days[-1].unfixed.get(each, 0)) for each in reversed(SEVERITIES)],
            "changes": charts.day_trend(changes, _CHANGES),
            "median_fix": trend.median_fix,
        }


class FindingReport(ConsolePage):
    """Downloads the report of a project's findings that the command `report` writes."""

    path = f"{CONSOLE}/projects/{{project_id}}/report/{{report_format}}"

    def __init__(self, layout: PageLayout) -> None:
        super().__init__(layout)
        self._queue = LargeBodyQueue()

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Respond with the file. Raises NotFound, ValidationFailed for too many findings, LargeBodyOverload."""
        user = self._reader(req, resp, ids)
        project = projects.get(ids["project_id"], user.principal)
        if ids["report_format"] not in {*ReportFormat}:
            raise NotFound("There is no such format.")
        report_format = ReportFormat(ids["report_format"])
        # One report is written at a time, and yields to other requests. While this one waits, other requests may use the
        # connection.
        engine.release()
        with self._queue.slot(str(user.account_id), LARGE_BYTES + 1) as yield_to_others:
            file = _written(finding_reports.report(project, report_format, utc_now(), MAX_DOWNLOADED), yield_to_others)
        length = file.tell()
        file.seek(0)
        resp.content_type = MEDIA_TYPES[report_format]
        resp.downloadable_as = f"findings-{project.id}.{report_format}"
        resp.set_stream(file, length)


class SetTicketGrouping(Action):
    """Sets how the new findings of a project become tickets."""

    path = f"{CONSOLE}/projects/{{project_id}}/grouping"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Set the grouping. Raises NotFound, ValidationFailed."""
        project = projects.get(ids["project_id"], user.principal)
        change = read_checked(ProjectChangeForm(), {"ticket_grouping": form.get("ticket_grouping", "")})
        projects.set_ticket_grouping(project.id, TicketGrouping(change["ticket_grouping"]), user.principal)
        return Redirect(f"/findings?project_id={project.id}", "grouping_set")


def _written(parts: Iterable[str], checkpoint: Checkpoint) -> IO[bytes]:
    """Return a file with the text.

    The file is complete before the response begins, so a failure gives an error page, not half a file.
    """
    # The server closes it.
    file = SpooledTemporaryFile(MAX_IN_MEMORY)  # noqa: SIM115 - see above
    for part in parts:
        file.write(part.encode())
        checkpoint()
    return file


def page_query(finding: Finding) -> str:
    """Return the query string of the list of all findings on the finding's page."""
    return urlencode({"project_id": finding.project_id, "page": finding.page_digest})


def rule_query(finding: Finding, project_ids: str | None = None) -> str | None:
    """Return the query string of the list of a rule's findings, in the given projects; None for a finding without a rule."""
    chosen = {"project_id": project_ids} if project_ids else {}
    return urlencode({**chosen, "rule": join_values([finding.rule])}) if finding.rule else None


def _query(filters: Mapping[str, str], user: ConsoleUser) -> FindingQuery:
    visible = user.principal.projects_with(Ability.READ_FINDINGS)
    query = replace(finding_query_from(filters, user.account_id), visible_projects=visible)
    return replace(query, pages=(filters["page"],)) if "page" in filters else query


def _counts(query: FindingQuery, filters: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return each state with the number of its findings and the query string of their list."""
    counted = finding_list.count_by_state(query, utc_now())
    return [(each.value, bounded(counted[each], MAX_COUNTED), urlencode({**filters, "state": each})) for each in counted]


def _chosen(query: FindingQuery, known: Sequence[Project]) -> Project | None:
    """Return the project by which the list is filtered, or the account's only project; otherwise None. Raises NotFound."""
    if len(query.project_ids) == 1:
        return chosen_project(known, query.project_ids[0])
    return known[0] if len(known) == 1 and not query.project_ids else None
