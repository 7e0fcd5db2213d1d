"""`session`: list and revoke console sessions."""

from typing import Final

import click

from bin.cli.installation import opened
from bin.cli.records import json_option, print_record, print_records
from runtime.clock import utc_now
from schemas.api.accounts import ConsoleSessionResponse
from schemas.api.response_fields import dump
from schemas.base.principal import OPERATOR
from service.operations import sessions as operations
from storage.accounts import sessions
from storage.accounts.accounts import user_by_email

#: The columns of lists.
COLUMNS: Final = ("id", "user", "method", "token_id", "token_name", "created_at", "seen_at")
#: --user lists the sessions of one user, if there are more.
_MAX_SHOWN: Final = 1000


@click.group()
def session() -> None:
    """Manage console sessions."""


@session.command(
    "list",
    epilog="Example: riskrelay session list --user ada@example.com --json\n\n"
    "Exit codes: 0 listed, 1 no such user, 2 wrong usage.",
)
@click.option("--user", "email", help="Only sessions of this user.")
@json_option
def list_sessions(email: str | None, as_json: bool) -> None:
    """List open console sessions, newest first, up to 1,000."""
    with opened():
        if email is not None:
            user_by_email(email)
        found = sessions.list_live(utc_now(), _MAX_SHOWN, email=email)
        print_records([dump(ConsoleSessionResponse, each) for each in found], as_json, COLUMNS, "There are no sessions.")


@session.command(
    epilog="""\b
Examples:
  riskrelay session revoke ses_…
  riskrelay session revoke --user ada@example.com

\b
Exit codes: 0 revoked, 1 no such session or user, 2 wrong usage."""
)
@click.argument("session_id", required=False)
@click.option("--user", "email", help="Revoke every session of this user instead.")
@json_option
def revoke(session_id: str | None, email: str | None, as_json: bool) -> None:
    """End one session, or all sessions of a user; signing in again takes a valid token."""
    if (session_id is None) == (email is None):
        raise click.UsageError("Use either a session id or --user.")
    with opened():
        if session_id is not None:
            print_record(dump(ConsoleSessionResponse, operations.revoke(session_id, OPERATOR)), as_json)
        elif email is not None:
            ended = [dump(ConsoleSessionResponse, each) for each in operations.revoke_of_user(email, OPERATOR)]
            print_records(ended, as_json, COLUMNS, "This user has no sessions.")
