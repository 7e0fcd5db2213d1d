"""Backups of both databases, taken and restored: what they contain, which files they leave, and what they wait for."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from runtime.clock import utc_now
from schemas.targets.pings import NO_WORKER
from storage.compliance import requests as compliance_requests
from storage.db.engine import database as db
from storage.db.engine import execute, rows
from storage.exports import worker_heartbeats
from storage.maintenance import backup as backup_files
from storage.maintenance import restore as restoring
from storage.maintenance import sqlite_copies
from storage.maintenance.backup import BackupRefused
from storage.maintenance.postgres_dumps import rows_of
from storage.maintenance.sqlite_copies import DamagedCopy
from storage.targets import pings, targets
from tests.support.database.databases import on_postgresql, on_sqlite
from tests.support.factories import Customer, make_approved, make_customer, make_exports, make_target, make_tracker
from tests.support.processes.backups import VAULT, contents, store_key_check


def silent(_left: int, _of: int) -> None:
    """Ignore the progress."""


def taken(url: str, file: Path) -> Path:
    file.touch()
    backup_files.take(url, file, silent)
    return file


def filled(path: Path, pages: int) -> Path:
    """Create a database of so many pages, in WAL mode as ours."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE notes (said BLOB)")
        connection.execute("INSERT INTO notes VALUES (zeroblob(?))", (pages * 4096,))
        connection.commit()
    return path


@contextmanager
def opened_by_another(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        yield connection


# --- both databases


def test_a_backup_states_its_contents_and_the_targets_that_a_restore_pauses(
    database: str, customer: Customer, tmp_path: Path
) -> None:
    store_key_check()
    for verb in ("", "", "pause", "disable"):
        target = make_target(customer)
        if verb:
            targets.change_status(target.id, verb, utc_now(), "user:1")
    file = taken(database, tmp_path / "file")
    found = backup_files.examine(file, VAULT)
    assert (found.schema, found.paused_targets) == (max(row[0] for row in rows("SELECT name FROM schema_migrations")), 2)
    assert list(backup_files.read(file, "no_such_table", "id")) == []
    assert list(tmp_path.glob("file*")) == [file]


def test_a_backup_into_a_missing_folder_is_an_error(database: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises((BackupRefused, OSError)):
        backup_files.take(database, tmp_path / "nowhere" / "file", silent)


def test_a_restore_pauses_only_active_targets(database: str, customer: Customer, tmp_path: Path) -> None:
    store_key_check()
    made = {verb: make_target(customer).id for verb in ("", "pause", "disable")}
    for verb, target_id in made.items():
        if verb:
            targets.change_status(target_id, verb, utc_now(), "user:1")
    blocked, unsigned = make_target(customer).id, make_target(customer).id
    execute("UPDATE targets SET status = 'blocked', status_reason = 'private_address' WHERE id = ?", (blocked,))
    execute("UPDATE targets SET status = 'inactive', status_reason = 'no_secret' WHERE id = ?", (unsigned,))
    file = taken(database, tmp_path / "file")
    counts = put_back(database, file)
    assert counts == {"paused": 2}
    recorded = {row[0]: row[1:] for row in rows("SELECT id, status, status_reason FROM targets")}
    assert recorded == {
        made[""]: ("paused", "restored"),
        made["pause"]: ("paused", "operator"),
        made["disable"]: ("disabled", "operator"),
        blocked: ("blocked", "private_address"),
        # By now, the settings may contain a secret for it.
        unsigned: ("paused", "restored"),
    }
    targets.change_status(made[""], "resume", utc_now(), "user:1")
    assert targets.get(made[""], None).status == "active"


def test_a_restore_deletes_heartbeats_and_requests_without_waiting_clients(
    database: str, customer: Customer, tmp_path: Path
) -> None:
    store_key_check()
    target = make_target(customer)
    waiting = pings.request(target.id, customer.account_id, utc_now(), "user:1")
    begun = pings.request(target.id, customer.account_id, utc_now(), "user:1")
    execute("UPDATE pings SET started_at = requested_at WHERE id = ?", (begun,))
    execute("INSERT INTO workers (name, started_at, seen_at) VALUES ('worker:1', 1, 1)")
    file = taken(database, tmp_path / "file")
    put_back(database, file)
    assert rows("SELECT COUNT(*) FROM workers") == [(0,)]
    result = pings.get(waiting).result
    assert result is not None
    assert (result.delivered, result.error_code) == (False, NO_WORKER)
    assert pings.get(begun).result is None
    assert pings.claim_next(utc_now()) is None
    assert compliance_requests.count_unfinished() == 0


def test_after_a_restore_workers_look_up_issues_before_creating_them(
    database: str, customer: Customer, tmp_path: Path
) -> None:
    store_key_check()
    webhooks_alone = make_customer()
    make_target(webhooks_alone)
    tracker_id = make_tracker(customer, "https://gitea.example.com/acme/shop")
    exported, approved = (make_approved(customer, tracker_id, utc_now()) for _ in range(2))
    [prepared], [elsewhere] = make_exports(customer, 1), make_exports(webhooks_alone, 1)
    execute("UPDATE exports SET status = 'exported', due_at = NULL WHERE id = ?", (exported,))
    put_back(database, taken(database, tmp_path / "file"))
    flags = dict(rows("SELECT id, is_outcome_unknown FROM exports"))
    assert flags == {exported: False, approved: True, prepared: True, elsewhere: False}


def put_back(url: str, file: Path) -> dict[str, int]:
    """Restore a backup to the open database; return the counts without zeros."""
    now = utc_now()
    if url.startswith("sqlite"):
        counts, aside = restoring.put_copy(file, [], now, keep=False)
        assert aside is None
    else:
        counts = restoring.put_dump(file, url, [], now)
    return {name: count for name, count in counts.items() if count}


@on_postgresql
@pytest.mark.parametrize("off", [timedelta(hours=1), -timedelta(hours=1)], ids=["ahead", "behind"])
def test_a_living_worker_is_seen_from_a_host_whose_clock_is_off(database: str, off: timedelta) -> None:
    worker_heartbeats.beat("worker:elsewhere:1", utc_now())
    assert restoring.inspect(utc_now() + off).workers == ["worker:elsewhere:1"]


def test_any_text_is_restored_unchanged(
    database: str, customer: Customer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_key_check()
    # Also one that the encoding of a client, or of a role's sessions, cannot express.
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    actual = 'tab\t, line\n, back\\slash, \\N, \\., "quoted", ü, 🚀, \x01'
    execute("UPDATE accounts SET name = ?", (actual,))
    make_approved(customer, make_target(customer).id)
    before = contents()
    file = taken(database, tmp_path / "file")
    if database.startswith("postgresql"):
        assert [row["name"] for row in rows_of(file, "accounts")] == [actual]
    execute("UPDATE accounts SET name = 'changed'")
    put_back(database, file)
    after = contents()
    for table in ("accounts", "users", "exports", "tokens", "installation"):
        assert after[table] == before[table]


# --- SQLite


def test_a_copy_is_self_contained_and_readable_without_write_permission(tmp_path: Path) -> None:
    with opened_by_another(filled(tmp_path / "db", 50)) as writer:
        writer.execute("INSERT INTO notes VALUES ('in the log alone')")
        copy = tmp_path / "copies" / "copy"
        copy.parent.mkdir()
        sqlite_copies.take(tmp_path / "db", copy, silent)
    copy.parent.chmod(0o500)
    with sqlite_copies.opened(copy) as connection:
        assert connection.execute("SELECT COUNT(*) FROM notes").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    copy.parent.chmod(0o700)
    assert list(copy.parent.iterdir()) == [copy]


def test_a_copy_has_the_state_of_its_start_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    steps = []
    with opened_by_another(filled(tmp_path / "db", 20 * sqlite_copies.PAGES_A_STEP)) as writer:

        def meanwhile(left: int, of: int) -> None:
            steps.append((left, of))
            writer.execute("INSERT INTO notes VALUES ('meanwhile')")

        sqlite_copies.take(tmp_path / "db", tmp_path / "copy", meanwhile)
        assert writer.execute("SELECT COUNT(*) FROM notes").fetchone() == (1 + len(steps),)
    # The copy never started again: each step left fewer pages.
    assert len(steps) > 20
    assert [left for left, _ in steps] == sorted({left for left, _ in steps}, reverse=True)
    assert steps[-1][0] == 0
    with sqlite_copies.opened(tmp_path / "copy") as connection:
        assert connection.execute("SELECT COUNT(*) FROM notes").fetchone() == (1,)


def test_a_restore_waits_for_a_locked_database(tmp_path: Path) -> None:
    database, prepared = filled(tmp_path / "db", 3), filled(tmp_path / "prepared", 5)
    with opened_by_another(database) as holder:
        holder.execute("BEGIN IMMEDIATE")
        holder.execute("INSERT INTO notes VALUES ('late')")
        release = threading.Timer(0.5, lambda: holder.execute("COMMIT"))
        release.start()
        sqlite_copies.put_in_place(prepared, database)
        release.join()
        assert holder.execute("SELECT LENGTH(said) FROM notes").fetchall() == [(5 * 4096,)]
    assert not prepared.exists()


def test_a_disk_that_is_full_after_the_replacement_fails_no_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullAtCheckpoint(sqlite3.Connection):
        def execute(self, sql: str) -> sqlite3.Cursor:  # type: ignore[override]  # nothing here has parameters
            if "checkpoint" in sql:
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql)

    def open_file(path: Path, options: str) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{path}?{options}", uri=True, factory=FullAtCheckpoint)

    database, prepared = filled(tmp_path / "db", 5), filled(tmp_path / "prepared", 50)
    monkeypatch.setattr(sqlite_copies, "open_file", open_file)
    sqlite_copies.put_in_place(prepared, database)
    with closing(sqlite3.connect(database)) as replaced:
        assert replaced.execute("SELECT LENGTH(said) FROM notes").fetchall() == [(50 * 4096,)]
    assert not prepared.exists()


def test_a_database_that_cannot_be_read_is_moved_with_its_log(tmp_path: Path) -> None:
    database, aside = tmp_path / "db", tmp_path / "aside"
    for end in ("", "-wal", "-shm"):
        Path(f"{database}{end}").write_text(f"damaged{end}")
    sqlite_copies.set_aside(database, aside)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "aside": "damaged",
        "aside-wal": "damaged-wal",
        "aside-shm": "damaged-shm",
    }
    assert aside.stat().st_mode & 0o777 == 0o600


def test_a_log_without_its_database_file_is_removed_first(tmp_path: Path) -> None:
    database, prepared = tmp_path / "db", filled(tmp_path / "prepared", 5)
    Path(f"{database}-wal").write_text("of another database")
    sqlite_copies.put_in_place(prepared, database)
    assert {path.name for path in tmp_path.iterdir()} == {"db"}
    sqlite_copies.require_intact(database)


@pytest.mark.parametrize("spoil", [slice(4096, 8192), slice(0, 100), slice(4096, None)], ids=["page", "header", "rest"])
def test_a_damaged_copy_is_detected(tmp_path: Path, spoil: slice) -> None:
    copy = tmp_path / "copy"
    sqlite_copies.take(filled(tmp_path / "db", 50), copy, silent)
    held = bytearray(copy.read_bytes())
    held[spoil] = b"" if spoil.stop is None else b"\xff" * len(held[spoil])
    copy.write_bytes(held)
    with pytest.raises((DamagedCopy, sqlite3.DatabaseError)):
        sqlite_copies.require_intact(copy)


@on_sqlite
def test_a_restore_that_fails_leaves_the_database_open_and_unchanged(database: str, tmp_path: Path) -> None:
    store_key_check()
    file = taken(database, tmp_path / "file")
    before, path = contents(), str(db.obj.database)
    file.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
    with pytest.raises((DamagedCopy, sqlite3.DatabaseError)):
        restoring.put_copy(file, [], utc_now(), keep=True)
    assert str(db.obj.database) == path
    assert contents() == before
    assert not list(tmp_path.glob("*.restoring*"))
