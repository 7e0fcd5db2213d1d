"""`account`: manage the owners of projects, targets and exports."""

from collections.abc import Sequence

import click

from bin.cli.installation import opened
from bin.cli.number_types import ROW_ID
from bin.cli.records import json_option, print_record, print_records
from runtime.clock import utc_now
from schemas.base.principal import OPERATOR
from service.operations import accounts as operations
from storage.accounts import accounts
from storage.accounts.account_limits import STORED, Usage, account_limits
from storage.accounts.accounts import Account


@click.group()
def account() -> None:
    """Manage accounts, which own projects, targets and exports."""


@account.command(epilog="Example: riskrelay account add 'Example Ltd'\n\nExit codes: 0 created, 1 refused, 2 wrong usage.")
@click.argument("name")
@click.option("--no-webhooks", is_flag=True, help="Do not allow generic_webhook targets.")
@json_option
def add(name: str, no_webhooks: bool, as_json: bool) -> None:
    """Create an account."""
    with opened():
        print_record(_record(operations.add_account(name, OPERATOR, may_use_webhooks=not no_webhooks)), as_json)


@account.command("list", epilog="Example: riskrelay account list --json\n\nExit codes: 0 listed, 2 wrong settings.")
@json_option
def list_accounts(as_json: bool) -> None:
    """List accounts.

    Shows how much each has stored, and the limits of MAX_FINDINGS_PER_ACCOUNT, MAX_WAITING_EXPORTS_PER_ACCOUNT,
    MAX_TARGETS_PER_ACCOUNT and MAX_UPLOADS_PER_DAY.
    """
    with opened() as settings:
        found = accounts.list_accounts()
        usage = account_limits(settings).usage([each.id for each in found], utc_now())
        records = [{**_record(each), **_stored(usage[each.id], as_json)} for each in found]
        columns = ("id", "name", "webhooks", *STORED.values())
        print_records(records, as_json, columns, "There are no accounts; create one with `account add`.")


def _stored(usage: Sequence[Usage], as_json: bool) -> dict[str, object]:
    """Return what an account uses of each limit: numbers in JSON, `3 of 1000` in a table."""
    return {
        STORED[each.limited]: {"used": each.used, "limit": each.limit} if as_json else f"{each.used} of {each.limit}"
        for each in usage
    }


@account.command(
    "set",
    epilog="Example: riskrelay account set 2 --webhooks off\n\nExit codes: 0 changed, 1 no such account, 2 wrong usage.",
)
@click.argument("account_id", type=ROW_ID)
@click.option(
    "--webhooks",
    type=click.Choice(["on", "off"]),
    required=True,
    help="off blocks the account's targets and what waits for them; after on, resume each target.",
)
@json_option
def set_account(account_id: int, webhooks: str, as_json: bool) -> None:
    """Allow or forbid an account's generic_webhook targets, from the next request on."""
    with opened():
        print_record(_record(operations.set_webhooks(account_id, webhooks == "on", OPERATOR)), as_json)


def _record(row: Account) -> dict[str, object]:
    return {"id": row.id, "name": row.name, "webhooks": row.may_use_webhooks}
