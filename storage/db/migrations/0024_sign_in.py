"""One-time links, users' identities at issuers of sign-ins, and console sessions of users who signed in without a token.

A session has either a token or a user, so that an older version, which knows only tokens, still works during an update.
"""

from typing import Any

from peewee import Database, SqliteDatabase

POSTGRESQL = """
ALTER TABLE console_sessions ALTER COLUMN token_id DROP NOT NULL;
ALTER TABLE console_sessions ADD COLUMN user_id INTEGER REFERENCES users (id);
ALTER TABLE console_sessions ADD COLUMN method TEXT NOT NULL DEFAULT 'token'
    CHECK (method IN ('token', 'openid_connect', 'email_link'));
ALTER TABLE console_sessions ADD COLUMN sign_in_sha256 TEXT UNIQUE;
ALTER TABLE console_sessions ADD COLUMN id_token_sealed BYTEA;
ALTER TABLE console_sessions ADD CHECK ((token_id IS NULL) <> (user_id IS NULL));
"""
#: SQLite cannot remove NOT NULL from a column, so the table is copied.
SQLITE = """
CREATE TABLE console_sessions_new (
    id TEXT NOT NULL PRIMARY KEY,
    token_id INTEGER REFERENCES tokens (id),
    secret_sha256 TEXT NOT NULL UNIQUE,
    browser_sha256 TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    ended_at BIGINT,
    ended_reason TEXT,
    user_id INTEGER REFERENCES users (id),
    method TEXT NOT NULL DEFAULT 'token' CHECK (method IN ('token', 'openid_connect', 'email_link')),
    sign_in_sha256 TEXT UNIQUE,
    id_token_sealed BLOB,
    CHECK ((ended_at IS NULL) = (ended_reason IS NULL)),
    CHECK ((token_id IS NULL) <> (user_id IS NULL))
);
INSERT INTO console_sessions_new
    (id, token_id, secret_sha256, browser_sha256, created_at, seen_at, ended_at, ended_reason)
    SELECT id, token_id, secret_sha256, browser_sha256, created_at, seen_at, ended_at, ended_reason FROM console_sessions;
DROP TABLE console_sessions;
ALTER TABLE console_sessions_new RENAME TO console_sessions;
CREATE INDEX console_sessions_token ON console_sessions (token_id, id);
CREATE INDEX console_sessions_open ON console_sessions (token_id, id) WHERE ended_at IS NULL;
CREATE INDEX console_sessions_seen ON console_sessions (seen_at);
"""
TABLES = """
CREATE TABLE user_identities (
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    user_id INTEGER NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL,
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX user_identities_user ON user_identities (user_id);
CREATE TABLE sign_in_links (
    id TEXT NOT NULL PRIMARY KEY,
    token_sha256 TEXT NOT NULL UNIQUE,
    browser_sha256 TEXT NOT NULL,
    mail_sealed {blob},
    user_id INTEGER REFERENCES users (id),
    lease TEXT,
    next_run_at BIGINT,
    created_at BIGINT NOT NULL
);
CREATE INDEX sign_in_links_due ON sign_in_links (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX sign_in_links_user ON sign_in_links (user_id, id);
-- Lists read the open sessions, newest first, with or without a token.
CREATE INDEX console_sessions_newest ON console_sessions (id) WHERE ended_at IS NULL;
CREATE INDEX console_sessions_user ON console_sessions (user_id, method, id);
"""


def up(_migrator: Any, db: Database) -> None:
    """Change the sessions' table, and create the other tables and indexes."""
    is_sqlite = isinstance(db, SqliteDatabase)
    tables = TABLES.format(blob="BLOB" if is_sqlite else "BYTEA")
    for statement in ((SQLITE if is_sqlite else POSTGRESQL) + tables).split(";\n"):
        if statement.strip():
            db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
