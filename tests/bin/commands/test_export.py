"""`riskrelay export prepare`, `attempts`, `retry` and `recover`, as an operator runs them."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from bin.commands.exports import export
from bin.commands.exports.export_bulk import process
from runtime.clock import utc_now
from schemas.exports.state_machine import Transition
from schemas.targets.target import TargetStatus
from storage.db.engine import close_database, execute, rows
from storage.db.leases import BatchProgress
from storage.exports import claims_sql, queries, recoveries
from storage.targets import changes, targets
from tests.support.factories import (
    LOOPBACK,
    NOW,
    claim_due,
    completed_attempt,
    make_approved,
    make_customer,
    make_failed,
    make_target,
)
from tests.support.processes.shell import Shell

#: A key that no provider has issued.
CANARY: Final = "canary-of-a-ticket"


class ExportShell(Shell):
    """Runs `export` commands in its own installation, which has a target with failed exports and no Redis."""

    verb = ("export",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url, **LOOPBACK)
        with self.database():
            self.customer = make_customer()
            self.target_id = make_target(self.customer, "http://127.0.0.1:1/hook").id

    def failed(self, count: int = 1, status: str = "failed", days_ago: float = 0.0) -> list[str]:
        with self.database():
            finished_at = utc_now() - timedelta(days=days_ago)
            return make_failed(self.customer, self.target_id, count, finished_at, status)

    def turn_to(self, status: str) -> None:
        with self.database():
            execute("UPDATE targets SET status = ? WHERE id = ?", (status, self.target_id))

    def prepare(self, *words: str, standard_input: str | bytes | None = None) -> Any:
        account = ("--account", str(self.customer.account_id))
        return self.json("prepare", *account, *words, standard_input=standard_input)

    def prepare_refused(self, *words: str, standard_input: str | bytes | None = None) -> str:
        account = ("--account", str(self.customer.account_id))
        return self.refused("prepare", *account, *words, standard_input=standard_input)


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExportShell]:
    monkeypatch.chdir(tmp_path)
    yield ExportShell(tmp_path, sqlite_url)
    close_database()


# --- recover


def recover(shell: ExportShell, *words: str) -> Any:
    return shell.json("recover", "--target", shell.target_id, *words)


def test_a_recovery_redelivers_exports_that_failed_since_a_time_and_records_their_number(shell: ExportShell) -> None:
    old, blocked, new = (*shell.failed(days_ago=8), *shell.failed(status="blocked", days_ago=6), *shell.failed())
    record = recover(shell, "--since", "7d")
    assert list(record) == ["id", "target_id", "since", "status", "total", "done", "created_at", "finished_at"]
    assert record["id"].startswith("rec_")
    assert (record["target_id"], record["status"], record["total"], record["done"]) == (shell.target_id, "done", 2, 2)
    assert [shell.json("show", each)["status"] for each in (old, blocked, new)] == ["failed", "approved", "approved"]
    assert shell.json("recover", "--show", record["id"]) == record
    assert shell.json("recover", "--list") == [record]
    assert record["id"] in shell.run("recover", "--list").stdout


@pytest.mark.parametrize(
    ("since", "done"),
    [("2026-03-01", 1), ("2026-03-01T12:00:00Z", 1), ("2026-03-01T13:00:00+01:00", 1), ("2026-03-01T12:00:00.001Z", 0)],
)
def test_since_is_a_time_or_a_date(shell: ExportShell, since: str, done: int) -> None:
    with shell.database():
        make_failed(shell.customer, shell.target_id, finished_at=NOW)
    assert recover(shell, "--since", since)["done"] == done


def test_a_recovery_of_several_batches_needs_neither_a_worker_nor_redis(shell: ExportShell) -> None:
    shell.failed(recoveries.BATCH_SIZE * 2 + 3)
    assert recover(shell, "--since", "1h")["done"] == recoveries.BATCH_SIZE * 2 + 3
    with shell.database():
        assert rows("SELECT status, COUNT(*) FROM exports GROUP BY status") == [("approved", recoveries.BATCH_SIZE * 2 + 3)]


def test_a_recovery_without_matching_exports_is_done_at_once(shell: ExportShell) -> None:
    record = recover(shell, "--since", "1h")
    assert (record["status"], record["total"], record["done"]) == ("done", 0, 0)


@pytest.mark.parametrize("status", ["blocked", "disabled", "inactive"])
def test_a_recovery_of_a_blocked_disabled_or_inactive_target_is_refused_with_the_fix(
    shell: ExportShell, status: str
) -> None:
    shell.failed()
    shell.turn_to(status)
    reported = shell.refused("recover", "--target", shell.target_id, "--since", "1h")
    assert f"is {status}; run `target resume {shell.target_id}`" in reported
    assert shell.json("recover", "--list") == []


def test_a_second_recovery_of_a_target_is_refused_and_names_the_first(shell: ExportShell) -> None:
    shell.failed()
    with shell.database():
        held = recoveries.begin(shell.target_id, NOW, utc_now(), "operator")
    assert held.id in shell.refused("recover", "--target", shell.target_id, "--since", "1h")
    cancelled = shell.json("recover", "--cancel", held.id)
    assert (cancelled["status"], cancelled["done"], cancelled["finished_at"] is None) == ("cancelled", 0, False)
    assert recover(shell, "--since", "1h")["done"] == 1


def test_a_halted_recovery_reports_its_reason(shell: ExportShell, monkeypatch: pytest.MonkeyPatch) -> None:
    def process_blocked(*given: Any) -> BatchProgress:
        execute("UPDATE targets SET status = 'blocked'")
        return process(*given)

    shell.failed()
    monkeypatch.setattr(export, "process", process_blocked)
    halted = shell.run("recover", "--target", shell.target_id, "--since", "1h")
    assert halted.exit_code == 1
    assert "was blocked or disabled" in halted.stderr


def test_a_recovery_is_not_halted_by_a_paused_target(shell: ExportShell) -> None:
    shell.failed()
    with shell.database():
        execute("UPDATE targets SET status = 'paused', status_reason = 'operator'")
    assert recover(shell, "--since", "1h")["done"] == 1


def test_a_finished_recovery_cannot_be_cancelled(shell: ExportShell) -> None:
    record = recover(shell, "--since", "1h")
    assert "is done; only a running one" in shell.refused("recover", "--cancel", record["id"])
    assert shell.json("recover", "--show", record["id"]) == record


@pytest.mark.parametrize(
    "words", [("--show", "rec_none"), ("--cancel", "rec_none"), ("--target", "tgt_none", "--since", "7d")]
)
def test_an_unknown_recovery_or_target_is_reported_in_one_line(shell: ExportShell, words: tuple[str, ...]) -> None:
    assert "There is no such" in shell.refused("recover", *words)


def test_an_empty_list_of_recoveries_is_reported_as_empty(shell: ExportShell) -> None:
    assert shell.run("recover", "--list").stdout == "There are no recoveries.\n"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--target", "tgt_1"),
        ("--since", "7d"),
        ("--target", "tgt_1", "--since", "yesterday"),
        ("--target", "tgt_1", "--since", "2026-02-30"),
        ("--target", "tgt_1", "--since", ""),
        ("--target", "tgt_1", "--since", "9999-01-01"),  # in the future
        ("--target", "tgt_1", "--since", "7d", "--list"),
        ("--show", "rec_1", "--cancel", "rec_1"),
        ("--show", "rec_1", "--since", "7d"),
    ],
)
def test_wrong_usage_is_reported_by_the_exit_code(shell: ExportShell, words: tuple[str, ...]) -> None:
    result = shell.run("recover", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert shell.json("recover", "--list") == []


# --- prepare


def test_a_ticket_is_prepared_from_options(shell: ExportShell) -> None:
    record = shell.prepare(
        *("--title", "The total is wrong", "--description", "Twice the discount.", "--severity", "serious"),
        *("--page-url", "https://shop.example/cart", "--source-id", "NOTE-7"),
        *("--project", str(shell.customer.project_id)),
    )
    assert (record["status"], record["source"]) == ("prepared", {"type": "manual", "id": "NOTE-7"})
    assert record["ticket"] == {
        "title": "The total is wrong",
        "description": "Twice the discount.",
        "severity": "high",
        "page_url": "https://shop.example/cart",
        "labels": [],
        "evidence": {},
    }
    assert shell.json("show", record["id"]) == record
    with shell.database():
        assert rows("SELECT account_id, project_id FROM exports") == [(shell.customer.account_id, shell.customer.project_id)]
        assert rows("SELECT actor FROM audit_entries WHERE subject_id = ?", (record["id"],)) == [("operator",)]


def test_a_ticket_needs_only_a_title(shell: ExportShell) -> None:
    record = shell.prepare("--title", "The total is wrong")
    assert record["source"] == {"type": "manual", "id": record["id"]}
    assert (record["ticket"]["description"], record["ticket"]["severity"]) == ("The total is wrong", "info")


TICKET: Final = {"title": "Ärger", "labels": ["checkout"], "evidence": {"seen": [1.5, None]}}


@pytest.mark.parametrize("body", [TICKET, {"ticket": TICKET}])
def test_a_ticket_or_a_whole_body_is_read_from_standard_input_or_a_file(
    shell: ExportShell, tmp_path: Path, body: Any
) -> None:
    (tmp_path / "ticket.json").write_text(json.dumps(body))
    for words, typed in ((("--ticket", "-"), json.dumps(body)), (("--ticket", str(tmp_path / "ticket.json")), None)):
        record = shell.prepare(*words, "--source-id", "NOTE-7", standard_input=typed)
        assert record["source"]["id"] == "NOTE-7"
        assert {name: record["ticket"][name] for name in TICKET} == TICKET


#: The content of standard input, and a part of the error message.
REFUSED: Final[list[tuple[str | bytes, str]]] = [
    ("{}", "/ticket/title: This field is required."),
    ('{"ticket": {"title": ""}}', "/ticket/title: This value is empty or has too few entries."),
    (f'{{"title": "x", "{CANARY}": 1}}', "/ticket: Unknown field."),
    ("[1]", "/ticket: This value has the wrong JSON type."),
    ('{"title": "x", "title": "y"}', "not strict JSON: an object has two members of the same name."),
    ('{"title": "\\ud800"}', "not strict JSON: a string contains half of a surrogate pair."),
    (b'{"title": "\xff"}', "not strict JSON: it is not UTF-8."),
    ("", "not strict JSON: it is empty."),
    (f'{{"title": "x", "evidence": {{"password": "{CANARY}"}}}}', "/ticket/evidence/password"),
    (f'{{"title": "x", "description": "Cookie: session={CANARY}0123456789"}}', "/ticket/description"),
    (json.dumps({"title": "x" * 2_000_000}), "has more than 1048576 bytes"),
]


@pytest.mark.parametrize(("typed", "reported"), REFUSED)
def test_a_refused_ticket_is_reported_in_one_line_not_stored_and_not_repeated(
    shell: ExportShell, typed: str | bytes, reported: str
) -> None:
    refusal = shell.prepare_refused("--ticket", "-", standard_input=typed)
    assert reported in refusal
    assert CANARY not in refusal
    assert shell.json("list") == []


def test_options_are_validated_like_a_request_body(shell: ExportShell) -> None:
    assert "/ticket/severity" in shell.prepare_refused("--title", "x", "--severity", "dreadful")
    assert "/ticket/title" in shell.prepare_refused("--title", "two\nlines")
    assert "/ticket/description" in shell.prepare_refused("--title", "x", "--description", "Cookie: session=0123456789abc")
    assert "/project_id" in shell.prepare_refused("--title", "x", "--project", "999")
    assert "/project_id" in shell.prepare_refused("--title", "x", "--project", "-1")
    assert "There is no account 999" in shell.refused("prepare", "--account", "999", "--title", "x")
    assert shell.json("list") == []


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ((), None),
        (("--description", "x"), None),
        (("--title", "x", "--ticket", "-"), "{}"),
        (("--severity", "low", "--ticket", "-"), "{}"),
        (("--ticket", "no-such-file"), None),
        (("--ticket", "-", "--source-id", "x"), '{"ticket": {"title": "x"}, "source": {"id": "y"}}'),
        (("--ticket", "-", "--project", "1"), '{"ticket": {"title": "x"}, "project_id": 1}'),
    ],
)
def test_missing_or_conflicting_values_are_wrong_usage(
    shell: ExportShell, words: tuple[str, ...], typed: str | None
) -> None:
    account = ("--account", str(shell.customer.account_id))
    assert shell.run("prepare", *account, *words, standard_input=typed).exit_code == 2
    assert shell.json("list") == []


# --- attempts


def test_show_reports_that_the_target_was_removed(shell: ExportShell) -> None:
    [export_id] = shell.failed()
    assert "removed" not in shell.run("show", export_id).stdout
    with shell.database():
        changes.remove(shell.target_id, NOW, "operator")
    assert f"Target {shell.target_id} was removed." in shell.run("show", export_id).stdout
    assert shell.json("show", export_id)["target_id"] == shell.target_id


def test_attempts_include_the_address_worker_and_response_excerpt(shell: ExportShell) -> None:
    with shell.database():
        export_id = make_approved(shell.customer, shell.target_id)
        [claim] = claim_due(1, NOW, 6, "worker")
        made = completed_attempt(claim, Transition.FAIL, reason="receiver_rejected")
        claims_sql.record_attempts([made._replace(outcome=made.outcome._replace(kept="No such project."))], NOW, "worker:1")
    [attempt] = shell.json("attempts", export_id)
    assert (attempt["outcome"], attempt["response_status"]) == ("rejected", 404)
    assert (attempt["address"], attempt["worker"], attempt["answer"]) == ("192.0.2.1", "worker:1", "No such project.")
    assert "no such ticket export" in shell.refused("attempts", "exp_01AAAAAAAAAAAAAAAAAAAAAAAA").lower()


# --- retry


@pytest.mark.parametrize("status", ["failed", "blocked"])
def test_a_retry_resolves_the_address_of_a_blocked_target_again(shell: ExportShell, status: str) -> None:
    [export_id] = shell.failed(status=status)
    shell.turn_to("blocked")
    shell.environment["TARGET_ALLOWED_NETWORKS"] = None
    assert "This target is blocked (address_loopback)." in shell.refused("retry", export_id)
    assert shell.json("show", export_id)["status"] == status
    shell.environment.update(LOOPBACK)
    assert shell.json("retry", export_id)["status"] == "approved"
    with shell.database():
        assert targets.get(shell.target_id, None).status is TargetStatus.ACTIVE
        assert queries.get(export_id).attempts == 2
        # A worker decides about the target with its own settings.
        assert rows("SELECT action FROM audit_entries WHERE action = 'validate_target'") == []
        assert rows("SELECT validation_due_at FROM targets") == [(0,)]


def test_a_retry_does_not_resume_a_target_without_a_secret(shell: ExportShell) -> None:
    [export_id] = shell.failed()
    shell.turn_to("blocked")
    shell.environment["WEBHOOK_SECRET"] = None
    assert "no secret" in shell.refused("retry", export_id)
    assert shell.json("show", export_id)["status"] == "failed"


@pytest.mark.parametrize("status", ["disabled", "inactive", "paused"])
def test_a_retry_for_a_target_that_is_not_active_is_refused(shell: ExportShell, status: str) -> None:
    [export_id] = shell.failed()
    shell.turn_to(status)
    assert f"/target_id: This target is {status}." in shell.refused("retry", export_id)
