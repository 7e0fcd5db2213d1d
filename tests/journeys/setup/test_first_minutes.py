"""The first five minutes: each obstacle is reported in one line with its fix, and leaves no partial files."""

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from storage.db.engine import close_database, connection, open_database
from tests.support.database.plausible_rows import content
from tests.support.factories import ENCRYPTION_KEY, environment
from tests.support.servers.redis_and_postgres import PostgresServer, free_port, processes_in

ROOT: Final = Path(__file__).resolve().parents[3]
RISKRELAY: Final = str(ROOT / "bin" / "riskrelay")

WITHIN_S: Final = 60.0

Settings = dict[str, str]


def settings(folder: Path, **changes: str) -> Settings:
    """Return the settings of an installation in a folder. No bytecode is written: a full disk would truncate it."""
    usual = {"BIND": f"127.0.0.1:{free_port()}", "PYTHONDONTWRITEBYTECODE": "1"}
    given = environment(folder / "data", **{**usual, **changes})
    return {name: value for name, value in given.items() if value}


def run_command(
    folder: Path, verb: str, given: Settings, largest_file: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; no file may exceed `largest_file` bytes."""

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    return subprocess.run(
        [RISKRELAY, verb],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        preexec_fn=limit,
    )


@contextmanager
def running(folder: Path, given: Settings) -> Iterator[subprocess.Popen[str]]:
    """Run `run`, and yield when it is ready. At the end, Ctrl-C must end it with exit code 0."""
    log = folder / "run.log"
    with log.open("w") as output:
        process = subprocess.Popen([RISKRELAY, "run"], cwd=folder, env=given, stdout=output, stderr=output, text=True)
    until = time.monotonic() + WITHIN_S
    try:
        while "is ready at" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0
    finally:
        process.kill()
        process.wait()
        for pid in processes_in(folder):
            os.kill(pid, signal.SIGKILL)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- obstacles to `run`


def taken_folder(folder: Path, _: PostgresServer) -> Settings:
    (folder / "data").write_text("a file, where a folder should be")
    return {}


def folder_of_the_kernel(_folder: Path, _: PostgresServer) -> Settings:
    return {"DATA_DIR": "/proc/riskrelay"}


def database_server_unavailable(_folder: Path, _: PostgresServer) -> Settings:
    return {"DATABASE_URL": f"postgresql://u:hunter2@127.0.0.1:{free_port()}/riskrelay"}


def unknown_user(_folder: Path, server: PostgresServer) -> Settings:
    return {"DATABASE_URL": server.url.replace("//riskrelay@", "//stranger:hunter2@")}


def unknown_database(_folder: Path, server: PostgresServer) -> Settings:
    return {"DATABASE_URL": server.url.replace("//riskrelay@", "//riskrelay:hunter2@").rpartition("/")[0] + "/nowhere"}


def database_folder_missing(folder: Path, _: PostgresServer) -> Settings:
    return {"DATABASE_URL": f"sqlite:///{folder}/nowhere/riskrelay.db"}


def no_database(folder: Path, _: PostgresServer) -> Settings:
    (folder / "notes.db").write_text("no database, notes\n" * 100)
    return {"DATABASE_URL": f"sqlite:///{folder}/notes.db"}


def foreign_sqlite(folder: Path, _: PostgresServer) -> Settings:
    with closing(sqlite3.connect(folder / "blog.db")) as blog, blog:
        blog.execute("CREATE TABLE posts (id INTEGER)")
    blog.close()
    return {"DATABASE_URL": f"sqlite:///{folder}/blog.db"}


def foreign_postgres(_folder: Path, server: PostgresServer) -> Settings:
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("CREATE TABLE accounts (id INTEGER)")
    return {"DATABASE_URL": url}


def other_encoding(_folder: Path, server: PostgresServer) -> Settings:
    url = server.create_database()
    name = url.rpartition("/")[2]
    with psycopg.connect(server.url, autocommit=True) as owner:
        owner.execute(f"DROP DATABASE {name}")
        owner.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII'")
    return {"DATABASE_URL": url}


def newer_version(folder: Path, _: PostgresServer) -> Settings:
    with closing(sqlite3.connect(folder / "new.db")) as newer, newer:
        newer.execute("CREATE TABLE schema_migrations (id INTEGER, name TEXT, applied TEXT)")
        newer.execute("INSERT INTO schema_migrations VALUES (1, '0001_initial_tables', ''), (2, '0999_to_come', '')")
        newer.execute("CREATE TABLE accounts (id INTEGER)")
    newer.close()
    return {"DATABASE_URL": f"sqlite:///{folder}/new.db"}


OBSTACLES: Final[list[tuple[Callable[[Path, PostgresServer], Settings], tuple[str, ...]]]] = [
    (taken_folder, ("DATA_DIR", "File exists", "set another folder")),
    (folder_of_the_kernel, ("DATA_DIR /proc/riskrelay cannot be created", "set another folder")),
    (database_server_unavailable, ("127.0.0.1", "Connection refused", "DATABASE_URL")),
    (unknown_user, ('role "stranger" does not exist', "DATABASE_URL")),
    (unknown_database, ('database "nowhere" does not exist', "DATABASE_URL")),
    (database_folder_missing, ("unable to open database file", "nowhere, a folder that does not exist")),
    (no_database, ("notes.db: file is not a database", "restore a backup, or set DATABASE_URL")),
    (foreign_sqlite, ("another application's tables (posts)", "set DATABASE_URL")),
    (foreign_postgres, ("another application's tables (accounts)", "set DATABASE_URL")),
    (other_encoding, ("encoding SQL_ASCII", "createdb --template template0 --encoding UTF8")),
    (newer_version, ("newer RiskRelay (0999_to_come)", "install that version, or restore a backup")),
]


@pytest.mark.parametrize(("make", "words"), OBSTACLES, ids=[make.__name__ for make, _ in OBSTACLES])
def test_an_obstacle_to_the_start_is_reported_in_one_line_and_nothing_is_changed(
    tmp_path: Path, postgres_server: PostgresServer, make: Callable[[Path, PostgresServer], Settings], words: tuple[str, ...]
) -> None:
    given = settings(tmp_path, **make(tmp_path, postgres_server))
    before = files(tmp_path)
    ended = run_command(tmp_path, "run", given)
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    [line] = ended.stderr.splitlines()
    assert line.startswith("riskrelay: ")
    for word in words:
        assert word in line
    assert "hunter2" not in line
    assert {name: data for name, data in files(tmp_path).items() if not name.startswith("data/redis/")} == before
    assert list(processes_in(tmp_path)) == []


def test_a_start_without_encryption_keys_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    given = settings(tmp_path, ENCRYPTION_KEYS="")
    before = files(tmp_path)
    ended = run_command(tmp_path, "run", given)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "ENCRYPTION_KEYS: set neither in the environment nor in" in ended.stderr
    assert "bin/riskrelay init" in ended.stderr
    assert files(tmp_path) == before


def test_all_invalid_settings_are_reported_at_once_with_exit_code_2(tmp_path: Path) -> None:
    wrong = {"BIND": "here", "WEB_PROCESSES": "none", "WEBHOOK_SECRET_FILE": str(tmp_path / "missing"), "REDIS_URL": "far"}
    for verb in ("run", "init", "migrate", "serve", "work"):
        ended = run_command(tmp_path, verb, settings(tmp_path, WEBHOOK_SECRET="", **wrong))
        assert (ended.returncode, ended.stdout) == (2, "")
        assert [line.strip().partition(":")[0] for line in ended.stderr.splitlines()] == ["Invalid settings", *sorted(wrong)]
    assert files(tmp_path) == {}


def test_gunicorn_started_directly_also_reports_invalid_settings(tmp_path: Path) -> None:
    python = str(ROOT / ".venv" / "bin" / "python")
    ended = subprocess.run(
        [python, "-m", "gunicorn", "--config", "python:service.server.gunicorn_config", "service.wsgi:app"],
        cwd=tmp_path,
        env={**settings(tmp_path, BIND="here"), "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ended.returncode == 2
    assert [line.strip().partition(":")[0] for line in ended.stderr.splitlines()] == ["Invalid settings", "BIND"]


# --- a full disk, simulated by a limit on the size of files


@pytest.mark.parametrize("room", [200, 20_000, 300_000], ids=["for no settings", "for no log", "for half the schema"])
def test_init_on_a_full_disk_leaves_no_partial_installation(tmp_path: Path, room: int) -> None:
    given = settings(tmp_path, ENCRYPTION_KEYS="", WEBHOOK_SECRET="")
    for verb, code, reported in (("init", 1, ("cannot be written", "free space")), ("run", 2, ("ENCRYPTION_KEYS",))):
        ended = run_command(tmp_path, verb, given, room)
        assert ended.returncode == code
        assert len(ended.stderr.splitlines()) == code
        assert "Traceback" not in ended.stderr
        assert any(word in ended.stderr for word in reported)
        assert not (tmp_path / ".env").exists()
    made = run_command(tmp_path, "init", given)
    assert made.returncode == 0, made.stderr
    assert json.loads(run_json(tmp_path, given, "token", "list"))[0]["name"] == "first"


def test_a_start_on_a_full_disk_fails_and_leaves_no_process(tmp_path: Path) -> None:
    ended = run_command(tmp_path, "run", settings(tmp_path), 20_000)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "riskrelay.db, its owner and the free space there" in ended.stderr
    assert list(processes_in(tmp_path)) == []


def test_a_missing_folder_of_the_database_is_named(tmp_path: Path) -> None:
    ended = run_command(tmp_path, "migrate", settings(tmp_path, DATABASE_URL=f"sqlite:///{tmp_path}/none/riskrelay.db"))
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert f"check {tmp_path}/none, a folder that does not exist." in ended.stderr


def run_json(folder: Path, given: Settings, *words: str) -> str:
    command = [RISKRELAY, *words, "--json"]
    return subprocess.run(
        command, cwd=folder, env=given, capture_output=True, text=True, timeout=WITHIN_S, check=True
    ).stdout


# --- problems that are reported but do not prevent the start


def test_an_unavailable_redis_and_misspelled_settings_are_reported_without_preventing_the_start(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("WORKER_PROCESES=4\nMY_OWN=1\nWEB_PROCESSES=1\n")
    with running(tmp_path, settings(tmp_path, REDIS_URL=f"redis://:hunter2@127.0.0.1:{free_port()}")):
        pass
    reported = (tmp_path / "run.log").read_text()
    assert reported.count("Redis does not respond; see REDIS_URL") == 1
    assert reported.count("did you mean WORKER_PROCESSES?") == 1
    assert reported.count("sets MY_OWN, which is not a setting") == 1
    assert "hunter2" not in reported
    assert "Traceback" not in reported


# --- repeated and concurrent commands


def test_concurrent_inits_create_one_installation_with_matching_keys(tmp_path: Path) -> None:
    given = settings(tmp_path, ENCRYPTION_KEYS="", WEBHOOK_SECRET="")
    started = [
        subprocess.Popen([RISKRELAY, "init"], cwd=tmp_path, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    reported = [process.communicate(timeout=WITHIN_S)[1].decode() for process in started]
    assert sorted(process.returncode for process in started) == [0, 1, 1], reported
    [account] = json.loads(run_json(tmp_path, given, "account", "list"))
    assert (account["id"], account["name"], account["webhooks"]) == (1, "Default", True)
    # The database was created with the keys in `.env`.
    done = subprocess.run(
        [RISKRELAY, "secret", "set", "scanner"],
        cwd=tmp_path,
        env=given,
        input="s3cret-1\n",
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ENCRYPTION_KEY not in (tmp_path / ".env").read_text()


@pytest.mark.parametrize("verb", ["init", "run"])
def test_concurrent_completions_of_an_emptied_installation_create_one_account(tmp_path: Path, verb: str) -> None:
    given = settings(tmp_path, ENCRYPTION_KEYS="", WEBHOOK_SECRET="", REDIS_URL="redis://127.0.0.1:1")
    assert run_command(tmp_path, "init", given).returncode == 0
    before = (tmp_path / ".env").read_text()
    shutil.rmtree(tmp_path / "data")
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    started = []
    for log in logs:
        with log.open("w") as output:
            own = given | {"BIND": f"127.0.0.1:{free_port()}"}
            started.append(subprocess.Popen([RISKRELAY, verb], cwd=tmp_path, env=own, stdout=output, stderr=output))
    try:
        if verb == "init":
            assert sorted(process.wait(WITHIN_S) for process in started) == [0, 1, 1], [log.read_text() for log in logs]
        else:
            until = time.monotonic() + WITHIN_S
            while not all("is ready at" in log.read_text() for log in logs):
                assert time.monotonic() < until, [log.read_text() for log in logs]
                time.sleep(0.05)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(WITHIN_S)
    reported = "".join(log.read_text() for log in logs)
    assert reported.count("created the first account, user, project and token") == 1
    assert len(json.loads(run_json(tmp_path, given, "account", "list"))) == 1
    assert len(json.loads(run_json(tmp_path, given, "token", "list"))) == 1
    assert (tmp_path / ".env").read_text() == before
    assert (tmp_path / "data" / "first-token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("verb", ["serve", "work"])
def test_a_daemon_logs_that_the_database_has_no_account(tmp_path: Path, verb: str) -> None:
    given = settings(tmp_path, REDIS_URL="redis://127.0.0.1:1")
    assert run_command(tmp_path, "migrate", given).returncode == 0
    log = tmp_path / "daemon.log"
    with log.open("w") as output:
        process = subprocess.Popen([RISKRELAY, verb], cwd=tmp_path, env=given, stdout=output, stderr=output)
    try:
        until = time.monotonic() + WITHIN_S
        while "the database has no account" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait(WITHIN_S)
    assert "run: bin/riskrelay init" in log.read_text()


def test_a_second_start_changes_neither_settings_nor_data(tmp_path: Path) -> None:
    given = settings(tmp_path, ENCRYPTION_KEYS="", WEBHOOK_SECRET="")
    assert run_command(tmp_path, "init", given).returncode == 0
    seen: list[Any] = []
    for _ in range(2):
        with running(tmp_path, given):
            pass
        reported = (tmp_path / "run.log").read_text()
        shown = reported[reported.index("RiskRelay is ready at") :]
        assert f"first API token is in {tmp_path}/data/first-token" in shown
        assert len([line for line in shown.splitlines() if line.startswith(("  curl ", "  bin/riskrelay "))]) == 3
        kept = {name: (tmp_path / name).read_bytes() for name in (".env", "data/first-token")}
        seen.append((kept, rows_of(tmp_path)))
    assert seen[0] == seen[1]


def rows_of(folder: Path) -> dict[str, Any]:
    """Return every row except the heartbeats of workers."""
    open_database(f"sqlite:///{folder}/data/riskrelay.db")
    with connection():
        found = content()
    close_database()
    return {table: each for table, each in found.items() if table != "workers"}
