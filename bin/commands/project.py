"""`project`: manage the websites of an account."""

from dataclasses import asdict

import click

from bin.cli.installation import opened
from bin.cli.number_types import ROW_ID
from bin.cli.records import json_option, print_record, print_records
from schemas.base.principal import OPERATOR
from schemas.base.shop_domain import normalised_shop_domain
from schemas.base.timestamps import rfc3339
from schemas.intake.grouping import TicketGrouping
from service.operations import projects as operations
from storage.accounts import projects
from storage.accounts.projects import Project


def _shop_domain(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Normalise the domain; exit with code 2 if it is invalid."""
    domain = None if text is None else normalised_shop_domain(text)
    if domain is None and text is not None:
        raise click.BadParameter("not a valid shop domain; use the form shop.example, without scheme, port or path.")
    return domain


@click.group()
def project() -> None:
    """Manage projects, the websites of an account."""


@project.command(
    epilog="Example: riskrelay project add 'Shop' --account 1\n\nExit codes: 0 created, 1 refused, 2 wrong usage."
)
@click.argument("name")
@click.option("--account", "account_id", type=ROW_ID, required=True, help="The account's id.")
@click.option("--shop-domain", callback=_shop_domain, help="The storefront's domain, if the project is a storefront.")
@click.option(
    "--ticket-grouping",
    type=click.Choice([each.value for each in TicketGrouping]),
    default=TicketGrouping.RULE.value,
    show_default=True,
    help="One ticket for each rule, or one for each finding.",
)
@json_option
def add(name: str, account_id: int, shop_domain: str | None, ticket_grouping: str, as_json: bool) -> None:
    """Create a project."""
    with opened():
        grouping = TicketGrouping(ticket_grouping)
        print_record(_record(operations.add(name, account_id, shop_domain, grouping, OPERATOR)), as_json)


@project.command(
    "set",
    epilog="Example: riskrelay project set 1 --ticket-grouping rule\n\nExit codes: 0 set, 1 refused, 2 wrong usage.",
)
@click.argument("project_id", type=ROW_ID)
@click.option(
    "--ticket-grouping",
    type=click.Choice([each.value for each in TicketGrouping]),
    required=True,
    help="One ticket for each rule, or one for each finding; existing tickets stay as they are.",
)
@json_option
def set_project(project_id: int, ticket_grouping: str, as_json: bool) -> None:
    """Set how new findings of a project become tickets."""
    with opened():
        project_ = operations.set_ticket_grouping(project_id, TicketGrouping(ticket_grouping), OPERATOR)
        print_record(_record(project_), as_json)


@project.command("list", epilog="Example: riskrelay project list --json\n\nExit codes: 0 listed, 2 wrong settings.")
@json_option
def list_projects(as_json: bool) -> None:
    """List projects."""
    with opened():
        records = [_record(each) for each in projects.list_projects()]
        columns = ("id", "name", "account_id", "shop_domain", "ticket_grouping")
        print_records(records, as_json, columns, "There are no projects; create one with `project add`.")


def _record(row: Project) -> dict[str, object]:
    return {**asdict(row), "created_at": rfc3339(row.created_at)}
