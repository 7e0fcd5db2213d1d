"""`grant`: allow users to manage a project or report."""

import click

from bin.cli.installation import opened
from bin.cli.number_types import ROW_ID
from bin.cli.records import json_option, print_record, print_records
from schemas.base.errors import NotFound
from schemas.base.principal import OPERATOR, PROJECT_ROLES, Role
from service.operations import accounts as operations
from storage.accounts import accounts, grants
from storage.accounts.grants import UserGrant


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
@click.option(
    "--role",
    type=click.Choice([role.value for role in PROJECT_ROLES]),
    help="What a user without a role in the account may do in the project.",
)
@json_option
def add(email: str, project_id: int | None, report_id: int | None, role: str | None, as_json: bool) -> None:
    """Allow a user to manage a project, or one report of it."""
    if role is not None and project_id is None:
        raise click.UsageError("--role needs --project.")
    with opened():
        if (project_id is None) == (report_id is None):
            raise click.UsageError("Use either --project or --report.")
        row = operations.add_grant(email, project_id, report_id, None if role is None else Role(role), OPERATOR)
        record = {"id": row.id, "user": email, "project_id": project_id, "report_id": report_id, "role": row.role}
        print_record(record, as_json)


@grant.command(
    "list",
    epilog="Example: riskrelay grant list --user ada@example.com --json\n\n"
    "Exit codes: 0 listed, 1 no such user, 2 wrong usage.",
)
@click.option("--user", "email", help="Only grants of this user.")
@json_option
def list_grants(email: str | None, as_json: bool) -> None:
    """List grants."""
    with opened():
        if email is not None:
            accounts.user_by_email(email)
        records = [_record(each) for each in grants.list_all(email)]
        columns = ("id", "user", "user_state", "project_id", "report_id", "role")
        print_records(records, as_json, columns, "There are no grants; create one with `grant add`.")


@grant.command(
    epilog="""\b
Examples:
  riskrelay grant remove 3
  riskrelay grant remove --user ada@example.com --project 1

\b
Exit codes: 0 removed, 1 no such grant or user, 2 wrong usage."""
)
@click.argument("grant_id", type=ROW_ID, required=False)
@click.option("--user", "email", help="The user's email, with --project or --report, instead of an id.")
@click.option("--project", "project_id", type=ROW_ID, help="The project's id.")
@click.option("--report", "report_id", type=ROW_ID, help="The report's id.")
@json_option
def remove(grant_id: int | None, email: str | None, project_id: int | None, report_id: int | None, as_json: bool) -> None:
    """Withdraw a grant, from the next upload on."""
    scope = (project_id, report_id)
    if (grant_id is None) == (email is None) or (scope.count(None) == 1) != (email is not None):
        raise click.UsageError("Use either a grant id, or --user with --project or --report.")
    with opened():
        print_record(_record(operations.remove_grant(grant_id or _find(str(email), scope), OPERATOR)), as_json)


def _find(email: str, scope: tuple[int | None, int | None]) -> int:
    accounts.user_by_email(email)
    for each in grants.list_all(email):
        if (each.project_id, each.report_id) == scope:
            return each.id
    raise NotFound("This user has no such grant; see `bin/riskrelay grant list`.")


def _record(row: UserGrant) -> dict[str, object]:
    state = "disabled" if row.is_disabled else "active"
    return {
        "id": row.id,
        "user": row.user,
        "user_state": state,
        "project_id": row.project_id,
        "report_id": row.report_id,
        "role": row.role,
    }
