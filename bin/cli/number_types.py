"""Numbers that commands take: none that the database cannot hold, so a slip of the hand is refused and never a crash."""

from typing import Final

import click

#: The ids that the database counts up by itself: four bytes in PostgreSQL, and more than any installation makes.
ROW_ID: Final = click.IntRange(1, 2**31 - 1)
#: How many at most; SQLite takes no more than eight bytes.
LIMIT: Final = click.IntRange(1, 2**63 - 1)
#: A hundred years: further off lies no date that a token needs, and soon none at all.
DAYS: Final = click.IntRange(1, 36_500)
