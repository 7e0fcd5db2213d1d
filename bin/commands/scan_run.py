"""`scan-run`: register scan runs before their postbacks arrive."""

import click

from bin.cli.installation import opened
from bin.cli.number_types import ROW_ID
from bin.cli.records import json_option, print_record
from schemas.base.principal import OPERATOR
from service.operations import projects as operations


@click.group("scan-run")
def scan_run() -> None:
    """Manage scan runs, which assign scanner results to a project."""


@scan_run.command(
    epilog="Example: riskrelay scan-run add --project 1 --id 42\n\nExit codes: 0 created, 1 refused, 2 wrong usage."
)
@click.option("--project", "project_id", type=ROW_ID, required=True, help="The project's id.")
@click.option("--id", "scan_run_id", type=click.IntRange(1, 2**63 - 1), help="The scanner's id; default: the next free one.")
@json_option
def add(project_id: int, scan_run_id: int | None, as_json: bool) -> None:
    """Register a scan run."""
    with opened():
        row = operations.add_scan_run(project_id, scan_run_id, OPERATOR)
        print_record({"id": row.id, "project_id": project_id, "status": row.status}, as_json)
