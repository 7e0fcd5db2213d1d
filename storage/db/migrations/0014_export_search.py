"""Hosts, rules and words by which exports are found, and indexes for the sort orders of their list.

In separate tables, because a delivery updates its export several times, and PostgreSQL then writes to every index of the
export's table.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from peewee import Database, SqliteDatabase

from schemas.triage.search_words import hosts_of, words_of

TABLES: Final = """
-- The hosts and the rule code of each export.
CREATE TABLE export_terms (
    account_id INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('host', 'rule')),
    value TEXT NOT NULL,
    export_id TEXT NOT NULL REFERENCES exports (id) ON DELETE CASCADE,
    PRIMARY KEY (account_id, kind, value, export_id)
);
-- The account and the words of each export, separated by spaces.
CREATE TABLE export_search (
    id {bigserial},
    export_id TEXT NOT NULL UNIQUE REFERENCES exports (id) ON DELETE CASCADE,
    words TEXT NOT NULL
);
-- For each of its five values, the severity gives a part of the index that is sorted by time.
DROP INDEX exports_account_status;
CREATE INDEX exports_account_status ON exports (account_id, status, severity_rank, id);
-- Most exports have one finding or none, so their deliveries do not write to this index.
CREATE INDEX exports_findings ON exports (account_id, findings_total, id) WHERE findings_total > 1
"""
# Created after the rows are inserted: building an index at once is faster than adding many rows to it.
INDEXES: Final = """
CREATE INDEX export_terms_export ON export_terms (export_id)
"""
#: The text index has no copy of the words. Without the words' positions and lengths it has a third of the size.
SQLITE_INDEX: Final = """
CREATE VIRTUAL TABLE export_words USING fts5(
    words, content='export_search', content_rowid='id', tokenize="ascii tokenchars '@'", detail=none, columnsize=0
);
INSERT INTO export_words (export_words) VALUES ('rebuild');
CREATE TRIGGER export_search_added AFTER INSERT ON export_search BEGIN
    INSERT INTO export_words (rowid, words) VALUES (new.id, new.words)||
END;
CREATE TRIGGER export_search_removed AFTER DELETE ON export_search BEGIN
    INSERT INTO export_words (export_words, rowid, words) VALUES ('delete', old.id, old.words)||
END
"""
POSTGRESQL_INDEX: Final = """
CREATE INDEX export_search_words ON export_search USING gin (array_to_tsvector(string_to_array(words, ' ')))
"""
#: How many exports are read and written at once.
BATCH: Final = 1_000

_PAGE: Final = "SELECT id, account_id, ticket FROM exports WHERE id > {p} AND redacted_at IS NULL ORDER BY id LIMIT {p}"
_RULES: Final = """
INSERT INTO export_terms (account_id, kind, value, export_id)
SELECT account_id, 'rule', rule, id FROM exports WHERE rule IS NOT NULL
"""
_TERMS: Final = "INSERT INTO export_terms (account_id, kind, value, export_id) VALUES ({p}, 'host', {p}, {p})"
_WORDS: Final = "INSERT INTO export_search (export_id, words) VALUES ({p}, {p})"


def up(_migrator: Any, db: Database) -> None:
    """Create the tables, fill them, and create the indexes."""
    is_sqlite = isinstance(db, SqliteDatabase)
    serial = "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT" if is_sqlite else "BIGSERIAL PRIMARY KEY"
    _run(db, TABLES.format(bigserial=serial))
    db.execute_sql(_RULES)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
    cursor = db.cursor()  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
    place = "?" if is_sqlite else "%s"
    for exports in _batches(cursor, _PAGE.format(p=place)):
        tickets = [(export_id, account_id, json.loads(ticket)) for export_id, account_id, ticket in exports]
        hosts = [(account, host, export_id) for export_id, account, ticket in tickets for host in hosts_of(ticket)]
        cursor.executemany(_TERMS.format(p=place), hosts)
        words = [(export_id, f"@{account} {words_of(ticket)}".rstrip()) for export_id, account, ticket in tickets]
        cursor.executemany(_WORDS.format(p=place), words)
    _run(db, INDEXES)
    _run(db, SQLITE_INDEX if is_sqlite else POSTGRESQL_INDEX)


def _batches(cursor: Any, page: str) -> Iterator[list[tuple[Any, ...]]]:
    last = ""
    while found := cursor.execute(page, (last, BATCH)).fetchall():
        yield found
        last = found[-1][0]


def _run(db: Database, statements: str) -> None:
    for statement in statements.split(";\n"):
        # `||` stands for the semicolons inside a trigger, where the statement does not end.
        db.execute_sql(statement.replace("||", ";"))  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
