"""`migrate`: run pending database migrations, or list them."""

import click

from bin.cli.installation import checked_settings, database_at, make_data_dir, require_fit
from bin.cli.output import echo
from bin.cli.records import json_option, print_record
from storage.db import schema_version


@click.command()
@click.option("--check", is_flag=True, help="List pending migrations and run none; exit with 1 if there are any.")
@json_option
def migrate(check: bool, as_json: bool) -> None:
    """Run pending database migrations in order, under a lock.

    Example: riskrelay migrate --check --json

    Exit codes: 0 up to date, 1 with --check: migrations are pending; otherwise: the database is unavailable, has a newer
    schema or belongs to another application, 2 wrong usage or settings.
    """
    settings = checked_settings()
    if not check:
        make_data_dir(settings)
    with database_at(settings.database_url):
        names = list(require_fit()) if check else schema_version.migrate()
    word = "pending" if check else "ran"
    if as_json:
        print_record({word: names}, as_json)
    else:
        echo("\n".join(f"{word}: {name}" for name in names) or "The schema is up to date.")
    if check and names:
        raise SystemExit(1)
