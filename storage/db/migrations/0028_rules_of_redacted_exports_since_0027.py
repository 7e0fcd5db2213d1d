"""Deletes the search terms with rules of redacted exports: the rule of an issue without a code is its title.

Versions before this one keep these terms when they redact an export, even while they run beside this one during an update.
"""

from typing import Any, Final

from peewee import Database

# Redacted exports are few, so the terms are found by their export's id, which has an index.
_DELETE: Final = """
DELETE FROM export_terms
WHERE kind = 'rule' AND export_id IN (SELECT id FROM exports WHERE redacted_at IS NOT NULL)
"""


def up(_migrator: Any, db: Database) -> None:
    """Delete the terms."""
    db.execute_sql(_DELETE)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
