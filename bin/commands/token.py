"""`token`: manage API and platform tokens; a token is printed only when it is created."""

from dataclasses import asdict
from datetime import timedelta
from typing import Final

import click

from bin.cli.installation import opened
from bin.cli.number_types import DAYS, ROW_ID
from bin.cli.output import echo
from bin.cli.records import json_option, print_record, print_records
from schemas.base.principal import OPERATOR, Ability, TokenKind
from schemas.base.timestamps import rfc3339, rfc3339_or_none
from service.operations import tokens as operations
from storage.accounts import tokens
from storage.accounts.accounts import user_by_email
from storage.accounts.tokens import Token

_COLUMNS: Final = ("id", "kind", "name", "user", "created_at", "expires_at", "revoked_at")


@click.group()
def token() -> None:
    """Manage API tokens of clients and platform apps."""


@token.command(
    epilog="""\b
Example:
  TOKEN=$(riskrelay token create --user ada@example.com)

\b
Exit codes: 0 created, 1 refused, 2 wrong usage."""
)
@click.option("--user", "email", required=True, help="The user's email.")
@click.option("--kind", type=click.Choice([kind.value for kind in TokenKind]), default="api", show_default=True)
@click.option(
    "--ability",
    "abilities",
    multiple=True,
    type=click.Choice([ability.value for ability in Ability]),
    help="May be repeated; default: all abilities of the kind except console, account:manage and admin.",
)
@click.option("--name", default="", help="The token's purpose.")
@click.option("--expires-days", type=DAYS, help="Days until it expires; default: never.")
@json_option
def create(email: str, kind: str, abilities: tuple[str, ...], name: str, expires_days: int | None, as_json: bool) -> None:
    """Create a token and print it, once, alone on standard output."""
    with opened():
        expires = timedelta(days=expires_days) if expires_days else None
        named = [Ability(ability) for ability in abilities]
        row, text = operations.create(user_by_email(email), TokenKind(kind), named, name, expires, OPERATOR)
        if as_json:
            print_record({**_record(row), "token": text}, as_json)
            return
        echo(f"Token {row.id} for {email}; it is not shown again.", err=True)
        echo(text)


@token.command("list", epilog="Example: riskrelay token list --json\n\nExit codes: 0 listed, 2 wrong settings.")
@json_option
def list_tokens(as_json: bool) -> None:
    """List tokens, without their values."""
    with opened():
        records = [_record(each) for each in tokens.list_tokens()]
        print_records(records, as_json, _COLUMNS, "There are no tokens; create one with `token create`.")


@token.command(
    epilog="""\b
Examples:
  riskrelay token revoke 3
  riskrelay token revoke --user ada@example.com

\b
Exit codes: 0 revoked, 1 no such token or user, 2 wrong usage."""
)
@click.argument("token_id", type=ROW_ID, required=False)
@click.option("--user", "email", help="Revoke every token of this user instead.")
@json_option
def revoke(token_id: int | None, email: str | None, as_json: bool) -> None:
    """Revoke one token, or all tokens of a user; the next request with one gets 401."""
    if (token_id is None) == (email is None):
        raise click.UsageError("Use either a token id or --user.")
    with opened():
        if token_id is not None:
            print_record(_record(operations.revoke(token_id, OPERATOR)), as_json)
        elif email is not None:
            revoked = [_record(each) for each in operations.revoke_all(email, OPERATOR)]
            print_records(revoked, as_json, _COLUMNS, "This user has no valid token.")


def _record(token: Token) -> dict[str, object]:
    return {
        **asdict(token),
        "created_at": rfc3339(token.created_at),
        "expires_at": rfc3339_or_none(token.expires_at),
        "revoked_at": rfc3339_or_none(token.revoked_at),
    }
