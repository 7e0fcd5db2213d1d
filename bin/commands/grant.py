"""`grant`: allow users to manage a project or report."""

import click

from bin.cli.installation import opened
from bin.cli.number_types import ROW_ID
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from storage.accounts import accounts


@click.group()
def grant() -> None:
    """Manage grants, which allow a user to manage a project or one report."""


@grant.command(
    epilog="Example: riskrelay grant add --user ada@example.com --project 1\n\n"
    "Exit codes: 0 created, 1 refused, 2 wrong usage."
)
@click.option("--user", "email", required=True, help="The user's email.")
@click.option("--project", "project_id", type=ROW_ID, help="The project's id.")
@click.option("--report", "report_id", type=ROW_ID, help="The report's id.")
@json_option
def add(email: str, project_id: int | None, report_id: int | None, as_json: bool) -> None:
    """Allow a user to manage a project, or one report of it."""
    with opened():
        if project_id is not None and report_id is None:
            row = accounts.grant_project(email, project_id, utc_now())
        elif report_id is not None and project_id is None:
            row = accounts.grant_report(email, report_id, utc_now())
        else:
            raise click.UsageError("Use either --project or --report.")
        print_record({"id": row.id, "user": email, "project_id": project_id, "report_id": report_id}, as_json)
