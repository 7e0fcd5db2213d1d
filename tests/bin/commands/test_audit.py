"""`riskrelay audit`: exports the log, verifies it in the database and as a file, and detects every change of a file."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bin.cli.records import SHOWN
from schemas.base.timestamps import to_ms
from storage.accounts import audit_chain, audit_log
from storage.accounts.audit_log import AuditEntry
from storage.db.engine import close_database, execute, transaction
from tests.support.factories import NOW, make_customer
from tests.support.processes.shell import Shell
from tests.support.processes.workers import RISKRELAY, ROOT
from tests.support.worker.receipts import deliver


class AuditShell(Shell):
    """Runs `audit` commands in its own installation, which has delivered an export."""

    verb = ("audit",)

    def export(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("export").stdout.splitlines()]


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuditShell]:
    monkeypatch.chdir(tmp_path)
    made = AuditShell(tmp_path, sqlite_url)
    with made.database():
        deliver(make_customer())
    yield made
    close_database()


def written(lines: list[dict[str, Any]]) -> Path:
    path = Path("audit.jsonl")
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_an_export_is_verified_with_its_anchor(shell: AuditShell) -> None:
    verified = shell.json("verify")
    lines = shell.export()
    head = f"{len(lines)}:{lines[-1]['hash']}"
    assert verified == {"entries": len(lines), "head": head, "not_chained_yet": 0}
    path = written(lines)
    assert shell.json("verify", str(path), "--anchor", head) == {"entries": len(lines), "head": head}
    assert shell.json("verify", "-", standard_input=path.read_text())["head"] == head
    wrong = f"{len(lines)}:{'0' * 64}"
    for words in ((str(path),), ()):
        assert "the log was rewritten" in shell.refused("verify", *words, "--anchor", wrong)
        assert "before the anchor" in shell.refused("verify", *words, "--anchor", f"99:{'0' * 64}")


@pytest.mark.parametrize("wrong", ["1", "0:" + "0" * 64, "1:" + "0" * 63, "1:" + "G" * 64, ":" + "0" * 64])
def test_an_anchor_in_another_form_is_wrong_usage(shell: AuditShell, wrong: str) -> None:
    result = shell.run("verify", "--anchor", wrong)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Use POSITION:HASH" in result.stderr


def test_two_anchors_with_one_position_and_different_hashes_are_wrong_usage(shell: AuditShell) -> None:
    assert shell.run("verify", "--anchor", f"1:{'0' * 64}", "--anchor", f"1:{'1' * 64}").exit_code == 2


def test_verification_detects_every_change_of_an_exported_file(shell: AuditShell) -> None:
    lines = shell.export()
    for name in lines[2]:
        others: list[Any] = [None, "x", 7, f"{lines[2][name]}0", [], lines[3][name]]
        for new in others:
            if new != lines[2][name] and (name, new) != ("actor", None):
                changed = [*lines[:2], {**lines[2], name: new}, *lines[3:]]
                assert "broken" in shell.refused("verify", str(written(changed))), (name, new)
    for changed in (
        lines[1:],
        [*lines[:2], *lines[3:]],
        [*lines[:2], lines[2], *lines[2:]],
        [*lines[:2], lines[3], lines[2], *lines[4:]],
        [*lines, {"more": 1}],
        [{**lines[0], "more": 1}, *lines[1:]],
        [{name: value for name, value in lines[0].items() if name != "actor"}, *lines[1:]],
    ):
        assert "broken" in shell.refused("verify", str(written(changed)))


@pytest.mark.parametrize("text", ["no json\n", '{"a": 1, "a": 2}\n', "\n", '{"a": NaN}\n', "[" * 1000])
def test_verification_rejects_a_file_that_is_not_an_export(shell: AuditShell, text: str) -> None:
    Path("wrong.jsonl").write_text(text)
    assert "Line 1 cannot be read" in shell.refused("verify", "wrong.jsonl")


def test_an_empty_file_is_verified_as_a_log_that_contains_no_anchor(shell: AuditShell) -> None:
    assert shell.json("verify", str(written([])))["entries"] == 0
    assert "before the anchor" in shell.refused("verify", str(written([])), "--anchor", f"1:{'0' * 64}")


def test_verification_and_export_fail_if_a_row_was_changed(shell: AuditShell) -> None:
    path = Path("kept.jsonl")
    assert shell.run("export", str(path)).exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    kept = path.read_text()
    with shell.database():
        execute("UPDATE audit_entries SET actor = 'user:8' WHERE action = 'approve'")
    assert "The audit log is broken. Line" in shell.refused("verify")
    assert "The audit log is broken. Line" in shell.refused("export", str(path))
    assert path.read_text() == kept
    assert [each.name for each in Path().iterdir() if "part" in each.name] == []


def test_verification_after_a_documented_deletion_needs_the_anchor(shell: AuditShell) -> None:
    lines = shell.export()
    with shell.database():
        execute("DELETE FROM audit_entries WHERE position <= 2")
    assert "pass the anchor of position 2" in shell.refused("verify")
    anchor = f"2:{lines[1]['hash']}"
    assert shell.json("verify", "--anchor", anchor)["entries"] == len(lines) - 2
    exported = shell.run("export", "--anchor", anchor).stdout.splitlines()
    assert [json.loads(line) for line in exported] == lines[2:]


def test_an_anchor_reveals_entries_lost_by_a_restore(shell: AuditShell) -> None:
    operator = Shell(Path().absolute(), shell.url)
    assert operator.run("backup", "kept.db").exit_code == 0
    before = shell.json("verify")["head"]
    with shell.database():
        deliver(make_customer())
    lost = shell.json("verify")["head"]
    assert operator.run("restore", "kept.db", "--replace").exit_code == 0
    with shell.database():
        for _ in range(4):
            make_customer()
            deliver(make_customer())
    assert shell.json("verify", "--anchor", before)["entries"] > int(lost.partition(":")[0])
    assert "the log was rewritten" in shell.refused("verify", "--anchor", lost)


def test_an_export_to_a_missing_folder_reports_that_the_file_cannot_be_written(shell: AuditShell) -> None:
    assert "cannot be written" in shell.refused("export", "no-folder/audit.jsonl")


def test_the_documented_program_verifies_an_export(shell: AuditShell) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "audit.md").read_text(), re.DOTALL)
    lines = shell.export()

    def run() -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", program, "audit.jsonl"]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)

    written(lines)
    assert run().stdout == f"{shell.json('verify')['head']}\n"
    for name, new in (("actor", "user:8"), ("reason", "x"), ("position", 9), ("previous", "0" * 64), ("hash", "0" * 64)):
        written([*lines[:2], {**lines[2], name: new}, *lines[3:]])
        assert "AssertionError" in run().stderr, name


def test_json_lists_all_audit_entries_and_a_table_the_newest_50(shell: AuditShell) -> None:
    many = 1_100
    with shell.database(), transaction():
        audit_log.append_all([AuditEntry(to_ms(NOW), "operator", "prune", f"run-{number}") for number in range(many)])
    everything, some = shell.json("list"), shell.json("list", "--limit", "501")
    ids = [each["id"] for each in everything]
    assert len(ids) > many
    assert ids == sorted({*ids}, reverse=True)
    assert some == everything[:501]
    table = shell.run("list").stdout.splitlines()
    assert (len(table), table[-1]) == (SHOWN + 2, "Showing the newest 50; there are more. To list more: --limit N.")
    assert len(shell.run("list", "--limit", str(len(ids))).stdout.splitlines()) == len(ids) + 1
    assert "Showing the newest 1,001" in shell.run("list", "--limit", "1001").stdout


def test_verification_needs_neither_a_database_nor_settings(shell: AuditShell, tmp_path: Path) -> None:
    with shell.database(), transaction():
        audit_log.append_all([AuditEntry(to_ms(NOW), "operator", "did", "Ä\u2028\x1b[31m", reason="ü")])
        audit_chain.extend_to_end()
    path = written(shell.export())

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [RISKRELAY, "audit", "verify", str(path), *words],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "RISKRELAY_ENV_FILE": "/nonexistent/.env"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    whole = run("--json")
    assert (whole.returncode, whole.stderr) == (0, "")
    anchor = json.loads(whole.stdout)["head"]
    path.write_text(path.read_text().replace('"did"', '"dod"'))
    broken = run("--anchor", anchor)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "its hash does not match its contents" in broken.stderr
