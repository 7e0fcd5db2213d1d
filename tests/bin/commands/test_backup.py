"""`backup` and `restore` as an operator runs them: their results, their errors, and what an error leaves unchanged."""

import http.server
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from runtime.clock import utc_now
from schemas.base.console_session import SessionEndReason
from storage.accounts import sessions, tokens
from storage.compliance import erasure
from storage.db.engine import execute, rows, transaction
from storage.db.locks import Lock, exclusive
from storage.exports import worker_heartbeats
from storage.maintenance import backup as backup_files
from storage.maintenance import sqlite_copies
from storage.maintenance.postgres_dumps import DumpFailed, folder_for
from tests.support.database.databases import on_postgresql
from tests.support.factories import make_approved, make_customer, make_target
from tests.support.fakes import LoopbackServer
from tests.support.http.console_user import make_console_token
from tests.support.processes.backups import FOREIGN_KEY, CommandRunner, refusal, store_key_check
from tests.support.servers.redis_and_postgres import PostgresServer, processes_in

TOOLS = ("pg_dump", "pg_restore", "psql")


@pytest.fixture
def operator(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandRunner:
    """Runs commands in an installation with a customer, an active target and an approved export."""
    return operator_of(database_url, tmp_path, monkeypatch)


@pytest.fixture
def on_sqlite(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandRunner:
    """The same as `operator`, but only on SQLite, for tests that do not depend on the kind of database."""
    return operator_of(sqlite_url, tmp_path, monkeypatch)


def operator_of(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CommandRunner:
    made = CommandRunner(folder / "here", url)
    monkeypatch.chdir(made.folder)
    with made.database():
        store_key_check()
        customer = make_customer()
        make_approved(customer, make_target(customer).id)
    return made


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- backup


def test_a_backup_is_one_private_file_and_its_record_describes_it(operator: CommandRunner) -> None:
    path = operator.folder / "first.backup"
    record = operator.json("backup", path)
    assert mode_of(path) == 0o600
    assert [each.name for each in operator.folder.iterdir() if each.name != "data"] == ["first.backup"]
    kind = "sqlite" if operator.url.startswith("sqlite") else "postgresql"
    assert (record["file"], record["bytes"], record["database"]) == (str(path), path.stat().st_size, kind)
    assert (record["exports"], record["keys_included"], record["removed"]) == (1, False, [])
    digest = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]
    assert record["sha256"] == digest
    reported = operator.run("backup", path, "--force")
    assert (reported.exit_code, reported.stderr) == (0, "")
    assert "Keep ENCRYPTION_KEYS elsewhere" in reported.stdout


def test_a_backup_replaces_an_existing_file_only_with_force(on_sqlite: CommandRunner) -> None:
    path = on_sqlite.folder / "precious"
    path.write_text("mine")
    assert "--force" in on_sqlite.refused("backup", path)
    assert path.read_text() == "mine"
    assert on_sqlite.run("backup", path, "--force").exit_code == 0
    assert path.read_bytes()[:15] == b"SQLite format 3"
    assert mode_of(path) == 0o600


def test_fifos_and_symbolic_links_are_never_replaced(on_sqlite: CommandRunner) -> None:
    fifo, link, theirs = (on_sqlite.folder / name for name in ("fifo", "link", "theirs"))
    os.mkfifo(fifo)
    theirs.write_text("theirs")
    link.symlink_to(theirs)
    for words in (("backup", "--force"), ("compliance", "export"), ("audit", "export")):
        assert "fifo cannot be written: it is not a regular file." in on_sqlite.refused(*words, fifo)
        assert "link cannot be written: it is a symbolic link" in on_sqlite.refused(*words, link)
    assert "it is a symbolic link" in on_sqlite.refused("backup", link)
    assert (stat.S_ISFIFO(fifo.lstat().st_mode), link.is_symlink(), theirs.read_text()) == (True, True, "theirs")


def test_backups_are_neither_written_to_standard_output_nor_read_from_a_fifo(on_sqlite: CommandRunner) -> None:
    assert on_sqlite.run("backup", "-").exit_code == 2
    pipe = on_sqlite.folder / "pipe"
    os.mkfifo(pipe)
    assert "is not a file" in on_sqlite.refused("restore", pipe, "--replace", "--dry-run")


def test_a_file_name_that_is_too_long_is_refused(on_sqlite: CommandRunner) -> None:
    long = on_sqlite.folder / ("x" * 300)
    for words in ((long,), (f"{long}/",), (long, "--keep", "1"), (long, "--force"), (on_sqlite.folder / ("x" * 252),)):
        assert "cannot be written: File name too long" in on_sqlite.refused("backup", *words)


def test_a_backup_file_name_may_contain_bytes_that_are_not_utf_8(on_sqlite: CommandRunner) -> None:
    path = on_sqlite.folder / os.fsdecode(b"caf\xe9.backup")
    assert on_sqlite.run("backup", path).exit_code == 0
    assert path.read_bytes()[:15] == b"SQLite format 3"


def test_keep_deletes_all_but_the_newest_backups_of_a_folder(on_sqlite: CommandRunner) -> None:
    folder = on_sqlite.folder / "backups"
    for name in ("riskrelay-20200101T000000Z.backup", "riskrelay-20210101T000000Z.backup", "riskrelay-mine.backup", "other"):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    record = on_sqlite.json("backup", folder, "--keep", "2")
    assert re.fullmatch(r"riskrelay-\d{8}T\d{6}Z\.backup", Path(record["file"]).name)
    assert record["removed"] == [str(folder / "riskrelay-20200101T000000Z.backup")]
    names = {"riskrelay-20210101T000000Z.backup", "riskrelay-mine.backup", "other", Path(record["file"]).name}
    assert {each.name for each in folder.iterdir()} == names


def test_keep_creates_a_missing_folder_and_rejects_a_file(on_sqlite: CommandRunner) -> None:
    folder = on_sqlite.folder / "new" / "backups"
    record = on_sqlite.json("backup", folder, "--keep", "1")
    assert Path(record["file"]).parent == folder
    assert mode_of(folder) == 0o700
    file = on_sqlite.folder / "file"
    file.touch()
    for words in ((file, "--keep", "1"), (f"{file}/",)):
        assert "cannot be written: File exists" in on_sqlite.refused("backup", *words)


def test_a_path_that_ends_with_a_slash_is_a_folder(on_sqlite: CommandRunner) -> None:
    folder = on_sqlite.folder / "srv" / "backups"
    for _ in range(2):
        assert Path(on_sqlite.json("backup", f"{folder}/", "--force")["file"]).parent == folder
    assert mode_of(folder) == 0o700


def test_keep_never_deletes_the_new_backup_even_if_others_have_later_dates(on_sqlite: CommandRunner) -> None:
    folder = on_sqlite.folder / "backups"
    folder.mkdir()
    ahead = [folder / f"riskrelay-2999010{day}T000000Z.backup" for day in (1, 2)]
    for each in ahead:
        each.touch()
    record = on_sqlite.json("backup", folder, "--keep", "1")
    assert {str(each) for each in folder.iterdir()} == {record["file"], str(ahead[1])}


def test_partial_files_of_killed_backups_are_deleted(on_sqlite: CommandRunner) -> None:
    folder = on_sqlite.folder / "backups"
    folder.mkdir()
    for end in ("", "-wal", "-shm", "-journal"):
        Path(f"{folder}/.riskrelay-20200101T000000Z.backup.part{end}").touch()
    record = on_sqlite.json("backup", folder)
    assert [each.name for each in folder.iterdir()] == [Path(record["file"]).name]


def test_a_backup_does_not_overwrite_the_database_file(on_sqlite: CommandRunner) -> None:
    path = Path(on_sqlite.url.removeprefix("sqlite:///"))
    alias = on_sqlite.folder / "alias.backup"
    alias.hardlink_to(path)
    number = path.stat().st_ino
    for each in (path, alias):
        assert "the database itself" in on_sqlite.refused("backup", each, "--force")
    assert path.stat().st_ino == number


def test_a_backup_to_an_unwritable_folder_is_reported(on_sqlite: CommandRunner) -> None:
    reported = on_sqlite.refused("backup", on_sqlite.folder / "nowhere" / "x.backup")
    assert "cannot be written" in reported
    assert "create its folder" in reported
    assert "cannot be written" in on_sqlite.refused("backup", "/proc/x.backup")


def test_only_one_backup_or_restore_runs_at_a_time(operator: CommandRunner) -> None:
    file = operator.backed_up()
    with operator.database(), exclusive(Lock.BACKUP):
        assert "Another backup is running" in refusal(operator.run_in_subprocess("backup", "x.backup"))
        assert "Another backup is running" in refusal(operator.run_in_subprocess("restore", file, "--replace"))
    with operator.database(), exclusive(Lock.RESTORE):
        assert "Another restore is running" in refusal(operator.run_in_subprocess("restore", file, "--replace"))
        # A dry run does not wait either, and reports the other restore.
        dry_run = operator.run_in_subprocess("restore", file, "--replace", "--dry-run")
        assert (dry_run.exit_code, "Another restore is running" in dry_run.stdout) == (1, True)
        assert "Another restore is running" in operator.run_in_subprocess("work").stderr
    with operator.database(), exclusive(Lock.COMPLIANCE):
        # The restore would bring back data that it erases meanwhile.
        assert "Another compliance is running" in refusal(operator.run_in_subprocess("restore", file, "--replace"))
    assert sorted(each.name for each in operator.folder.iterdir()) == ["data", "taken.backup"]


def test_a_backup_with_wrong_encryption_keys_succeeds_with_a_warning(on_sqlite: CommandRunner) -> None:
    reported = on_sqlite.run("backup", "x.backup", ENCRYPTION_KEYS=FOREIGN_KEY)
    assert reported.exit_code == 0
    assert "ENCRYPTION_KEYS does not open" in reported.stderr


def test_a_backup_of_a_locked_database_succeeds_with_a_warning(on_sqlite: CommandRunner) -> None:
    old = on_sqlite.folder / "riskrelay-20200101T000000Z.backup"
    old.touch()
    with on_sqlite.database(), transaction():
        execute("UPDATE installation SET backup_at = 1")
        done = on_sqlite.run_in_subprocess("backup", ".", "--keep", "1", "--json")
    assert (done.exit_code, json.loads(done.stdout)["removed"]) == (0, [old.name])
    assert "The backup is complete, but alerts do not know of it" in done.stderr


def test_a_backup_of_a_damaged_database_fails_and_writes_no_file(on_sqlite: CommandRunner) -> None:
    path = Path(on_sqlite.url.removeprefix("sqlite:///"))
    damage(path)
    assert "backup failed" in on_sqlite.refused("backup", "x.backup")
    assert not (on_sqlite.folder / "x.backup").exists()


# --- invalid backups


def damage(path: Path) -> None:
    """Overwrite a page in the middle of a file."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        [(page,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'exports'")
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def garbage(file: Path) -> None:
    file.write_bytes(os.urandom(8192))


def nothing(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("spoil", [cut, garbage, nothing])
def test_restoring_a_truncated_or_invalid_file_is_refused_and_changes_nothing(
    operator: CommandRunner, spoil: Callable[[Path], None]
) -> None:
    file = operator.backed_up()
    before = operator.contents()
    spoil(file)
    reported = operator.refused("restore", file, "--replace")
    assert "is damaged" in reported or "is not a backup of RiskRelay" in reported
    assert operator.contents() == before
    assert [each.name for each in (operator.folder / "data").iterdir()] == []


def test_restoring_a_backup_with_a_damaged_page_is_refused(on_sqlite: CommandRunner) -> None:
    file = on_sqlite.backed_up()
    damage(file)
    assert "is damaged" in on_sqlite.refused("restore", file, "--replace")


def test_restoring_another_programs_database_is_refused(on_sqlite: CommandRunner, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE notes (id INTEGER)")
    connection.close()
    assert "not a backup of RiskRelay" in on_sqlite.refused("restore", other, "--replace")


def test_restoring_a_copy_of_a_database_in_use_is_refused(on_sqlite: CommandRunner) -> None:
    path = Path(on_sqlite.url.removeprefix("sqlite:///"))
    with on_sqlite.database():
        make_customer()
        copied = on_sqlite.folder / "copied.db"
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{copied}{end}")
    assert "a database in use" in on_sqlite.refused("restore", copied, "--replace")


def taken(operator: CommandRunner, name: str) -> Path:
    """Take a backup of a state that the command would refuse; return its file."""
    file = operator.folder / name
    file.touch()
    backup_files.take(operator.url, file, lambda _left, _of: None)
    return file


def test_a_backup_of_a_newer_version_is_refused(operator: CommandRunner) -> None:
    newer = "9999_from_the_future"
    with operator.database():
        execute(
            "INSERT INTO schema_migrations (id, name, applied) SELECT 9999, ?, MAX(applied) FROM schema_migrations", (newer,)
        )
        file = taken(operator, "newer.backup")
        execute("DELETE FROM schema_migrations WHERE name = ?", (newer,))
    before = operator.contents()
    assert f"newer RiskRelay ({newer})" in operator.refused("restore", file, "--replace")
    assert operator.contents() == before


def test_restoring_a_backup_without_a_key_check_is_refused(operator: CommandRunner) -> None:
    with operator.database():
        execute("DELETE FROM installation")
        file = taken(operator, "unkeyed.backup")
    assert "contains no key check" in operator.refused("restore", file, "--replace")


def test_restoring_a_backup_encrypted_with_a_missing_key_is_refused_and_changes_nothing(operator: CommandRunner) -> None:
    file = operator.backed_up()
    before = operator.contents()
    reported = operator.refused("restore", file, "--replace", ENCRYPTION_KEYS=FOREIGN_KEY)
    assert "encrypted with a key that ENCRYPTION_KEYS does not have; add the key of its installation there" in reported
    dry_run = operator.run("restore", file, "--replace", "--dry-run", ENCRYPTION_KEYS=FOREIGN_KEY)
    assert (dry_run.exit_code, dry_run.stdout, dry_run.stderr) == (1, "", reported)
    without_keys = operator.run("restore", file, "--replace", ENCRYPTION_KEYS="")
    assert (without_keys.exit_code, "ENCRYPTION_KEYS is not set" in without_keys.stderr) == (2, True)
    assert operator.contents() == before
    # The key of the backup is added to ENCRYPTION_KEYS, as the message says.
    both = f"{FOREIGN_KEY},{operator.environment['ENCRYPTION_KEYS']}"
    assert operator.run("restore", file, "--replace", "--dry-run", ENCRYPTION_KEYS=both).exit_code == 0
    assert operator.run("restore", file, "--replace", ENCRYPTION_KEYS=both).exit_code == 0


def test_sqlite_and_postgresql_backups_are_restored_only_to_their_own_kind(
    operator: CommandRunner, on_sqlite: CommandRunner, postgres_server: PostgresServer
) -> None:
    file = operator.backed_up()
    is_sqlite = operator.url.startswith("sqlite")
    other = postgres_server.create_database() if is_sqlite else f"sqlite:///{operator.folder}/new.db"
    assert "each is restored to its own kind" in operator.refused("restore", file, DATABASE_URL=other)


# --- reasons to refuse a restore


def test_a_restore_replaces_a_database_with_accounts_only_with_replace(operator: CommandRunner) -> None:
    file = operator.backed_up()
    with operator.database():
        make_customer()
    before = operator.contents()
    assert "2 accounts would be replaced; use --replace" in operator.refused("restore", file)
    assert operator.contents() == before
    assert operator.json("restore", file, "--replace")["exports"] == 1
    assert len(operator.contents()["accounts"]) == 1


def test_a_restore_prints_the_resume_command_only_if_it_paused_a_target(on_sqlite: CommandRunner) -> None:
    active = on_sqlite.backed_up()
    reported = on_sqlite.run("restore", active, "--replace")
    assert "The restore paused 1 target. To resume deliveries: bin/riskrelay target resume --all." in reported.stdout
    assert "It also resumes targets that a person paused before the backup" in reported.stdout
    with on_sqlite.database():
        execute("UPDATE targets SET status = 'disabled'")
    disabled = taken(on_sqlite, "disabled.backup")
    reported = on_sqlite.run("restore", disabled, "--replace")
    assert (reported.exit_code, "target resume" in reported.stdout) == (0, False)


def test_a_restore_is_refused_while_a_worker_is_running(operator: CommandRunner) -> None:
    file = operator.backed_up()
    with operator.database():
        worker_heartbeats.beat("worker:elsewhere:1", utc_now())
    before = operator.contents()
    assert "A worker is running (worker:elsewhere:1)" in operator.refused("restore", file, "--replace")
    assert operator.contents() == before


class Silent(http.server.BaseHTTPRequestHandler):
    """Responds to every request with an error, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service_at() -> Iterator[Callable[[str], None]]:
    """Return a function that starts an HTTP server at an address, like a running service."""
    servers: list[http.server.HTTPServer] = []

    def started(bind: str) -> None:
        host, _, port = bind.rpartition(":")
        servers.append(http.server.HTTPServer((host, int(port)), Silent))
        threading.Thread(target=servers[0].serve_forever, daemon=True).start()

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_restore_is_refused_while_the_service_is_running(
    on_sqlite: CommandRunner, service_at: Callable[[str], None]
) -> None:
    file = on_sqlite.backed_up()
    service_at(on_sqlite.environment["BIND"])
    assert "The service is running at 127.0.0.1:" in on_sqlite.refused("restore", file, "--replace")


def test_a_server_without_http_at_the_address_of_the_service_does_not_prevent_a_restore(on_sqlite: CommandRunner) -> None:
    file = on_sqlite.backed_up()
    with LoopbackServer(lambda peer: peer.send(b"SSH-2.0-OpenSSH_9.2\r\n")) as server:
        restored = on_sqlite.run("restore", file, "--replace", BIND=f"127.0.0.1:{server.port}")
        assert (restored.exit_code, server.connections) == (0, 1), restored.stderr


def test_a_restore_to_an_unavailable_or_foreign_database_is_refused(
    operator: CommandRunner, postgres_server: PostgresServer
) -> None:
    file = operator.backed_up()
    if operator.url.startswith("sqlite"):
        assert "a folder that does not exist" in operator.refused(
            "restore", file, DATABASE_URL=f"sqlite:///{operator.folder}/no/x.db"
        )
        return
    away = operator.url.replace(f":{urlsplit(operator.url).port}", ":1")
    assert "database is unavailable" in operator.refused("restore", file, DATABASE_URL=away)
    other = postgres_server.create_database()
    with psycopg.connect(other) as connection:
        connection.execute("CREATE TABLE notes (id INTEGER)")
    assert "another application's tables" in operator.refused("restore", file, "--replace", DATABASE_URL=other)
    with psycopg.connect(other) as connection:
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == [("notes",)]


def test_a_dry_run_lists_all_effects_and_obstacles_and_changes_nothing(operator: CommandRunner) -> None:
    file = operator.backed_up()
    with operator.database():
        make_customer()
        execute(
            "INSERT INTO redactions (request_id, table_name, row_id, redacted_at) VALUES ('cpl_1', 'exports', 'exp_1', 1)"
        )
        worker_heartbeats.beat("worker:elsewhere:1", utc_now())
    before = operator.contents()
    refused = operator.run("restore", file, "--dry-run", "--json")
    record = json.loads(refused.stdout)
    assert (refused.exit_code, refused.stderr) == (1, "")
    assert {name: record[name] for name in record if name not in {"file", "obstacles"}} == {
        "would_run": [],
        "would_pause": 1,
        "would_redact": 1,
        "replaces_accounts": 2,
        "replaces_exports": 1,
    }
    assert ["worker" in reported or "--replace" in reported for reported in record["obstacles"]] == [True, True]
    assert operator.run("restore", file, "--dry-run").exit_code == 1
    assert operator.contents() == before
    assert list((operator.folder / "data").iterdir()) == []


def test_a_dry_run_succeeds_if_nothing_prevents_the_restore(operator: CommandRunner) -> None:
    file = operator.backed_up()
    done = operator.run("restore", file, "--dry-run", "--replace")
    assert (done.exit_code, done.stderr) == (0, "")
    assert operator.run("restore", file, "--replace").exit_code == 0


def test_a_restore_with_a_truncated_redactions_file_is_refused_and_changes_nothing(operator: CommandRunner) -> None:
    file = operator.backed_up()
    assert operator.run("compliance", "export", "redactions").exit_code == 0
    redactions = operator.folder / "redactions"
    assert mode_of(redactions) == 0o600
    assert operator.run("compliance", "export").stdout == redactions.read_text()
    redactions.write_text("".join(redactions.read_text().splitlines(keepends=True)[:-1]))
    before = operator.contents()
    assert "damaged: it was cut off" in operator.refused("restore", file, "--replace", "--redactions", redactions)
    assert operator.contents() == before


# --- existing databases and files


def test_a_restore_keeps_the_replaced_database_in_a_private_file(on_sqlite: CommandRunner) -> None:
    file = on_sqlite.backed_up()
    with on_sqlite.database():
        make_customer()
    before = on_sqlite.contents()
    path = Path(on_sqlite.url.removeprefix("sqlite:///"))
    kept = Path(on_sqlite.json("restore", file, "--replace")["replaced_database"])
    assert (kept.parent, mode_of(kept)) == (path.parent, 0o600)
    assert kept.name.startswith(f"{path.name}.before-restore-20")
    assert CommandRunner(on_sqlite.folder, f"sqlite:///{kept}").contents() == before
    assert not list(path.parent.glob("*.restoring*"))


def test_a_restore_that_cannot_keep_the_replaced_database_changes_nothing(
    on_sqlite: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(_database: Path, copy: Path, _progress: object) -> None:
        # SQLite leaves a log beside the copy if the disk becomes full.
        Path(f"{copy}-wal").touch()
        raise sqlite3.OperationalError("database or disk is full")

    file, before = on_sqlite.backed_up(), on_sqlite.contents()
    monkeypatch.setattr(sqlite_copies, "take", take)
    reported = on_sqlite.refused("restore", file, "--replace")
    assert "The restore failed: database or disk is full. The database is unchanged." in reported
    assert on_sqlite.contents() == before
    assert not [*Path(on_sqlite.url.removeprefix("sqlite:///")).parent.glob("*-restor*")]


def test_a_restore_keeps_a_damaged_database_in_another_file(on_sqlite: CommandRunner) -> None:
    file = on_sqlite.backed_up()
    wanted = on_sqlite.contents()["exports"]
    path = Path(on_sqlite.url.removeprefix("sqlite:///"))
    path.write_bytes(b"\x00" * 40_000)
    assert "cannot be read would be replaced" in on_sqlite.refused("restore", file)
    done = on_sqlite.run("restore", file, "--replace", "--json")
    assert "found no erasures after the backup" in done.stderr
    kept = json.loads(done.stdout)["replaced_database"]
    assert Path(kept).read_bytes() == b"\x00" * 40_000
    assert on_sqlite.contents()["exports"] == wanted


def test_a_leftover_write_ahead_log_is_not_applied_to_the_restored_database(on_sqlite: CommandRunner) -> None:
    file = on_sqlite.backed_up()
    path = Path(on_sqlite.url.removeprefix("sqlite:///"))
    log = path.with_name("kept-wal")
    with on_sqlite.database():
        make_customer()
        shutil.copy(f"{path}-wal", log)
    path.unlink()
    shutil.copy(log, f"{path}-wal")
    record = on_sqlite.json("restore", file)
    assert (record["replaced_database"], record["exports"]) == (None, 1)
    assert len(on_sqlite.contents()["accounts"]) == 1


def test_open_connections_read_and_write_the_restored_database(operator: CommandRunner) -> None:
    """Replacing the file by a rename would leave open connections with the old file, and its log with the new file."""
    file = operator.backed_up()
    with operator.database():
        make_customer()
        assert rows("SELECT COUNT(*) FROM accounts") == [(2,)]
        assert operator.run_in_subprocess("restore", file, "--replace").exit_code == 0
        assert rows("SELECT COUNT(*) FROM accounts") == [(1,)]
        make_customer()
        assert rows("SELECT COUNT(*) FROM accounts") == [(2,)]


def test_a_restore_ends_every_session(operator: CommandRunner) -> None:
    """Otherwise, sessions that ended since the backup would be valid again."""
    with operator.database():
        customer = make_customer()
        principal = tokens.principal_for(make_console_token(customer), utc_now())
        assert principal is not None
        secrets = [sessions.begin(principal, "a browser", utc_now()) for _ in range(2)]
    file = operator.backed_up()
    with operator.database():
        [session_id] = [each.id for each in sessions.list_live(utc_now(), 1)]
        sessions.end(session_id, SessionEndReason.SIGNED_OUT, utc_now(), principal.key)
    operator.json("restore", file, "--replace")
    with operator.database():
        reported = [ended for _, ended in sessions.authenticate_cookies(secrets, "a browser", utc_now())]
        noted = rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'end_session' AND reason = 'restored'")
    assert reported == [SessionEndReason.RESTORED, SessionEndReason.RESTORED]
    assert noted == [(2,)]


def test_audit_ids_continue_after_the_last_one_of_the_backup(operator: CommandRunner) -> None:
    file = operator.backed_up()
    with operator.database():
        highest = rows("SELECT MAX(id) FROM audit_entries")[0][0]
    operator.json("restore", file, "--replace")
    with operator.database():
        # The start of the restore, the pause of the target, and the end of the restore.
        entries = rows("SELECT id, action, subject_id, reason FROM audit_entries WHERE id > ? ORDER BY id", (highest,))
        noted = ["begin_restore", "pause_target", "restore"]
        assert [entry[:2] for entry in entries] == [*enumerate(noted, highest + 1)]
        assert [(entry[3] or "")[:8] for entry in entries] == ["", "restored", "sha256:" + backup_files.sha256_of(file)[:1]]


def test_a_restore_changes_no_tables_of_other_applications(postgres_url: str, tmp_path: Path) -> None:
    operator = CommandRunner(tmp_path / "here", postgres_url)
    with operator.database():
        store_key_check()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id INTEGER)")
        try:
            file = operator.backed_up()
            connection.execute("INSERT INTO notes VALUES (1)")
            operator.json("restore", file)
            assert connection.execute("SELECT id FROM notes").fetchall() == [(1,)]
            # A table that refers to a replaced table prevents the restore.
            connection.execute("CREATE TABLE more (account_id INTEGER REFERENCES accounts (id))")
            connection.execute("CREATE VIEW report AS SELECT count(*) FROM exports")
            refused = operator.run("restore", file, "--replace")
            assert refused.exit_code == 1
            assert "because other objects depend on them DETAIL:  " in refused.stderr
            assert "depends on table" in refused.stderr
            assert refused.stderr.endswith("The database is unchanged.\n")
            assert connection.execute("SELECT count(*) FROM report").fetchall() == [(1,)]
        finally:
            connection.execute("DROP TABLE IF EXISTS more; DROP VIEW IF EXISTS report; DROP TABLE notes")


# --- PostgreSQL's programs


def make_tools(folder: Path, release: str) -> Path:
    folder.mkdir()
    for name in TOOLS:
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {release}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_the_oldest_pg_dump_that_supports_the_server_is_used(tmp_path: Path) -> None:
    old, fit, new = (make_tools(tmp_path / release, release) for release in ("14.2", "15.6 (Debian 15.6-1)", "18beta1"))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pg_dump").touch(0o755)
    folders = [new, broken, old, fit]
    assert [folder_for(server, folders) for server in (13, 14, 15, 16, 18)] == [old, old, fit, new, new]
    with pytest.raises(DumpFailed, match="PostgreSQL 19 or newer are needed, and those found are of PostgreSQL 18"):
        folder_for(19, folders)
    with pytest.raises(DumpFailed, match="apt-get install postgresql-client-15"):
        folder_for(15, [broken])


@on_postgresql
def test_database_passwords_are_passed_in_the_environment_and_on_no_command_line(
    operator: CommandRunner, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    folder, seen = tmp_path / "tools", tmp_path / "seen"
    folder.mkdir()
    for name in TOOLS:
        noted = f'[ "$1" = --version ] || echo "{name} $* [$PGPASSWORD]" >> "{seen}"'
        (folder / name).write_text(f'#!/bin/sh\n{noted}\nexec "{postgres_server.binaries}/{name}" "$@"\n')
        (folder / name).chmod(0o755)
    changes = {
        "DATABASE_URL": operator.url.replace("riskrelay@", "riskrelay:s3cr3t%40word@"),
        "PATH": f"{folder}:{operator.environment['PATH']}",
    }
    assert operator.run("backup", "x.backup", **changes).exit_code == 0
    assert operator.run("restore", "x.backup", "--replace", **changes).exit_code == 0
    reported = seen.read_text().splitlines()
    assert {line.split()[0] for line in reported} == {*TOOLS}
    assert not [line for line in reported if "s3cr3t" in line.partition("[")[0]]
    assert {line.partition("[")[2] for line in reported if line.startswith(("pg_dump", "psql"))} == {"s3cr3t@word]"}
    assert not list(processes_in(folder))


def test_a_database_with_its_own_schema_is_backed_up_and_restored(postgres_server: PostgresServer, tmp_path: Path) -> None:
    url = postgres_server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA ours")
        connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET search_path TO ours")
    own = CommandRunner(tmp_path / "own", url)
    assert own.run("migrate").exit_code == 0
    with own.database():
        store_key_check()
        customer = make_customer()
        export_id = make_approved(customer, make_target(customer).id)
    file = own.backed_up()
    with own.database(), transaction():
        erasure.ERASABLE_TABLES[-1].erase([export_id], utc_now(), "cpl_1")
    record = own.json("restore", file, "--replace")
    assert (record["redactions_repeated"], record["targets_paused"]) == (1, 1)
    with own.database():
        assert rows("SELECT current_schema()") == [("ours",)]
        assert rows("SELECT status FROM ours.exports WHERE redacted_at IS NOT NULL") == [("failed",)]
