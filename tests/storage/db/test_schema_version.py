"""The migrated schema equals the models, has the indexes that queries need, and is created once by concurrent starts."""

import logging
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from peewee import (
    AutoField,
    BigAutoField,
    BigIntegerField,
    BlobField,
    BooleanField,
    DoubleField,
    Field,
    ForeignKeyField,
    IntegerField,
    TextField,
)

from schemas.base.principal import TokenKind
from schemas.exports.state_machine import ExportStatus
from schemas.intake.scanner import PostbackForm
from schemas.triage.export_filter import ExportQuery, ExportSort, ListPosition
from storage.accounts import tokens
from storage.db import schema_version
from storage.db.columns import EnumField, JsonField, TimestampField
from storage.db.engine import close_database, connection, execute, is_sqlite, open_database, rows
from storage.db.engine import database as db
from storage.db.locks import Lock
from storage.db.models import ALL, BaseModel, ExportRow
from storage.db.schema_version import SchemaState, UnsuitableDatabase
from storage.exports import attempts, claims_sql, idempotency, queries
from storage.exports.search import export_list
from storage.maintenance import partitions_sql
from storage.targets import pings, targets, throttle_state_sql, validations
from tests.support.factories import (
    NOW,
    Customer,
    claim_due,
    completed_attempt,
    issue,
    make_approved,
    make_customer,
    make_target,
    postback,
    record_postback,
)
from tests.support.processes.workers import wait_until
from tests.support.servers.redis_and_postgres import PostgresServer

ROOT: Final = Path(__file__).parents[3]
MIGRATE: Final = (
    "import sys; from storage.db import engine, schema_version; "
    "engine.open_database(sys.argv[1]); print(schema_version.migrate())"
)

#: The column type of each field class, on SQLite and on PostgreSQL.
TYPES: Final[dict[type[Field], tuple[str, str]]] = {
    AutoField: ("integer", "integer"),
    BigAutoField: ("integer", "bigint"),
    BigIntegerField: ("bigint", "bigint"),
    TimestampField: ("bigint", "bigint"),
    IntegerField: ("integer", "integer"),
    DoubleField: ("double precision", "double precision"),
    BooleanField: ("integer", "boolean"),
    BlobField: ("blob", "bytea"),
    TextField: ("text", "text"),
    EnumField: ("text", "text"),
    JsonField: ("text", "text"),
}

ALL_MIGRATIONS: Final = [
    "0001_initial_tables",
    "0002_uploads_emails_compliance",
    "0003_throttle_state_and_workers",
    "0004_key_check_and_erasure_log",
    "0005_console_sessions_and_charts",
    "0006_target_revalidation",
    "0007_rights_and_request_bodies",
    "0012_export_lists",
    "0013_triage",
    "0014_export_search",
    "0015_targets_and_findings",
    "0016_trackers",
    "0017_report_uploads",
    "0018_finding_life_cycle",
    "0019_audit_chain",
    "0020_ticket_events",
    "0021_alerts",
    "0022_finding_pages",
    "0023_roles",
    "0024_sign_in",
    "0025_partitions_by_month",
    "0027_audit_accounts",
    "0028_rules_of_redacted_exports_since_0027",
    "0029_snoozed_exports_since_0027",
    "0030_users_by_lower_email_since_0027",
    "0031_hosts_of_groups_since_0027",
]

#: Every unique index, except primary keys and those on single columns, which the models declare.
UNIQUE: Final = {
    ("attempts", ("export_id",), "outcome = 'delivered'"),
    ("attempts", ("export_id", "number"), None),
    ("compliance_requests", ("topic", "shop_domain", "body_sha256"), None),
    ("exports", ("project_id", "open_group"), "open_group is not null"),
    ("findings", ("project_id", "fingerprint"), None),
    ("grants", ("user_id", "project_id"), "project_id is not null"),
    ("grants", ("user_id", "report_id"), "report_id is not null"),
    ("idempotency_keys", ("principal", "method", "route", "key"), None),
    ("inbound_emails", ("project_id", "message_sha256"), None),
    ("page_results", ("scan_run_id", "url"), None),
    ("ticket_events", ("export_id", "number"), None),
    ("recoveries", ("target_id",), "status = 'running'"),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database()


@pytest.fixture
def empty(empty_url: str) -> Iterator[str]:
    open_database(empty_url)
    yield empty_url
    close_database()


def name_of(model: type[BaseModel]) -> str:
    return str(model._meta.table_name)


def fields_of(model: type[BaseModel]) -> list[Field]:
    return list(model._meta.sorted_fields)


def type_of(field: Field) -> str:
    stored = field.rel_field if isinstance(field, ForeignKeyField) else field
    # A foreign key to an auto-increment column is a plain integer.
    kind: Any = type(stored)
    if stored is not field:
        kind = IntegerField if kind is AutoField else kind
    return TYPES[kind][0 if is_sqlite() else 1]


def where_of(index: Any) -> str | None:
    found = re.search(r"\bWHERE (.*)$", index.sql or "", re.DOTALL)
    return None if found is None else re.sub(r"::\w+|[()]", "", found[1]).lower()


# --- migrating


def test_migrating_twice_is_migrating_once(empty: str) -> None:
    assert [*schema_version.inspect().pending] == ALL_MIGRATIONS
    assert schema_version.migrate() == ALL_MIGRATIONS
    assert schema_version.migrate() == []
    assert not schema_version.inspect().pending


def test_a_history_with_the_older_names_is_current_and_gets_the_new_ones(empty: str) -> None:
    schema_version.migrate()
    for old, new in schema_version.RENAMED.items():
        execute("UPDATE schema_migrations SET name = ? WHERE name = ?", (old, new))
    assert schema_version.inspect() == SchemaState()
    assert schema_version.is_current()
    assert schema_version.version() == ALL_MIGRATIONS[-1]
    assert schema_version.migrate() == []
    assert [name for (name,) in rows("SELECT name FROM schema_migrations ORDER BY name")] == ALL_MIGRATIONS


def test_concurrent_migrations_take_turns_and_all_succeed(empty_url: str) -> None:
    command = [sys.executable, "-c", MIGRATE, empty_url]
    started = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    reported = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], reported
    assert sorted(out.strip() for out, _ in reported) == [str(ALL_MIGRATIONS), "[]", "[]"]


def test_a_migration_may_take_longer_than_the_lock_timeout(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    open_database(url)
    with connection(), psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (Lock.MIGRATE.value,))
        db.execute_sql("SET lock_timeout = 50")
        threading.Timer(0.4, lambda: other.execute("SELECT pg_advisory_unlock_all()")).start()
        assert schema_version.migrate() == ALL_MIGRATIONS
    close_database()


def test_a_migration_that_is_ended_for_a_worker_that_still_runs_is_run_again(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    open_database(url)
    with connection(), psycopg.connect(url) as worker, ThreadPoolExecutor(1) as pool:
        schema_version._runner().up(target=ALL_MIGRATIONS[1])
        # PostgreSQL would end the transaction that detects the deadlock; with this timeout, it is the migration.
        worker.execute("SET deadlock_timeout = '60s'")
        worker.execute("SELECT 1 FROM exports")
        migrated = pool.submit(schema_version.migrate)
        wait_until(lambda: rows("SELECT 1 FROM pg_locks WHERE NOT granted"))
        worker.execute("SELECT 1 FROM targets")
        worker.rollback()
        assert migrated.result(timeout=60) == ALL_MIGRATIONS[2:]
    close_database()


def test_a_failed_migration_leaves_nothing_behind_and_can_be_repeated(empty: str) -> None:
    with connection():
        schema_version._runner().up(target=ALL_MIGRATIONS[0])
        before = {*db.get_tables()}
        # The second to last table that the second migration creates.
        db.execute_sql("CREATE TABLE compliance_requests (id INTEGER)")
    with pytest.raises(Exception, match="compliance_requests"):
        schema_version.migrate()
    with connection():
        assert {*db.get_tables()} - {"compliance_requests"} == before
        db.execute_sql("DROP TABLE compliance_requests")
    assert schema_version.migrate() == ALL_MIGRATIONS[1:]


def test_a_waiting_migration_releases_its_connection(database_url: str) -> None:
    open_database(database_url)
    schema_version.migrate()
    assert db.is_closed()
    close_database()


# --- databases that this version cannot use


def test_in_a_new_database_all_migrations_are_pending_and_an_inspection_creates_nothing(empty: str) -> None:
    assert schema_version.inspect() == SchemaState(pending=tuple(ALL_MIGRATIONS))
    assert schema_version.inspect().problem is None
    assert not Path(empty.removeprefix("sqlite:///")).exists()
    with connection():
        assert tables() == []


def test_a_migrated_database_is_current_whatever_other_tables_it_has(database: str) -> None:
    db.execute_sql("CREATE TABLE operators_own (id INTEGER)")
    try:
        assert schema_version.inspect() == SchemaState()
    finally:
        db.execute_sql("DROP TABLE operators_own")


def test_a_database_of_a_newer_version_is_refused_with_both_remedies(empty: str) -> None:
    schema_version.migrate()
    with connection():
        execute("INSERT INTO schema_migrations (name, applied) VALUES ('0999_to_come', '2030-01-01')")
    assert schema_version.inspect() == SchemaState(unknown=("0999_to_come",))
    for words in ("0999_to_come", "install that version", "restore a backup"):
        assert words in str(schema_version.inspect().problem)
    with pytest.raises(UnsuitableDatabase, match="newer RiskRelay"):
        schema_version.migrate()


def run_of_a_newer_version(name: str) -> None:
    with connection():
        execute("INSERT INTO schema_migrations (name, applied) VALUES (?, '2030-01-01')", (name,))


def test_migrations_that_keep_this_version_working_are_accepted(empty: str) -> None:
    schema_version.migrate()
    newest = schema_version.known()[-1][:4]
    run_of_a_newer_version(f"0998_more_columns_since_{newest}")
    run_of_a_newer_version("0999_more_indexes_since_0001")
    assert schema_version.inspect() == SchemaState()
    assert schema_version.migrate() == []
    with connection():
        assert schema_version.is_current()


def test_a_running_process_ignores_migrations_that_an_upgrade_adds(
    empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema_version.migrate()
    (tmp_path / "0999_newer.py").touch()
    monkeypatch.setattr(schema_version, "MIGRATIONS", tmp_path)
    with connection():
        assert schema_version.is_current()
    assert schema_version.inspect() == SchemaState()


@pytest.mark.parametrize("name", ["0999_less_since_0998", "0999_since_0001_less", "0999_less"])
def test_migrations_that_break_this_version_are_not_accepted(empty: str, name: str) -> None:
    schema_version.migrate()
    run_of_a_newer_version("0998_more_since_0001")
    run_of_a_newer_version(name)
    assert schema_version.inspect() == SchemaState(unknown=(name,))
    with connection():
        assert not schema_version.is_current()


def test_a_migration_names_an_earlier_one_as_the_oldest_that_it_keeps_working() -> None:
    """The names of such migrations end in `_since_NNNN`; docs/architecture.md explains the rule."""
    numbers = [name[:4] for name in schema_version.known()]
    assert numbers == sorted(set(numbers))
    for name in schema_version.known():
        _, is_marked, since = name.rpartition("_since_")
        assert not is_marked or (since in numbers and since < name[:4])


#: Tables of another application: with other names, with our names, and with a history table named like ours.
FOREIGN: Final = {
    "other names": ["CREATE TABLE posts (id INTEGER, text TEXT)"],
    "our names": ["CREATE TABLE accounts (id INTEGER)", "CREATE TABLE users (id INTEGER)"],
    "a history of another form": ["CREATE TABLE schema_migrations (version TEXT)", "CREATE TABLE users (id INTEGER)"],
    "such a history alone": ["CREATE TABLE schema_migrations (version TEXT)"],
    "a history of our form": [
        "CREATE TABLE schema_migrations (id INTEGER, name TEXT, applied TEXT)",
        "INSERT INTO schema_migrations VALUES (1, '0001_initial', '2020-01-01')",
        "CREATE TABLE posts (id INTEGER)",
    ],
}


@pytest.mark.parametrize("made", FOREIGN)
def test_another_applications_database_is_refused_and_unchanged(empty: str, made: str) -> None:
    with raw(empty) as foreign:
        for statement in FOREIGN[made]:
            foreign.execute(statement)
    before = content(empty)
    assert schema_version.inspect().foreign
    with pytest.raises(UnsuitableDatabase, match=r"another application's tables .*; set DATABASE_URL"):
        schema_version.migrate()
    assert content(empty) == before


def test_tables_of_a_postgresql_extension_are_not_taken_for_another_application(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    with raw(url) as owner:
        owner.execute("CREATE TABLE spatial_ref_sys (id INTEGER)")
        # CREATE EXTENSION records such a dependency for the tables that it creates.
        owner.execute(
            "INSERT INTO pg_depend SELECT 'pg_class'::regclass, 'spatial_ref_sys'::regclass, 0, "
            "'pg_extension'::regclass, oid, 0, 'e' FROM pg_extension LIMIT 1"
        )
    open_database(url)
    assert schema_version.inspect() == SchemaState(pending=tuple(ALL_MIGRATIONS))
    close_database()


def test_migrations_use_the_first_schema_of_the_search_path(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    with raw(url) as owner:
        owner.execute("CREATE SCHEMA own")
        owner.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET search_path = own")
        owner.execute("CREATE TABLE public.posts (id INTEGER)")
    open_database(url)
    with connection():
        schema_version._runner().up(target=ALL_MIGRATIONS[1])
    assert schema_version.migrate() == ALL_MIGRATIONS[2:]
    assert schema_version.inspect() == SchemaState()
    with connection():
        assert [*rows("SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'")] == [(1,)]
    close_database()


@pytest.mark.parametrize("held", [b"no database " * 500, b"short", b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_file_that_is_no_database_is_refused_and_unchanged(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "riskrelay.db"
    path.write_bytes(held)
    open_database(f"sqlite:///{path}")
    assert schema_version.inspect().damage
    with pytest.raises(UnsuitableDatabase, match="restore a backup, or set DATABASE_URL"):
        schema_version.migrate()
    close_database()
    assert path.read_bytes() == held
    assert [each.name for each in tmp_path.iterdir()] == ["riskrelay.db"]


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    (tmp_path / "riskrelay.db").touch()
    open_database(f"sqlite:///{tmp_path / 'riskrelay.db'}")
    assert schema_version.migrate() == ALL_MIGRATIONS
    close_database()


def test_a_new_database_file_with_its_logs_and_locks_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        open_database(f"sqlite:///{tmp_path / 'new.db'}")
        schema_version.migrate()
        with connection():
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
        close_database()
    assert modes == dict.fromkeys(("new.db", "new.db-wal", "new.db-shm", "new.db.migrate.lock"), 0o600)


def test_a_migration_by_a_role_that_may_not_create_tables_fails_with_the_reason(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    with raw(url) as owner:
        owner.execute("CREATE ROLE reader LOGIN")
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    open_database(url.replace("//riskrelay@", "//reader@"))
    with pytest.raises(UnsuitableDatabase, match="permission denied for schema public"):
        schema_version.migrate()
    close_database()
    with raw(url) as owner:
        owner.execute("DROP ROLE reader")


@contextmanager
def raw(url: str) -> Iterator[Any]:
    """Open a plain connection, as another application would."""
    if url.startswith("sqlite"):
        connected: Any = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    else:
        connected = psycopg.connect(url, autocommit=True)
    try:
        yield connected
    finally:
        connected.close()


def content(url: str) -> object:
    """Return the content of a database: all files of SQLite, or the columns and migration histories of PostgreSQL."""
    if url.startswith("sqlite"):
        return {path.name: path.read_bytes() for path in Path(url.removeprefix("sqlite:///")).parent.iterdir()}
    with raw(url) as looking:
        columns = looking.execute(
            "SELECT table_schema, table_name, column_name FROM information_schema.columns "
            "WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2, 3"
        ).fetchall()
        histories = [name for _, name, column in columns if name == "schema_migrations"]
        return columns, [looking.execute(f"SELECT * FROM {name}").fetchall() for name in histories]  # noqa: S608 - our own names


# --- the tables and the models


def test_every_table_has_a_model_and_every_model_a_table(database: str) -> None:
    assert {*tables()} == {name_of(model) for model in ALL} | {"schema_migrations"}


def tables() -> list[str]:
    # SQLite's text index has no model; it consists of a virtual table and its shadow tables.
    partitions = {each for table in ("attempts", "audit_entries") for each in partitions_of(table)}
    return [name for name in db.get_tables() if name not in partitions and not name.startswith(("sqlite_", "export_words"))]


def partitions_of(table: str) -> list[str]:
    """Return the monthly partitions of a table; only they have the primary key, which does not include the month."""
    return [each.name for each in partitions_sql.partitions(table)]


def indexes_of(table: str) -> list[Any]:
    """Return the indexes of a table. peewee finds those of a partitioned table only on its partitions."""
    return [index for name in [*partitions_of(table), table][:1] for index in db.get_indexes(name)]


@pytest.mark.parametrize("model", ALL, ids=name_of)
def test_columns_are_those_of_the_model(database: str, model: type[BaseModel]) -> None:
    key = {field.name for field in model._meta.get_primary_keys()}  # type: ignore[no-untyped-call]  # peewee has no types for it
    declared = {field.column_name: (type_of(field), field.null, field.name in key) for field in fields_of(model)}
    for table in partitions_of(name_of(model)) or [name_of(model)]:
        found = {column.name: (column.data_type.lower(), column.null, column.primary_key) for column in db_columns(table)}
        assert found == declared


def db_columns(table: str) -> list[Any]:
    return list(db.get_columns(table))


@pytest.mark.parametrize("model", ALL, ids=name_of)
def test_foreign_keys_are_those_of_the_model_and_each_has_an_index(customer: Customer, model: type[BaseModel]) -> None:
    declared = {
        (field.column_name, name_of(field.rel_model), field.rel_field.column_name)
        for field in fields_of(model)
        if isinstance(field, ForeignKeyField)
    }
    found = {(key.column, key.dest_table, key.dest_column) for key in db.get_foreign_keys(name_of(model))}
    assert found == declared
    whole = [index.columns[0] for index in indexes_of(name_of(model)) if where_of(index) is None]
    assert {column for column, _, _ in declared} - {*whole} == ({"target_id"} if model is ExportRow else set())


def test_indexes_of_exports_by_target_cover_only_waiting_and_recoverable_exports(customer: Customer) -> None:
    # Targets are kept for good, and with a full index PostgreSQL would read every export that a target ever got.
    indexes = {index.name: where_of(index) for index in db.get_indexes("exports") if index.columns[0] == "target_id"}
    assert set(indexes) == {"exports_waiting", "exports_recoverable"}
    assert None not in indexes.values()


def test_both_databases_have_the_same_unique_indexes(customer: Customer) -> None:
    found = {
        (table, tuple(index.columns), where_of(index)) for table in tables() for index in indexes_of(table) if index.unique
    }
    keys = {(table, tuple(db.get_primary_keys(table)) or ("id",), None) for table in tables()}
    single = {(name_of(model), (field.column_name,), None) for model in ALL for field in fields_of(model) if field.unique}
    assert found - keys == UNIQUE | single | {("schema_migrations", ("name",), None)}


# --- frequent queries have an index


class Statements(logging.Handler):
    """Stores every statement that is sent to the database."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        sql, parameters = record.msg if isinstance(record.msg, tuple) else (str(record.msg), ())
        self.seen.append((sql, tuple(parameters or ())))


def statements_of(work: Callable[[], object]) -> list[tuple[str, tuple[Any, ...]]]:
    logger, kept = logging.getLogger("peewee"), Statements()
    logger.addHandler(kept)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        work()
    finally:
        logger.removeHandler(kept)
        logger.setLevel(level)
    asked = ("SELECT", "UPDATE", "DELETE", "WITH")
    return [(sql, parameters) for sql, parameters in kept.seen if sql.lstrip().startswith(asked)]


def plan(sql: str, parameters: tuple[Any, ...]) -> str:
    explain = "EXPLAIN QUERY PLAN " if is_sqlite() else "EXPLAIN "
    found = db.execute_sql(explain + sql, parameters).fetchall()
    return "\n".join(str(row[-1]) for row in found)


def fill(customer: Customer, count: int, ids: str = "'exp_' || n") -> None:
    """Store `count` finished exports with one attempt each, so that a full scan would be expensive."""
    target_id = make_target(customer).id
    make_approved(customer, target_id)
    [claim] = claim_due(1, NOW, 6, "worker")
    claims_sql.record_attempts([completed_attempt(claim)], NOW, "worker")
    columns = ", ".join(column.name for column in db_columns("exports"))
    copied = columns.replace("id, account_id", f"{ids}, account_id", 1).replace("source_id", "'note-' || n", 1)
    numbers = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?)"
    execute(f"INSERT INTO exports ({columns}) {numbers} SELECT {copied} FROM exports, c", (count,))  # noqa: S608 - our own names
    execute(
        "INSERT INTO attempts (id, export_id, number, started_at, outcome, total_ms, worker) "
        "SELECT 'att_' || id, id, 1, 1, 'delivered', 1, 'w' FROM exports WHERE NOT EXISTS "
        "(SELECT 1 FROM attempts WHERE export_id = exports.id)"
    )
    db.execute_sql("ANALYZE")


def fill_findings(customer: Customer, count: int) -> None:
    """Store `count` findings without exports."""
    execute(
        "INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) VALUES (1, ?, 'completed', 1, 1)",
        (customer.project_id,),
    )
    execute(
        "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?) INSERT INTO findings "
        "SELECT 'fnd_' || n, ?, '' || n, 'c', 't', 'low', 'u', '', 1, 1, 1, 1, 1, NULL, NULL, 0, '', '', 0, NULL, 0 FROM c",
        (count, customer.project_id),
    )
    db.execute_sql("ANALYZE")


def test_no_statement_that_runs_often_reads_a_whole_table(customer: Customer) -> None:
    fill(customer, 20_000)
    target_id = make_target(customer).id
    waiting = make_approved(customer, target_id)
    [held] = claim_due(1, NOW, 6, "worker")
    asked = statements_of(lambda: claim_due(4, NOW + timedelta(seconds=10), 6, "worker"))
    assert any("ORDER BY e.due_at" in sql for sql, _ in asked)
    assert any("attempts + 1" in sql for sql, _ in asked)
    asked += statements_of(lambda: queries.count_due(NOW, 1))
    asked += statements_of(lambda: claims_sql.renew([held], NOW, 6))
    asked += statements_of(lambda: claims_sql.record_attempts([completed_attempt(held)], NOW, "worker"))
    asked += statements_of(lambda: claims_sql.postpone([held], NOW, "worker"))
    asked += statements_of(lambda: queries.get(waiting, customer.account_id))
    asked += statements_of(lambda: export_list.list_page(ExportQuery(customer.account_id), limit=20))
    assert len(asked) >= 8
    for sql, parameters in asked:
        reported = plan(sql, parameters)
        assert not re.search(r"SCAN (e|exports|attempts)\b(?! USING)|Seq Scan on (exports|attempts)", reported), (
            sql,
            reported,
        )


def test_the_queries_of_workers_read_only_waiting_rows(customer: Customer) -> None:
    fill(customer, 20_000)
    target_id = make_target(customer).id
    questions: tuple[Callable[[], object], ...] = (
        lambda: throttle_state_sql.due("", 256, NOW),
        lambda: claims_sql.claim_due({target_id: 32}, NOW, 6, "worker"),
        lambda: queries.count_due(NOW, 1),
    )
    for question in questions:
        [(sql, parameters)] = statements_of(question)[:1]
        reported = plan(sql, parameters)
        assert "exports_waiting" in reported, reported


#: Lists by time: one status, several statuses, and both filters at once.
LISTS: Final = [
    (ExportQuery(statuses=statuses, sources=sources), sort, after)
    for statuses in ((), ("exported",), ("failed", "prepared"), tuple(map(str, ExportStatus)))
    for sources in ((), ("manual",), ("finding",))
    for sort in (ExportSort.NEWEST, ExportSort.OLDEST)
    for after in (None, ListPosition("exp_01AAAAAAAAAAAAAAAAAAAAAAAA"))
]


def test_every_list_reads_a_page_by_an_index(customer: Customer) -> None:
    fill(customer, 20_000)
    fill_findings(customer, 5_000)
    for query, sort, after in LISTS:
        asked = replace(query, account_id=customer.account_id)
        # If filters name several sets, the first statements count the beginning of each set.
        *sizes, (sql, parameters) = statements_of(partial(export_list.list_page, asked, sort, 51, after))
        assert bool(sizes) == bool(asked.statuses and asked.sources)
        reported = plan(sql, parameters)
        assert not re.search(r"SCAN (e|f|exports|findings)\b(?! USING)|Seq Scan on (exports|findings)", reported), (
            asked,
            reported,
        )
        if is_sqlite():
            # Each part is read in the order of its IDs; only the few IDs of the parts and the page itself may be sorted.
            parts = re.findall(r"SEARCH t\d+ USING (?:COVERING )?INDEX exports_account", reported)
            assert reported.count("TEMP B-TREE") <= len(parts) + 1
        else:
            assert reported.count("exports_account") >= 1, reported


def test_attempts_are_read_by_the_index_of_their_export(customer: Customer) -> None:
    # In the same month as the attempts of other exports.
    fill(customer, 20_000, "'exp_00000000' || (100000000000000000 + n)")
    [(export_id,)] = rows("SELECT MIN(export_id) FROM attempts")
    asked = statements_of(lambda: attempts.list_page(export_id, customer.account_id, 51))
    [last] = attempts.list_page(export_id, customer.account_id, 51)
    asked += statements_of(lambda: attempts.list_page(export_id, customer.account_id, 51, last.id))
    assert len(asked) == 5
    for sql, parameters in asked:
        reported = plan(sql, parameters)
        assert not re.search(r"SCAN \w+(?! USING)\b|Seq Scan on|TEMP B-TREE", reported), (sql, reported)


def test_tokens_keys_targets_and_findings_of_requests_are_found_by_an_index(customer: Customer) -> None:
    """With so few rows PostgreSQL would read whole tables, so a setting forbids it."""
    if not is_sqlite():
        db.execute_sql("SET enable_seqscan = off")
    target_id = make_target(customer).id
    request = idempotency.KeyedRequest("user:1", "POST", "/x", "key", "a" * 64)
    body = PostbackForm().read(postback(issues=[issue("a"), issue("b")]))
    asked = statements_of(lambda: tokens.principal_for(customer.token, NOW))
    asked += statements_of(lambda: idempotency.begin(request, NOW, timedelta(hours=1)))
    asked += statements_of(lambda: idempotency.begin(request, NOW, timedelta(hours=1)))
    asked += statements_of(lambda: record_postback(body, customer.project_id, NOW))
    asked += statements_of(lambda: record_postback(body, customer.project_id, NOW))
    asked += statements_of(lambda: targets.get(target_id, None))
    asked += statements_of(lambda: targets.list_page(customer.account_id, None, 51, NOW))
    asked += statements_of(lambda: pings.claim_next(NOW))
    asked += statements_of(lambda: validations.claim_next(NOW + timedelta(days=1), 30))
    assert len(asked) >= 9
    for sql, parameters in asked:
        reported = plan(sql, parameters)
        # Scans of the statement's own values are ignored: constant rows, the rows `r` made of them, and json_each.
        reported = re.sub(r"SCAN (CONSTANT ROW|\d+ CONSTANT ROWS|r|json_each)\b", "", reported)
        assert not re.search(r"SCAN \w+(?! USING)\b|Seq Scan on", reported), (sql, reported)


def test_a_page_of_targets_is_one_statement(customer: Customer) -> None:
    for _ in range(3):
        make_target(customer)
    assert len(statements_of(lambda: targets.list_page(customer.account_id, None, 51, NOW))) == 1


def test_a_token_of_another_kind_is_found_with_one_statement(customer: Customer) -> None:
    _, text = tokens.create(make_customer().email, TokenKind.PLATFORM, NOW)
    assert len(statements_of(lambda: tokens.principal_for(text, NOW))) == 1
    assert rows("SELECT COUNT(*) FROM tokens") == [(3,)]
