"""`token` and `session`: API and platform tokens, each printed only when it is created, and console sessions."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Final

import click

from bin.cli.database_command import with_database
from bin.cli.installation import opened
from bin.cli.option_types import DAYS, ROW_ID, require_one
from bin.cli.output import echo
from bin.cli.records import Record, RecordTable, all_pages, json_option, print_record
from bin.cli.request_bodies import FieldText
from runtime.clock import utc_now
from schemas.accounts.forms import TokenForm
from schemas.api.administration import ConsoleSessionResponse, TokenResponse
from schemas.api.response_fields import dump
from schemas.base.principal import OPERATOR, Ability, Role, TokenKind, role_abilities
from service.operations.accounts import sessions as session_operations
from service.operations.accounts import tokens as token_operations
from storage.accounts import grants, sessions, tokens
from storage.accounts.accounts import user_by_email

TOKENS: Final = RecordTable(
    ("id", "kind", "name", "user", "created_at", "expires_at", "revoked_at"),
    "There are no tokens; create one with `token create`.",
)
SESSIONS: Final = RecordTable(
    ("id", "user", "method", "token_id", "token_name", "created_at", "seen_at"), "There are no sessions."
)
#: By name; the API names roles.
_ROLES: Final[Mapping[str | None, Role]] = {each.value: each for each in Role}
NO_VALID_TOKEN: Final = "This user has no valid token."  # noqa: S105 - a sentence
NO_SESSIONS: Final = "This user has no sessions."

token: Final = click.Group("token")
session: Final = click.Group("session")


@token.command()
@click.option("--user", "email", required=True, help="The user's email.")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in TokenKind]),
    default="api",
    show_default=True,
    help="`api` for clients and people, `platform` for the browser extension, the CMS plugin and the storefront app.",
)
@click.option(
    "--ability",
    "abilities",
    multiple=True,
    type=click.Choice([ability.value for ability in Ability]),
    help="An ability; may be repeated. Default: all abilities of the kind except console, account:manage and admin.",
)
@click.option("--name", type=FieldText(TokenForm, "name"), default="", help="The token's purpose.")
@click.option("--expires-days", type=DAYS, help="The number of days until the token expires; default: never.")
@json_option
def create(email: str, kind: str, abilities: tuple[str, ...], name: str, expires_days: int | None, as_json: bool) -> None:
    """Create a token and print it, once, alone on standard output.

    Example:
      TOKEN=$(riskrelay token create --user ada@example.com)

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    with opened():
        expires = timedelta(days=expires_days) if expires_days else None
        named = [Ability(ability) for ability in abilities]
        user = user_by_email(email)
        row, text = token_operations.create(user, TokenKind(kind), named, name, expires, OPERATOR)
        project_roles = [] if user.role else [each.role for each in grants.list_all(user.email)]
        print_token({**dump(TokenResponse, row), "token": text}, email, user.role, project_roles, as_json)


def print_token(made: Record, email: str, role: str | None, project_roles: Iterable[str | None], as_json: bool) -> None:
    """Print a new token, without --json alone on standard output, and a warning if the roles of its user limit it."""
    allowed = role_abilities(_ROLES.get(role), [_ROLES[each] for each in project_roles if each in _ROLES])
    abilities = [*map(str, made["abilities"])]
    if not allowed.issuperset(abilities):
        effective = ", ".join(each for each in abilities if each in allowed) or "nothing"
        echo(f"The role of this user limits the token to: {effective}", err=True)
    if as_json:
        print_record(made, as_json)
        return
    echo(f"Token {made['id']} for {email}; it is not shown again.", err=True)
    echo(made["token"])


@token.command("list")
@with_database(TOKENS.show)
def list_tokens() -> list[Record]:
    """List tokens, without their values.

    Example: riskrelay token list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong settings.
    """
    return [dump(TokenResponse, each) for each in reversed(tokens.list_page())]


@token.command("revoke")
@click.argument("token_id", type=ROW_ID, required=False)
@click.option("--user", "email", help="Revoke every token of this user instead.")
@with_database(TOKENS._replace(none=NO_VALID_TOKEN).show)
def revoke_token(token_id: int | None, email: str | None) -> list[Record] | Record:
    """Revoke one token, or all tokens of a user; the next request with one gets 401.

    Examples:
      riskrelay token revoke 3
      riskrelay token revoke --user ada@example.com

    Exit codes: 0 revoked, 1 no such token or user, 2 wrong usage.
    """
    require_one("Use either a token id or --user.", token_id, email)
    if token_id is not None:
        return dump(TokenResponse, token_operations.revoke(token_id, OPERATOR))
    return [dump(TokenResponse, each) for each in token_operations.revoke_all(str(email), OPERATOR)]


@session.command("list")
@click.option("--user", "email", help="Only sessions of this user.")
@with_database(SESSIONS.show)
def list_sessions(email: str | None) -> list[Record]:
    """List open console sessions, newest first.

    Example: riskrelay session list --user ada@example.com --json

    Exit codes: 0 listed, 1 no such user or database unavailable, 2 wrong usage or settings.
    """
    user_email = None if email is None else user_by_email(email).email
    found = all_pages(partial(sessions.list_live, utc_now(), email=user_email), attrgetter("id"))
    return [dump(ConsoleSessionResponse, each) for each in found]


@session.command("revoke")
@click.argument("session_id", required=False)
@click.option("--user", "email", help="Revoke every session of this user instead.")
@with_database(SESSIONS._replace(none=NO_SESSIONS).show)
def revoke_session(session_id: str | None, email: str | None) -> list[Record] | Record:
    """End one session, or all sessions of a user; the user must sign in again.

    Examples:
      riskrelay session revoke ses_…
      riskrelay session revoke --user ada@example.com

    Exit codes: 0 revoked, 1 no such session or user, 2 wrong usage.
    """
    require_one("Use either a session id or --user.", session_id, email)
    if session_id is not None:
        return dump(ConsoleSessionResponse, session_operations.revoke(session_id, OPERATOR))
    return [dump(ConsoleSessionResponse, each) for each in session_operations.revoke_of_user(str(email), OPERATOR)]
