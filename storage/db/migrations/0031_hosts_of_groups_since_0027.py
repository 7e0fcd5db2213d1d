"""Adds all hosts of a group to its search terms; before, only the hosts of the first places in its ticket were there."""

import json
from typing import Any, Final

from peewee import Database, SqliteDatabase

_OF_FINDINGS: Final = """
INSERT INTO export_terms (account_id, kind, value, export_id)
SELECT DISTINCT e.account_id, 'host', f.host, e.id FROM exports e JOIN findings f ON f.export_id = e.id
WHERE e.findings_total > 1 AND e.redacted_at IS NULL AND f.host <> ''
ON CONFLICT DO NOTHING"""
_COPIED: Final = "SELECT id, siblings FROM exports WHERE siblings IS NOT NULL AND findings_total > 1 AND redacted_at IS NULL"
# A ticket that was approved for further targets has copies; its findings belong to only one of them.
_OF_COPIES: Final = """
INSERT INTO export_terms (account_id, kind, value, export_id)
SELECT e.account_id, 'host', t.value, e.id FROM exports e JOIN export_terms t ON t.account_id = e.account_id
WHERE e.id = {p} AND t.export_id = {p} AND t.kind = 'host'
ON CONFLICT DO NOTHING"""


def up(_migrator: Any, db: Database) -> None:
    """Add the hosts."""
    cursor = db.cursor()  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
    cursor.execute(_OF_FINDINGS)
    copies = [(export_id, each) for export_id, ids in cursor.execute(_COPIED).fetchall() for each in json.loads(ids)]
    cursor.executemany(_OF_COPIES.format(p="?" if isinstance(db, SqliteDatabase) else "%s"), copies)
