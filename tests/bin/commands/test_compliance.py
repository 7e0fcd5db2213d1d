"""`riskrelay compliance`, as an operator runs it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.clock import utc_now
from schemas.compliance.requests import Topic
from storage.compliance import requests as compliance_requests
from storage.db.engine import close_database, connection, execute, open_database, rows
from storage.secrets.vault import Vault
from tests.support.factories import make_customer
from tests.support.http.storefront import ADA, BOB, SHOP, give_shop, plant_captures, receive, traces_of
from tests.support.processes.shell import Shell
from tests.support.processes.workers import RISKRELAY

VAULT = Vault([b"A" * 32])


class ComplianceShell(Shell):
    """Runs `compliance` commands in its own installation, where a shop has captures of two customers."""

    verb = ("compliance",)

    def receive(self, topic: Topic, person: Any = ADA, vault: Vault = VAULT) -> str:
        with self.database():
            return receive(topic, vault, person)


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComplianceShell]:
    monkeypatch.chdir(tmp_path)
    open_database(sqlite_url)
    with connection():
        customer = give_shop(make_customer())
        plant_captures(customer, ADA, 3)
        plant_captures(customer, BOB, 2)
    close_database()
    yield ComplianceShell(tmp_path, sqlite_url)
    close_database()


def test_run_processes_waiting_requests_and_prints_their_number(shell: ComplianceShell) -> None:
    shell.receive(Topic.CUSTOMER_REDACT)
    shell.receive(Topic.DATA_REQUEST, BOB)
    assert shell.json("run", "--dry-run") == {"done": 0, "waiting": 2}
    assert shell.json("run", "--limit", "1") == {"done": 1, "waiting": 1}
    assert shell.json("run") == {"done": 1, "waiting": 0}
    assert shell.json("run") == {"done": 0, "waiting": 0}
    lines = shell.json("list")
    assert [(line["status"], line["result"], line["counts"]) for line in lines] == [
        ("done", "reported", {"evidence_captures": 2}),
        ("done", "redacted", {"evidence_captures": 3}),
    ]


def test_run_skips_requests_claimed_by_a_worker(shell: ComplianceShell) -> None:
    shell.receive(Topic.CUSTOMER_REDACT)
    open_database(shell.url)
    with connection():
        assert compliance_requests.claim_next(utc_now()) is not None
    close_database()
    assert shell.json("run") == {"done": 0, "waiting": 1}


def test_run_exits_with_1_if_a_request_fails(shell: ComplianceShell) -> None:
    shell.receive(Topic.CUSTOMER_REDACT, vault=Vault([b"B" * 32]))
    result = shell.run("run", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (1, {"done": 0, "waiting": 1})
    [line] = shell.json("list")
    assert (line["status"], line["last_error"], line["attempts"]) == ("received", "WrongEncryptionKey", 1)


def test_a_database_error_is_reported_without_its_message(shell: ComplianceShell) -> None:
    shell.receive(Topic.CUSTOMER_REDACT)
    with shell.database():
        execute("CREATE TRIGGER quoting BEFORE DELETE ON evidence_captures BEGIN SELECT RAISE(ABORT, 'secret row'); END")
    command = [RISKRELAY, "compliance", "run"]
    done = subprocess.run(command, env=shell.for_processes(), capture_output=True, text=True, check=False)
    assert (done.returncode, "secret row" in done.stderr) == (1, False)
    assert done.stderr.splitlines()[-1] == "peewee.IntegrityError"


def test_list_shows_due_dates_and_no_personal_data(shell: ComplianceShell) -> None:
    shell.receive(Topic.DATA_REQUEST)
    [line] = shell.json("list")
    assert line["due_at"] > line["received_at"]
    assert (line["overdue"], line["subject"][:3], line["has_report"]) == (False, "ps:", False)
    assert shell.json("run") == {"done": 1, "waiting": 0}
    reported = shell.run("list").stdout
    assert line["id"] in reported
    assert line["due_at"] in reported
    assert traces_of(ADA, (reported + json.dumps(shell.json("list"))).lower()) == []


def test_an_empty_list_is_reported_as_empty(shell: ComplianceShell) -> None:
    assert shell.json("list") == []
    assert shell.run("list").stdout == "There are no compliance requests.\n"


def test_show_decrypts_a_report_only_with_the_report_option(shell: ComplianceShell) -> None:
    request_id = shell.receive(Topic.DATA_REQUEST)
    assert shell.json("show", request_id, "--report")["report"] is None
    shell.json("run")
    shown = shell.json("show", request_id)
    assert "report" not in shown
    assert (shown["id"], shown["has_report"]) == (request_id, True)
    report = shell.json("show", request_id, "--report")["report"]
    assert report["subject"]["email"] == ADA.email
    assert len(report["records"]) == 3


def test_show_reports_an_unknown_request(shell: ComplianceShell) -> None:
    result = shell.run("show", "cpl_1")
    assert result.exit_code == 1
    assert result.stderr == "riskrelay: There is no such compliance request; see `bin/riskrelay compliance list`.\n"


@pytest.mark.parametrize("words", [("run", "--limit", "0"), ("run", "--nonsense"), ("show",)])
def test_wrong_usage_is_reported_by_the_exit_code(shell: ComplianceShell, words: tuple[str, ...]) -> None:
    assert shell.run(*words).exit_code == 2


def test_repeat_processes_the_erasure_of_a_shop_again(shell: ComplianceShell) -> None:
    request_id = shell.receive(Topic.SHOP_REDACT, None)
    shell.json("run")
    with shell.database():
        execute("UPDATE projects SET shop_domain = ?", (SHOP,))
    assert shell.json("repeat", request_id)["status"] == "received"
    assert shell.json("run") == {"done": 1, "waiting": 0}
    with shell.database():
        assert rows("SELECT shop_domain FROM projects") == [(None,)]
        audited = rows("SELECT actor, action FROM audit_entries WHERE subject_id = ? ORDER BY id", (request_id,))
    assert audited[2] == ("operator", "repeat_compliance_request")


@pytest.mark.parametrize("topic", Topic)
def test_repeat_refuses_waiting_requests_and_requests_about_customers(shell: ComplianceShell, topic: Topic) -> None:
    request_id = shell.receive(topic, None if topic is Topic.SHOP_REDACT else ADA)
    if topic is not Topic.SHOP_REDACT:
        shell.json("run")
    result = shell.run("repeat", request_id)
    assert result.exit_code == 1
    assert result.stderr == f"riskrelay: Request {request_id} cannot be repeated; only a shop/redact that is done can.\n"
    assert shell.run("repeat", "cpl_1").exit_code == 1
