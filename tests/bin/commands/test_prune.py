"""`riskrelay prune`, as an operator and as cron run it. No cron command runs twice at the same time."""

import json
import os
import pty
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from freezegun import freeze_time

from runtime.clock import utc_now
from storage.db.engine import close_database, execute, rows
from storage.db.locks import Lock, exclusive
from tests.support.factories import make_customer, make_exports
from tests.support.processes.shell import Shell
from tests.support.processes.workers import RISKRELAY

#: The tables that the command always lists, even if no rows are deleted.
COUNTED = (
    "exports",
    "attempts",
    "ticket_events",
    "ticket_changes",
    "handoffs",
    "inbound_emails",
    "evidence_captures",
    "diagnostics",
    "page_results",
    "finding_sightings",
    "pings",
    "recoveries",
    "bulk_jobs",
    "report_uploads",
    "idempotency_keys",
    "delivery_hours",
    "id_tokens",
    "console_sessions",
    "tokens",
    "alerts",
    "alert_messages",
    "sign_in_links",
    "compliance_reports",
)


class PruneShell(Shell):
    """Runs commands in its own installation, and stores exports of a given age."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        with self.database():
            self.customer = make_customer()

    def pruned(self, *words: str) -> dict[str, int]:
        """Run `prune`; return the number of deleted rows by table."""
        reported = self.json("prune", *words)
        assert tuple(reported) == COUNTED
        return {table: count for table, count in reported.items() if count}

    def prepared(self, count: int, days_ago: float) -> list[str]:
        with self.database():
            return make_exports(self.customer, count, utc_now() - timedelta(days=days_ago))

    def left(self) -> int:
        with self.database():
            return int(rows("SELECT COUNT(*) FROM exports")[0][0])


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PruneShell]:
    monkeypatch.chdir(tmp_path)
    yield PruneShell(tmp_path, sqlite_url)
    close_database()


def test_records_older_than_the_setting_are_deleted_and_counted_by_table(shell: PruneShell) -> None:
    shell.prepared(2, 91)
    shell.prepared(1, 89)
    assert shell.pruned("--dry-run") == {"exports": 2}
    assert shell.left() == 3
    assert shell.pruned() == {"exports": 2}
    assert shell.pruned() == {}
    assert shell.left() == 1


def test_sqlite_files_contain_nothing_of_deleted_records(shell: PruneShell, sqlite_url: str) -> None:
    shell.prepared(1, 91)
    files = [Path(f"{sqlite_url.removeprefix('sqlite:///')}{end}") for end in ("", "-wal")]
    with closing(sqlite3.connect(files[0])) as other:
        # Like a running service, it prevents that closing the last connection deletes the log.
        other.execute("SELECT COUNT(*) FROM exports").fetchone()
        assert shell.pruned() == {"exports": 1}
        assert b"The field has no name." not in b"".join(file.read_bytes() for file in files)


def test_options_set_another_age_and_a_limit(shell: PruneShell) -> None:
    shell.prepared(3, 10)
    assert shell.pruned("--older-than-days", "11") == {}
    assert shell.pruned("--older-than-days", "9", "--limit", "2", "--dry-run") == {"exports": 2}
    assert shell.pruned("--older-than-days", "9", "--limit", "2") == {"exports": 2}
    shell.environment["RETENTION_DAYS"] = "9"
    assert shell.pruned() == {"exports": 1}


def test_the_text_output_has_one_line_for_each_table(shell: PruneShell) -> None:
    shell.prepared(2, 91)
    lines = shell.run("prune").stdout.splitlines()
    assert lines[0].split() == ["exports", "2"]
    assert [line.split()[0] for line in lines] == [*COUNTED]
    for words in ((), ("--dry-run",)):
        assert shell.run("prune", *words).stdout == "Nothing is old enough to delete.\n"


def test_rows_left_because_of_the_limit_are_not_reported_as_too_young(shell: PruneShell) -> None:
    [export_id] = shell.prepared(1, 91)
    with shell.database():
        execute(
            "INSERT INTO attempts (id, export_id, number, started_at, outcome, total_ms, worker) "
            "VALUES ('att_1', ?, 1, 1, 'rejected', 1, 'w')",
            (export_id,),
        )
    for words in ((), ("--dry-run",)):
        lines = shell.run("prune", "--limit", "1", *words).stdout.splitlines()
        assert [line.split() for line in lines] == [[name, "0"] for name in COUNTED]
    assert shell.pruned("--limit", "2") == {"exports": 1, "attempts": 1}


def test_an_archive_is_written_and_a_dry_run_writes_none(shell: PruneShell, tmp_path: Path) -> None:
    ids = shell.prepared(2, 91)
    folder = tmp_path / "archive"
    assert shell.pruned("--dry-run", "--archive", str(folder)) == {"exports": 2}
    assert not folder.exists()
    assert shell.pruned("--archive", str(folder)) == {"exports": 2}
    [path] = folder.iterdir()
    assert {json.loads(line)["id"] for line in path.read_text().splitlines()} == set(ids)


def test_an_archive_folder_that_others_can_read_is_refused_with_the_fix(shell: PruneShell, tmp_path: Path) -> None:
    shell.prepared(1, 91)
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    reported = shell.refused("prune", "--archive", str(folder))
    # An operator could run a suggested chmod on /tmp, which would exclude all other users.
    assert "chmod" not in reported
    assert f"such as {folder}/riskrelay-archive" in reported
    assert shell.left() == 1
    assert shell.pruned("--archive", str(folder / "riskrelay-archive")) == {"exports": 1}


def test_an_archive_that_cannot_be_written_is_refused_with_the_fix(shell: PruneShell, tmp_path: Path) -> None:
    shell.prepared(1, 91)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in shell.refused("prune", "--archive", str(tmp_path / "file" / "within"))
    assert shell.left() == 1


@pytest.mark.parametrize(
    ("lock", "words"),
    [(Lock.PRUNE, ("prune",)), (Lock.SWEEP, ("sweep",)), (Lock.COMPLIANCE, ("compliance", "run"))],
    ids=["prune", "sweep", "compliance"],
)
def test_cron_commands_refuse_to_run_concurrently(shell: PruneShell, lock: Lock, words: tuple[str, ...]) -> None:
    # The command opens and closes the database of this process, but the lock belongs to the file.
    with shell.database(), exclusive(lock):
        assert f"Another {lock.name.lower()} is running" in shell.refused(*words)
        # A dry run only counts, and needs no lock.
        assert shell.run(*words, "--dry-run").exit_code == 0
    assert shell.run(*words).exit_code == 0


def test_a_prune_waits_for_the_batch_of_a_worker(shell: PruneShell) -> None:
    shell.prepared(1, 91)
    with shell.database(), exclusive(Lock.PRUNE):
        # In a separate process, because in this one the command would close the test's database.
        waiting = subprocess.Popen([RISKRELAY, "prune", "--json"], env=shell.for_processes(), stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.5)
    out, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, json.loads(out)["exports"]) == (0, 1)


def test_a_host_with_a_fast_clock_deletes_nothing_too_early(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = PruneShell(tmp_path, postgres_url)
    shell.prepared(1, 10)
    with freeze_time(utc_now() + timedelta(days=400), tick=True):
        assert shell.pruned() == {}
    assert shell.pruned("--older-than-days", "9") == {"exports": 1}


def test_a_progress_bar_is_shown_only_on_a_terminal(shell: PruneShell) -> None:
    shell.prepared(2, 91)
    shown = on_a_terminal(shell, "prune", "--json")
    assert "Rows" in shown
    assert "100%" in shown
    shell.prepared(2, 91)
    assert shell.run("prune", "--json").stderr == ""


def on_a_terminal(shell: PruneShell, *words: str) -> str:
    """Run a command whose standard error is a terminal; return its output there."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run([RISKRELAY, *words], env=shell.for_processes(), stdout=subprocess.PIPE, stderr=theirs, check=True)
        return os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    "words",
    [("--limit", "0"), ("--limit", "9" * 30), ("--older-than-days", "0"), ("--older-than-days", "9" * 30), ("--nonsense",)],
)
def test_wrong_usage_is_reported_by_the_exit_code(shell: PruneShell, words: tuple[str, ...]) -> None:
    assert shell.run("prune", *words).exit_code == 2
