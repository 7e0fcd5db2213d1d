"""`report`: write a report of a project's findings, and manage the reports to which grants can be limited."""

import sys
from functools import partial
from pathlib import Path

import click

from bin.cli.installation import opened
from bin.cli.number_types import ROW_ID
from bin.cli.output import echo
from bin.cli.private_files import write_private
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from service.operations import finding_reports
from service.operations.finding_reports import ReportFormat
from storage.accounts import projects


@click.group()
def report() -> None:
    """Write a report of a project's findings; manage reports, to one of which a grant can be limited."""


@report.command(
    epilog="Example: riskrelay report --project 1 --format html --output report.html\n\n"
    "Exit codes: 0 written, 1 no such project or write failed, 2 wrong usage."
)
@click.option("--project", "project_id", type=ROW_ID, required=True, help="The project's id.")
@click.option(
    "--format",
    "wanted",
    type=click.Choice([each.value for each in ReportFormat]),
    required=True,
    help="The form of the report.",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="The file; default: standard output.")
def write(project_id: int, wanted: str, output: Path | None) -> None:
    """Write all findings of a project to one file; `write` may be left out.

    HTML is one page to read or print, with the 5,000 most severe findings. CSV and JSON have all findings. SARIF has those
    that are open, for GitHub code scanning. FILE is replaced atomically, with mode 0600.
    """
    with opened():
        parts = finding_reports.report(projects.get_project(project_id), ReportFormat(wanted), utc_now())
        if output is not None:
            write_private(output, parts)
            return
        # Escapes would change a file, but third-party text must not control a terminal.
        write_out = partial(echo, nl=False) if sys.stdout.isatty() else _write_bytes
        for part in parts:
            write_out(part)


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


def _write_bytes(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
