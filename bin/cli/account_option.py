"""The option that names an account: on an installation with one account, nobody needs to type its number."""

from typing import Final

import click

from bin.cli.option_types import ROW_ID
from bin.cli.output import Refused
from storage.accounts import accounts

account_option: Final = click.option(
    "--account", "account_id", type=ROW_ID, help="The account's id; default: the only account."
)


def account_or_only(account_id: int | None) -> int:
    """Return the id of an account that exists, by default of the only one. Raises NotFound, Refused."""
    if account_id is not None:
        return accounts.get_account(account_id).id
    found = accounts.list_page()
    if not found:
        raise Refused("There is no account. `account add` creates one.")
    if len(found) > 1:
        raise Refused(f"There are {len(found)} accounts; use --account. `account list` lists them.")
    return found[0].id
