"""`account`, `user` and `grant`: the owners of projects, targets and exports, their users, and the rights of users."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from bin.cli.account_option import account_option, account_or_only
from bin.cli.database_command import with_database
from bin.cli.option_types import ROW_ID, Parsed, require_one
from bin.cli.records import Command, Record, RecordTable
from bin.cli.request_bodies import FieldText
from runtime.clock import utc_now
from schemas.accounts.forms import AccountForm
from schemas.base.email_address import is_email_address
from schemas.base.errors import NotFound
from schemas.base.principal import OPERATOR, PROJECT_ROLES, Role
from service.operations.accounts import accounts as operations
from storage.accounts import accounts, grants
from storage.accounts.account_limits import STORED, AccountLimits, Usage, account_limits
from storage.accounts.accounts import Account, User
from storage.accounts.grants import Grant

ACCOUNTS: Final = RecordTable(
    ("id", "name", "webhooks", *STORED.values()), "There are no accounts; create one with `account add`."
)
USERS: Final = RecordTable(("id", "email", "account_id", "role", "state"), "There are no users; create one with `user add`.")
GRANTS: Final = RecordTable(
    ("id", "user", "user_state", "project_id", "report_id", "role"), "There are no grants; create one with `grant add`."
)

#: The value of `--role` for users without a role in the account.
_NONE: Final = "none"


def show_accounts(records: Sequence[Record], as_json: bool) -> None:
    """Print accounts; in a table, how much each has stored is a text such as `3 of 1000`."""
    rows = [
        {**each, **{name: f"{each[name]['used']} of {each[name]['limit']}" for name in STORED.values()}} for each in records
    ]
    ACCOUNTS.show(records if as_json else rows, as_json)


account: Final = click.Group("account")
user: Final = click.Group("user")
grant: Final = click.Group("grant")


@account.command("add")
@click.argument("name", type=FieldText(AccountForm, "name"))
@click.option("--no-webhooks", is_flag=True, help="Forbid targets: webhooks and trackers.")
@with_database()
def add_account(name: str, no_webhooks: bool) -> Record:
    """Create an account.

    Example: riskrelay account add 'Example Ltd'

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    return _account_record(operations.add_account(name, OPERATOR, may_use_webhooks=not no_webhooks))


@account.command("list")
@with_database(show_accounts, account_limits)
def list_accounts(limits: AccountLimits) -> list[Record]:
    """List accounts.

    Shows how much each has stored, and the limits of MAX_FINDINGS_PER_ACCOUNT, MAX_WAITING_EXPORTS_PER_ACCOUNT,
    MAX_TARGETS_PER_ACCOUNT and MAX_UPLOADS_PER_DAY.

    Example: riskrelay account list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong settings.
    """
    found = accounts.list_page()[::-1]
    usage = limits.usage([each.id for each in found], utc_now())
    return [{**_account_record(each), **_stored(usage[each.id])} for each in found]


def _stored(usage: Sequence[Usage]) -> dict[str, object]:
    """Return how much of each limit an account uses."""
    return {STORED[each.limited]: {"used": each.used, "limit": each.limit} for each in usage}


@account.command("set")
@click.argument("account_id", type=ROW_ID)
@click.option(
    "--webhooks",
    type=click.Choice(["on", "off"]),
    required=True,
    help="off blocks the account's targets and their waiting exports; after on, resume each target.",
)
@with_database()
def set_account(account_id: int, webhooks: str) -> Record:
    """Allow or forbid an account's targets, webhooks and trackers, from the next request on.

    Example: riskrelay account set 2 --webhooks off

    Exit codes: 0 changed, 1 no such account, 2 wrong usage.
    """
    return _account_record(operations.set_webhooks(account_id, webhooks == "on", OPERATOR))


def _account_record(row: Account) -> dict[str, object]:
    return {"id": row.id, "name": row.name, "webhooks": row.may_use_webhooks}


def _role_option(**options: Any) -> Callable[[Command], Command]:
    return click.option(
        "--role",
        type=click.Choice([*(role.value for role in Role), _NONE]),
        help="The user's role in the account; none: only the roles of grants count.",
        **options,
    )


_EMAIL: Final = Parsed(
    lambda text: text if is_email_address(text) else None, "not an email address; use the form ada@example.com."
)


@user.command("add")
@click.argument("email", type=_EMAIL)
@account_option
@_role_option(default=Role.OWNER.value, show_default=True)
@with_database()
def add_user(email: str, account_id: int | None, role: str) -> Record:
    """Create a user in an account.

    Example: riskrelay user add ada@example.com --role triager

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    return _user_record(operations.add_user(email, account_or_only(account_id), _role(role), OPERATOR))


@user.command("set")
@click.argument("email")
@_role_option(required=True)
@with_database()
def set_user(email: str, role: str) -> Record:
    """Set a user's role in the account, from the next request on.

    Example: riskrelay user set ada@example.com --role triager

    Exit codes: 0 set, 1 no such user, 2 wrong usage.
    """
    return _user_record(operations.set_role(email, _role(role), OPERATOR))


@user.command("list")
@with_database(USERS.show)
def list_users() -> list[Record]:
    """List users.

    Example: riskrelay user list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong settings.
    """
    return [_user_record(each) for each in reversed(accounts.list_users())]


@user.command()
@click.argument("email")
@with_database()
def disable(email: str) -> Record:
    """Refuse a user's tokens and end the user's console sessions, from the next request on.

    Example: riskrelay user disable ada@example.com

    Exit codes: 0 disabled, 1 no such user, 2 wrong usage.
    """
    return _user_record(operations.disable_user(email, OPERATOR))


@user.command()
@click.argument("email")
@with_database()
def enable(email: str) -> Record:
    """Accept a disabled user's tokens again; the user must sign in to the console again.

    Example: riskrelay user enable ada@example.com

    Exit codes: 0 enabled, 1 no such user, 2 wrong usage.
    """
    return _user_record(operations.enable_user(email, OPERATOR))


@user.command("remove")
@click.argument("email")
@with_database()
def remove_user(email: str) -> Record:
    """Remove a user for good: erase the address, revoke tokens, end sessions, delete grants.

    Uploads and the audit log keep the user's id.

    Example: riskrelay user remove ada@example.com

    Exit codes: 0 removed, 1 no such user, 2 wrong usage.
    """
    return _user_record(operations.remove_user(email, OPERATOR))


def _user_record(row: User) -> dict[str, object]:
    email = None if row.removed_at else row.email
    return {"id": row.id, "email": email, "account_id": row.account_id, "role": row.role, "state": row.state}


def _role(name: str) -> Role | None:
    return None if name == _NONE else Role(name)


@grant.command("add")
@click.option("--user", "email", required=True, help="The user's email.")
@click.option("--project", "project_id", type=ROW_ID, help="The project's id.")
@click.option("--report", "report_id", type=ROW_ID, help="The report's id.")
@click.option(
    "--role",
    type=click.Choice([role.value for role in PROJECT_ROLES]),
    help="The role in the project, for a user without a role in the account.",
)
@with_database()
def add_grant(email: str, project_id: int | None, report_id: int | None, role: str | None) -> Record:
    """Allow a user to manage a project, or one report of it.

    Example: riskrelay grant add --user ada@example.com --project 1

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    if role is not None and project_id is None:
        raise click.UsageError("--role needs --project.")
    require_one("Use either --project or --report.", project_id, report_id)
    row = operations.add_grant(email, project_id, report_id, None if role is None else Role(role), OPERATOR)
    return {"id": row.id, "user": email, "project_id": project_id, "report_id": report_id, "role": row.role}


@grant.command("list")
@click.option("--user", "email", help="Only grants of this user.")
@with_database(GRANTS.show)
def list_grants(email: str | None) -> list[Record]:
    """List grants.

    Example: riskrelay grant list --user ada@example.com --json

    Exit codes: 0 listed, 1 no such user or database unavailable, 2 wrong usage or settings.
    """
    user_email = None if email is None else accounts.user_by_email(email).email
    return [_grant_record(each) for each in grants.list_all(user_email)]


@grant.command("remove")
@click.argument("grant_id", type=ROW_ID, required=False)
@click.option("--user", "email", help="The user's email, with --project or --report, instead of an id.")
@click.option("--project", "project_id", type=ROW_ID, help="The project's id.")
@click.option("--report", "report_id", type=ROW_ID, help="The report's id.")
@with_database()
def remove_grant(grant_id: int | None, email: str | None, project_id: int | None, report_id: int | None) -> Record:
    """Withdraw a grant, from the next request on.

    Examples:
      riskrelay grant remove 3
      riskrelay grant remove --user ada@example.com --project 1

    Exit codes: 0 removed, 1 no such grant or user, 2 wrong usage.
    """
    scope = (project_id, report_id)
    if (grant_id is None) == (email is None) or (scope.count(None) == 1) != (email is not None):
        raise click.UsageError("Use either a grant id, or --user with --project or --report.")
    return _grant_record(operations.remove_grant(grant_id or _find(str(email), scope), OPERATOR))


def _find(email: str, scope: tuple[int | None, int | None]) -> int:
    for each in grants.list_all(accounts.user_by_email(email).email):
        if (each.project_id, each.report_id) == scope:
            return each.id
    raise NotFound("This user has no such grant; see `bin/riskrelay grant list`.")


def _grant_record(row: Grant) -> dict[str, object]:
    state = "disabled" if row.is_disabled else "active"
    return {
        "id": row.id,
        "user": row.user,
        "user_state": state,
        "project_id": row.project_id,
        "report_id": row.report_id,
        "role": row.role,
    }
