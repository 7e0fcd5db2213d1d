"""`project`, `scan-run` and `report`: the websites of an account, their scan runs, and reports of their findings."""

from pathlib import Path
from typing import Final

import click

from bin.cli.account_option import account_option, account_or_only
from bin.cli.database_command import with_database
from bin.cli.installation import opened
from bin.cli.option_types import ROW_ID, SCAN_RUN, Parsed
from bin.cli.private_files import write_private
from bin.cli.records import Record, RecordTable
from bin.cli.request_bodies import FieldText
from runtime.clock import utc_now
from schemas.accounts.forms import NewProjectForm
from schemas.api.administration import ProjectResponse
from schemas.api.response_fields import dump
from schemas.base.principal import OPERATOR
from schemas.base.shop_domain import normalized_shop_domain
from schemas.intake.grouping import TicketGrouping
from service.operations import finding_reports
from service.operations.accounts import projects as operations
from service.operations.finding_reports import ReportFormat
from storage.accounts import projects

PROJECTS: Final = RecordTable(
    ("id", "name", "account_id", "shop_domain", "ticket_grouping"), "There are no projects; create one with `project add`."
)

_NAME: Final = FieldText(NewProjectForm, "name")
_SHOP_DOMAIN: Final = Parsed(
    normalized_shop_domain, "not a valid shop domain; use the form shop.example, without scheme, port or path."
)

project: Final = click.Group("project")
scan_run: Final = click.Group("scan-run")
report: Final = click.Group("report")


@project.command("add")
@click.argument("name", type=_NAME)
@account_option
@click.option("--shop-domain", type=_SHOP_DOMAIN, help="The storefront's domain, if the project is a storefront.")
@click.option(
    "--ticket-grouping",
    type=click.Choice([each.value for each in TicketGrouping]),
    default=TicketGrouping.RULE.value,
    show_default=True,
    help="How findings become tickets: one ticket for each rule, or one for each finding.",
)
@with_database()
def add_project(name: str, account_id: int | None, shop_domain: str | None, ticket_grouping: str) -> Record:
    """Create a project.

    Example: riskrelay project add 'Shop'

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    grouping = TicketGrouping(ticket_grouping)
    made = operations.add(name, account_or_only(account_id), shop_domain, grouping, OPERATOR)
    return dump(ProjectResponse, made)


@project.command("set")
@click.argument("project_id", type=ROW_ID)
@click.option(
    "--ticket-grouping",
    type=click.Choice([each.value for each in TicketGrouping]),
    required=True,
    help="How findings become tickets: one ticket for each rule, or one for each finding. Existing tickets "
    "stay as they are.",
)
@with_database()
def set_project(project_id: int, ticket_grouping: str) -> Record:
    """Set how new findings of a project become tickets.

    Example: riskrelay project set 1 --ticket-grouping rule

    Exit codes: 0 set, 1 refused, 2 wrong usage.
    """
    changed = operations.set_ticket_grouping(project_id, TicketGrouping(ticket_grouping), OPERATOR)
    return dump(ProjectResponse, changed)


@project.command("list")
@with_database(PROJECTS.show)
def list_projects() -> list[Record]:
    """List projects.

    Example: riskrelay project list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong settings.
    """
    return [dump(ProjectResponse, each) for each in reversed(projects.list_page())]


@scan_run.command("add")
@click.option("--project", "project_id", type=ROW_ID, required=True, help="The project's id.")
@click.option("--id", "scan_run_id", type=SCAN_RUN, help="The scanner's number of the run; default: the next free number.")
@with_database()
def add_scan_run(project_id: int, scan_run_id: int | None) -> Record:
    """Register a scan run.

    Example: riskrelay scan-run add --project 1 --id 42

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    row = operations.add_scan_run(project_id, scan_run_id, OPERATOR)
    return {"id": row.id, "project_id": project_id, "status": row.status}


@report.command()
@click.option("--project", "project_id", type=ROW_ID, required=True, help="The project's id.")
@click.option(
    "--format",
    "wanted",
    type=click.Choice([each.value for each in ReportFormat]),
    required=True,
    help="The format of the report.",
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="The file to write to; default: standard output."
)
def write(project_id: int, wanted: str, output: Path | None) -> None:
    """Write all findings of a project to one file; `write` may be left out.

    HTML is one page to read or print, with the 5,000 most severe findings. CSV and JSON have all findings. SARIF has those
    that are open or snoozed, for GitHub code scanning. FILE is replaced atomically, with mode 0600.

    Example: riskrelay report --project 1 --format html --output report.html

    Exit codes: 0 written, 1 no such project or write failed, 2 wrong usage.
    """
    with opened():
        parts = finding_reports.report(projects.get_project(project_id), ReportFormat(wanted), utc_now())
        write_private(output, parts)


@report.command("add")
@click.argument("title", type=_NAME)
@click.option("--project", "project_id", type=ROW_ID, required=True, help="The project's id.")
@with_database()
def add_report(title: str, project_id: int) -> Record:
    """Create a report.

    Example: riskrelay report add 'Spring audit' --project 1

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    row = operations.add_report(title, project_id, OPERATOR)
    return {"id": row.id, "title": row.title, "project_id": project_id}
