"""`report`: manage the reports of a project."""

import click

from bin.cli.installation import opened
from bin.cli.number_types import ROW_ID
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from storage.accounts import projects


@click.group()
def report() -> None:
    """Manage reports; a grant can be limited to one report of a project."""


@report.command(
    epilog="Example: riskrelay report add 'Spring audit' --project 1\n\nExit codes: 0 created, 1 refused, 2 wrong usage."
)
@click.argument("title")
@click.option("--project", "project_id", type=ROW_ID, required=True, help="The project's id.")
@json_option
def add(title: str, project_id: int, as_json: bool) -> None:
    """Create a report."""
    with opened():
        row = projects.add_report(title, project_id, utc_now())
        print_record({"id": row.id, "title": row.title, "project_id": project_id}, as_json)
