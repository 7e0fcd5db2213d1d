"""Deletes the rules by which redacted exports were found: the rule of an issue without a code is its title.

A version before this one leaves them at every redaction, also beside this one during an update.
"""

from typing import Any, Final

from peewee import Database

# Redacted exports are few beside the rest; what is deleted is found by its export, whose terms have an index.
_DELETE: Final = """
DELETE FROM export_terms
WHERE kind = 'rule' AND export_id IN (SELECT id FROM exports WHERE redacted_at IS NOT NULL)
"""


def up(_migrator: Any, db: Database) -> None:
    """Delete them."""
    db.execute_sql(_DELETE)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
