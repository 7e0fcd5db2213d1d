"""`riskrelay export approve|dismiss|restore|retry` with filters, and `export bulk`, as an operator runs them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.db.engine import close_database, execute, rows
from storage.db.leases import LeasedJobs
from storage.db.models import BulkJobRow
from tests.support.factories import LOOPBACK, NOW, make_bulk_job, make_customer, make_exports, make_failed, make_target
from tests.support.processes.shell import Shell


class BulkShell(Shell):
    """Runs `export` commands in an installation without Redis. One of its three prepared exports has high severity."""

    verb = ("export",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url, **LOOPBACK)
        with self.database():
            self.customer = make_customer()
            self.target_id = make_target(self.customer, "http://127.0.0.1:1/hook").id
            self.ids = make_exports(self.customer, 3)
            execute("UPDATE exports SET severity_rank = CASE WHEN id = ? THEN 3 ELSE 0 END", (self.ids[0],))

    def refuses(self, exit_code: int, *words: str, standard_input: str = "") -> str:
        """Run a command that is rejected after its prompt or because of its options; return its output."""
        result = self.run(*words, standard_input=standard_input)
        assert (result.exit_code, result.stdout) == (exit_code, ""), result.output
        return result.stderr

    def statuses(self) -> list[str]:
        with self.database():
            found = dict(rows("SELECT id, status FROM exports"))
        return [found[each] for each in self.ids]


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BulkShell]:
    monkeypatch.chdir(tmp_path)
    yield BulkShell(tmp_path, sqlite_url)
    close_database()


def counted(job: Any) -> tuple[Any, ...]:
    return job["action"], job["status"], job["total"], job["done"], job["changed"]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("list", "--created-after", "yesterday"), "--created-after"),
        (("list", "--created-before", "x"), "--created-before"),
        (("list", "--source", "bogus"), "--source"),
        (("list", "--search", " "), "--search"),
        (("dismiss", "--severity", "bogus", "--yes"), "--severity"),
        (("dismiss", "--project", "0", "--yes"), "--project"),
        (("retry", "--of-target", "x", "--yes"), "--of-target"),
    ],
)
def test_an_invalid_filter_is_wrong_usage(shell: BulkShell, words: tuple[str, ...], option: str) -> None:
    assert f"Error: {option}: " in shell.refuses(2, *words)
    assert shell.statuses() == ["prepared"] * 3


def test_all_exports_of_a_filter_are_approved(shell: BulkShell) -> None:
    job = shell.json("approve", "--target", shell.target_id, "--severity", "high,critical", "--yes")
    assert counted(job) == ("approve", "done", 1, 1, 1)
    assert shell.statuses() == ["approved", "prepared", "prepared"]
    assert shell.json("bulk", "--show", job["id"]) == job
    assert shell.json("bulk", "--list") == [job]
    # Only exports that can be approved match.
    assert counted(shell.json("approve", "--target", shell.target_id, "--severity", "info,high", "--yes"))[2:] == (2, 2, 2)


def test_exports_are_dismissed_with_a_reason_restored_and_retried(shell: BulkShell) -> None:
    dismissed = shell.json("dismiss", "--rule", "img-alt", "--reason", "test", "--yes")
    assert counted(dismissed) == ("dismiss", "done", 0, 0, 0)
    dismissed = shell.json("dismiss", "--project", str(shell.customer.project_id), "--reason", "test", "--yes")
    assert counted(dismissed) == ("dismiss", "done", 3, 3, 3)
    restored = shell.json("restore", "--severity", "high", "--yes")
    assert (counted(restored), shell.statuses()) == (("restore", "done", 1, 1, 1), ["prepared", "dismissed", "dismissed"])
    with shell.database():
        make_failed(shell.customer, shell.target_id, 2)
    assert counted(shell.json("retry", "--of-target", shell.target_id, "--yes")) == ("retry", "done", 2, 2, 2)


def test_a_job_needs_confirmation(shell: BulkShell) -> None:
    refused = shell.refuses(1, "dismiss", "--source", "manual", standard_input="n\n")
    assert "3 exports match" in refused
    assert "1 high" in refused
    assert "Nothing was changed; answer y, or use --yes." in refused
    assert shell.statuses() == ["prepared"] * 3
    assert "Nothing was changed" in shell.refuses(1, "dismiss", "--source", "manual")
    # Exports of other severities do not match.
    refused = shell.refuses(1, "dismiss", "--severity", "high,critical", standard_input="n\n")
    assert "1 export matches: 1 high.\n" in refused


def test_a_command_needs_either_an_id_or_filters(shell: BulkShell) -> None:
    assert "an export's id or filters, not both" in shell.refuses(2, "dismiss", shell.ids[0], "--source", "manual")
    assert "an export's id, or filters" in shell.refuses(2, "dismiss")
    assert "an export's id, or filters" in shell.refuses(2, "retry", "--yes")


def test_with_several_accounts_the_account_option_is_required(shell: BulkShell) -> None:
    with shell.database():
        other = make_customer()
        make_exports(other, 2)
    assert "use --account" in shell.refuses(1, "dismiss", "--source", "manual", "--yes")
    named = shell.json("dismiss", "--source", "manual", "--account", str(other.account_id), "--yes")
    assert counted(named) == ("dismiss", "done", 2, 2, 2)
    assert shell.statuses() == ["prepared"] * 3


def test_a_bulk_approval_for_a_paused_target_is_refused(shell: BulkShell) -> None:
    with shell.database():
        execute("UPDATE targets SET status = 'paused'")
    assert "paused" in shell.refused("approve", "--target", shell.target_id, "--source", "manual", "--yes")
    assert shell.statuses() == ["prepared"] * 3


def test_jobs_are_cancelled_and_an_empty_list_is_reported_as_empty(shell: BulkShell) -> None:
    assert "There are no bulk jobs." in shell.run("bulk", "--list").stdout
    with shell.database():
        job_id = make_bulk_job(shell.customer)
        assert LeasedJobs(BulkJobRow).any_waiting(NOW.replace(year=2030))
    assert shell.json("bulk", "--cancel", job_id)["status"] == "cancelled"
    assert "no such bulk job" in shell.refused("bulk", "--show", "blk_1")
