"""`session`: who is signed in at the console, and the way to end it."""

from typing import Final

import click

from bin.cli.installation import opened
from bin.cli.records import json_option, print_record, print_records
from runtime.clock import utc_now
from schemas.api.responses import ConsoleSessionResponse, dump
from schemas.base.console_session import Ended, Session
from storage.accounts import sessions
from storage.accounts.accounts import user_by_email

_COLUMNS: Final = ("id", "user", "token_id", "token_name", "created_at", "seen_at")
#: More than a screen shows; who needs them all narrows them down by their user.
_MOST: Final = 1000


@click.group()
def session() -> None:
    """Manage console sessions."""


@session.command(
    "list",
    epilog="Example: riskrelay session list --user ada@example.com --json\n\n"
    "Exit codes: 0 listed, 1 no such user, 2 wrong usage.",
)
@click.option("--user", "email", help="Only those of this user.")
@json_option
def list_sessions(email: str | None, as_json: bool) -> None:
    """List open console sessions, newest first, up to 1,000."""
    with opened():
        if email is not None:
            user_by_email(email)
        found = sessions.list_live(utc_now(), _MOST, email=email)
        print_records([dump(ConsoleSessionResponse, each) for each in found], as_json, _COLUMNS, "Nobody is signed in.")


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
        raise click.UsageError("Name one session by its id, or a user with --user.")
    with opened():
        if session_id is not None:
            print_record(dump(ConsoleSessionResponse, _end(session_id)), as_json)
        elif email is not None:
            user_by_email(email)
            ended = [_end(each.id) for each in sessions.list_live(utc_now(), _MOST, email=email)]
            print_records(
                [dump(ConsoleSessionResponse, each) for each in ended], as_json, _COLUMNS, "This user was signed in nowhere."
            )


def _end(session_id: str) -> Session:
    return sessions.end(session_id, Ended.REVOKED, utc_now(), "operator")
