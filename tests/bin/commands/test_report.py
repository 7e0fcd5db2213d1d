"""`riskrelay report`, as an operator runs it: its options alone write a report, and `report add` still works."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.intake.scanner import PostbackForm
from storage.db.engine import close_database, connection, open_database
from tests.support.factories import issue, make_customer, postback, record_postback
from tests.support.processes.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    open_database(sqlite_url)
    with connection():
        record_postback(PostbackForm().read(postback(1, [issue(title="Größe\u202e")])), make_customer().project_id)
    close_database()
    yield Shell(tmp_path, sqlite_url)
    close_database()


def test_a_report_is_written_to_standard_output_or_to_a_private_file(shell: Shell, tmp_path: Path) -> None:
    shown = shell.run("report", "--project", "1", "--format", "json")
    assert (shown.exit_code, json.loads(shown.stdout)["findings"][0]["title"]) == (0, "Größe\u202e")
    for wanted in ("html", "csv", "json", "sarif"):
        file = tmp_path / f"report.{wanted}"
        written = shell.run("report", "write", "--format", wanted, "--project", "1", "--output", str(file))
        assert (written.exit_code, written.output) == (0, "")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "Größe" in file.read_text(encoding="utf-8") or wanted == "sarif"


def test_a_report_needs_an_existing_project_and_a_known_format(shell: Shell) -> None:
    assert "no project 9" in shell.refused("report", "--project", "9", "--format", "csv")
    assert shell.run("report", "--project", "1", "--format", "pdf").exit_code == 2
    assert shell.run("report", "--project", "1").exit_code == 2
    assert shell.json("report", "add", "Spring", "--project", "1")["title"] == "Spring"
    [entry] = shell.json("audit", "list", "--account", "1", "--action", "add_report")
    found = entry["actor"]["kind"], entry["object"]["id"], entry["details"]["reason"]
    assert found == ("operator", "project:1", "report:1")
    assert "Commands" in shell.run("report", "--help").stdout
