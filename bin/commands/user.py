"""`user`: manage the users of an account."""

from collections.abc import Callable
from typing import Any, Final

import click

from bin.cli.installation import opened
from bin.cli.number_types import ROW_ID
from bin.cli.records import Command, json_option, print_record, print_records
from schemas.base.email_address import is_email_address
from schemas.base.principal import OPERATOR, Role
from service.operations import accounts as operations
from storage.accounts import accounts
from storage.accounts.accounts import User

#: The value of `--role` for users without a role in the account.
_NONE: Final = "none"


@click.group()
def user() -> None:
    """Manage the users of an account."""


def _role_option(**options: Any) -> Callable[[Command], Command]:
    return click.option(
        "--role",
        type=click.Choice([*(role.value for role in Role), _NONE]),
        help="The user's role in the account; none: only the roles of grants count.",
        **options,
    )


def _email(_context: click.Context, _argument: click.Parameter, text: str) -> str:
    if not is_email_address(text):
        raise click.BadParameter("not an email address; use the form ada@example.com.")
    return text


@user.command(
    epilog="Example: riskrelay user add ada@example.com --account 1\n\nExit codes: 0 created, 1 refused, 2 wrong usage."
)
@click.argument("email", callback=_email)
@click.option("--account", "account_id", type=ROW_ID, required=True, help="The account's id.")
@_role_option(default=Role.OWNER.value, show_default=True)
@json_option
def add(email: str, account_id: int, role: str, as_json: bool) -> None:
    """Create a user in an account."""
    with opened():
        print_record(_record(operations.add_user(email, account_id, _role(role), OPERATOR)), as_json)


@user.command(
    "set",
    epilog="Example: riskrelay user set ada@example.com --role triager\n\nExit codes: 0 set, 1 no such user, 2 wrong usage.",
)
@click.argument("email")
@_role_option(required=True)
@json_option
def set_user(email: str, role: str, as_json: bool) -> None:
    """Set a user's role in the account, from the next request on."""
    with opened():
        print_record(_record(operations.set_role(email, _role(role), OPERATOR)), as_json)


@user.command("list", epilog="Example: riskrelay user list --json\n\nExit codes: 0 listed, 2 wrong settings.")
@json_option
def list_users(as_json: bool) -> None:
    """List users."""
    with opened():
        records = [_record(each) for each in reversed(accounts.list_users())]
        columns = ("id", "email", "account_id", "role", "state")
        print_records(records, as_json, columns, "There are no users; create one with `user add`.")


@user.command(
    epilog="Example: riskrelay user disable ada@example.com\n\nExit codes: 0 disabled, 1 no such user, 2 wrong usage."
)
@click.argument("email")
@json_option
def disable(email: str, as_json: bool) -> None:
    """Refuse a user's tokens and end the user's console sessions, from the next request on."""
    with opened():
        print_record(_record(operations.disable_user(email, OPERATOR)), as_json)


@user.command(
    epilog="Example: riskrelay user enable ada@example.com\n\nExit codes: 0 enabled, 1 no such user, 2 wrong usage."
)
@click.argument("email")
@json_option
def enable(email: str, as_json: bool) -> None:
    """Accept a disabled user's tokens again; the user must sign in to the console again."""
    with opened():
        print_record(_record(operations.enable_user(email, OPERATOR)), as_json)


@user.command(
    epilog="Example: riskrelay user remove ada@example.com\n\nExit codes: 0 removed, 1 no such user, 2 wrong usage."
)
@click.argument("email")
@json_option
def remove(email: str, as_json: bool) -> None:
    """Remove a user for good: erase the address, revoke tokens, end sessions, delete grants.

    Uploads and the audit log keep the user's id.
    """
    with opened():
        print_record(_record(operations.remove_user(email, OPERATOR)), as_json)


def _record(row: User) -> dict[str, object]:
    email = None if row.removed_at else row.email
    return {"id": row.id, "email": email, "account_id": row.account_id, "role": row.role, "state": row.state}


def _role(name: str) -> Role | None:
    return None if name == _NONE else Role(name)
