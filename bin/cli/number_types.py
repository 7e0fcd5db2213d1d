"""Number types of options, bounded by what the database can hold, so that a typing error is refused and never a crash."""

from typing import Final

import click

#: Auto-increment ids: four bytes in PostgreSQL, more than any installation needs.
ROW_ID: Final = click.IntRange(1, 2**31 - 1)
#: A maximum; SQLite integers have eight bytes.
LIMIT: Final = click.IntRange(1, 2**63 - 1)
#: A hundred years: no token needs more, and dates end soon after.
DAYS: Final = click.IntRange(1, 36_500)
