"""Partitions attempts and audit entries by month on PostgreSQL; each table becomes the first partition of its successor.

No row is rewritten and no index is built; PostgreSQL reads each table once to verify the bound of its partition. The month
of an attempt is the month in which its export was prepared, because the export's id begins with that time. The month of an
audit entry is that of its `at`. Neither table has a primary key any more, because it would have to include those columns;
each partition has one. SQLite is unchanged.
"""

from datetime import UTC, datetime
from typing import Any, Final

from peewee import Database, SqliteDatabase
from ulid import ULID

from schemas.base.timestamps import from_ms, to_ms
from storage.db.identifiers import EXPORT, first_id

_STATEMENTS: Final = """
ALTER TABLE attempts RENAME TO attempts_first;
ALTER TABLE attempts_first RENAME CONSTRAINT attempts_pkey TO attempts_first_pkey;
ALTER TABLE attempts_first RENAME CONSTRAINT attempts_export_id_number_key TO attempts_first_number_key;
ALTER TABLE attempts_first RENAME CONSTRAINT attempts_export_id_fkey TO attempts_first_export_id_fkey;
ALTER INDEX attempts_delivered RENAME TO attempts_first_delivered;
CREATE TABLE attempts (
    LIKE attempts_first, UNIQUE (export_id, number), FOREIGN KEY (export_id) REFERENCES exports (id)
) PARTITION BY RANGE (export_id);
CREATE UNIQUE INDEX attempts_delivered ON attempts (export_id) WHERE outcome = 'delivered';
ALTER TABLE attempts ATTACH PARTITION attempts_first FOR VALUES FROM (MINVALUE) TO ('{first_export}');
CREATE TABLE attempts_default PARTITION OF attempts (PRIMARY KEY (id)) DEFAULT;
ALTER TABLE audit_entries RENAME TO audit_entries_first;
ALTER TABLE audit_entries_first RENAME CONSTRAINT audit_entries_pkey TO audit_entries_first_pkey;
ALTER INDEX audit_entries_subject RENAME TO audit_entries_first_subject;
ALTER INDEX audit_entries_chain RENAME TO audit_entries_first_chain;
CREATE TABLE audit_entries (LIKE audit_entries_first INCLUDING DEFAULTS) PARTITION BY RANGE (at);
ALTER SEQUENCE audit_entries_id_seq OWNED BY audit_entries.id;
CREATE INDEX audit_entries_subject ON audit_entries (subject_id, id);
CREATE INDEX audit_entries_chain ON audit_entries (position, id);
ALTER TABLE audit_entries ATTACH PARTITION audit_entries_first FOR VALUES FROM (MINVALUE) TO ({first_ms});
CREATE TABLE audit_entries_default PARTITION OF audit_entries (PRIMARY KEY (id)) DEFAULT
"""

# Ids sort by time, so the newest export id is at the end of the index.
_NEWEST_ATTEMPT: Final = "SELECT max(export_id) FROM attempts"
_NEWEST_ENTRY: Final = "SELECT greatest(max(at), CAST(extract(epoch FROM now()) * 1000 AS BIGINT)) FROM audit_entries"


def up(_migrator: Any, db: Database) -> None:
    """Turn both tables into partitions; the first one includes the month after that of the newest row or the present one."""
    if isinstance(db, SqliteDatabase):
        return
    newest = [from_ms(_value(db, _NEWEST_ENTRY))]
    if export_id := _value(db, _NEWEST_ATTEMPT):
        newest.append(ULID.from_str(export_id.removeprefix(f"{EXPORT}_")).datetime)
    end = _second_month_after(max(newest))
    for statement in _STATEMENTS.format(first_export=first_id(EXPORT, end), first_ms=to_ms(end)).split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out


def _value(db: Database, query: str) -> Any:
    return db.execute_sql(query).fetchone()[0]  # type: ignore[no-untyped-call]  # as above


def _second_month_after(moment: datetime) -> datetime:
    """Return the start of the second month after `moment`'s, which leaves a month to create the next partition."""
    year, month = divmod(moment.year * 12 + moment.month + 1, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC)
