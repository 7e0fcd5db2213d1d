"""`riskrelay receipt`: writes a receipt, which is verified without the installation."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.db.engine import close_database
from tests.support.factories import WEBHOOK_SECRET, make_approved, make_customer, make_target
from tests.support.processes.shell import Shell
from tests.support.processes.workers import RISKRELAY
from tests.support.worker.receipts import deliver


class ReceiptShell(Shell):
    """Runs `receipt` commands in its own installation, which has delivered an export."""

    verb = ("receipt",)
    export_id = ""


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReceiptShell]:
    monkeypatch.chdir(tmp_path)
    made = ReceiptShell(tmp_path, sqlite_url)
    with made.database():
        made.export_id = deliver(make_customer())
    yield made
    close_database()


def test_a_receipt_is_shown_written_and_verified(shell: ReceiptShell) -> None:
    shown = shell.run("show", shell.export_id)
    assert shown.exit_code == 0
    assert shell.run("show", shell.export_id, "--output", "receipt.json").stdout == ""
    path = Path("receipt.json")
    assert path.read_text() == shown.stdout
    assert path.stat().st_mode & 0o777 == 0o600
    valid = {"valid": True, "problems": [], "not_proven": [], "valid_signatures": 0}
    assert shell.json("verify", "receipt.json") == valid
    assert shell.json("verify", "-", standard_input=shown.stdout) == valid
    signed = shell.json("verify", "receipt.json", "--secret-stdin", standard_input=f"{WEBHOOK_SECRET}\n")
    assert signed == {**valid, "valid_signatures": 2}


def test_a_receipt_is_compared_with_the_audit_log(shell: ReceiptShell) -> None:
    receipt = shell.run("show", shell.export_id).stdout
    Path("receipt.json").write_text(receipt)
    log = Shell(Path().absolute(), shell.url).run("audit", "export").stdout
    Path("audit.jsonl").write_text(log)
    assert shell.json("verify", "receipt.json", "--audit", "audit.jsonl")["valid"]
    Path("audit.jsonl").write_text("".join(log.splitlines(keepends=True)[:-1]))
    result = shell.json("verify", "receipt.json", "--audit", "audit.jsonl", exit_code=1)
    assert result["problems"] == ["The audit log has other entries about this export."]


def test_verification_of_an_invalid_receipt_fails(shell: ReceiptShell) -> None:
    receipt = json.loads(shell.run("show", shell.export_id).stdout)
    Path("receipt.json").write_text(json.dumps({**receipt, "approved_by": "user:8"}))
    assert not shell.json("verify", "receipt.json", exit_code=1)["valid"]
    Path("receipt.json").write_text(json.dumps(receipt))
    for secret, problem in (
        ("another secret", "Attempt 1 was not signed with this secret."),
        ("whsec_c2VjcmV0LW9mLXRoaXJ0eS10d28tYnl0ZXMtISE=", "The secret signed none of the attempts."),
    ):
        result = shell.json("verify", "receipt.json", "--secret-stdin", standard_input=secret, exit_code=1)
        assert problem in result["problems"]
    for secret in ("", "whsec_"):
        refused = shell.refused("verify", "receipt.json", "--secret-stdin", standard_input=secret)
        assert "No secret to verify with" in refused
    Path("receipt.json").write_text("no json")
    assert "not strict JSON" in shell.refused("verify", "receipt.json")


def test_only_a_delivered_export_has_a_receipt(shell: ReceiptShell) -> None:
    with shell.database():
        customer = make_customer()
        waiting = make_approved(customer, make_target(customer).id)
    assert "a receipt needs the status exported" in shell.refused("show", waiting)
    assert "no such ticket export" in shell.refused("show", "exp_nothing")
    assert "cannot be written" in shell.refused("show", shell.export_id, "--output", "no-folder/receipt.json")


def test_receipt_verification_needs_neither_a_database_nor_settings(shell: ReceiptShell, tmp_path: Path) -> None:
    Path("receipt.json").write_text(shell.run("show", shell.export_id).stdout)
    done = subprocess.run(
        [RISKRELAY, "receipt", "verify", "receipt.json", "--secret-stdin", "--json"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "RISKRELAY_ENV_FILE": "/nonexistent/.env"},
        input=WEBHOOK_SECRET,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["valid_signatures"] == 2
