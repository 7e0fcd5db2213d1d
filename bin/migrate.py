"""`migrate`: bring the database's schema up to date."""

import click

from bin.installation import Refused, checked_settings, make_data_dir
from storage import schema
from storage.database import OUTAGES, close_database, open_database


@click.command(epilog="Example: riskrelay migrate\n\nExit codes: 0 up to date, 1 the database is away, 2 wrong settings.")
@click.option("--check", is_flag=True, help="Only tell what is pending; exit 1 if anything is.")
def migrate(check: bool) -> None:
    """Run the migrations that have not run yet, in order and under a lock."""
    settings = checked_settings()
    make_data_dir(settings)
    open_database(settings.database_url)
    try:
        names = schema.pending() if check else schema.migrate()
    except OUTAGES as away:
        raise Refused(f"The database cannot be reached ({type(away).__name__}); see DATABASE_URL.") from None
    finally:
        close_database()
    for name in names:
        click.echo(f"{'pending' if check else 'ran'}: {name}")
    if not names:
        click.echo("The schema is up to date.")
    if check and names:
        raise SystemExit(1)
