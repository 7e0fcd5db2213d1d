"""Workers delete expired records. A killed `prune` loses no record that it archives, and the next `prune` continues."""

import json
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from runtime.clock import utc_now
from schemas.compliance.requests import Topic
from storage.compliance import requests as compliance_requests
from storage.db.engine import execute, rows
from storage.maintenance.retention import EXPORTS_AT_ONCE
from storage.secrets.vault import Vault
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, environment, make_exports
from tests.support.http.storefront import ADA, give_shop, plant_captures, receive
from tests.support.processes.workers import RISKRELAY, FailingWorker, wait_until

#: Enough batches to kill the command in the middle of them.
MANY: Final = 30 * EXPORTS_AT_ONCE
#: Enough rows to keep a command busy for about a second.
CAPTURES: Final = 4000
VAULT: Final = Vault([b"A" * 32])


class CronProcess:
    """A command of the crontab as a separate process."""

    def __init__(self, folder: Path, database_url: str, *words: str) -> None:
        folder.mkdir(exist_ok=True)
        settings = environment(folder, DATABASE_URL=database_url, REDIS_URL=f"unix://{folder}/no-redis.sock")
        command = [RISKRELAY, *words, "--json"]
        self.process = subprocess.Popen(
            command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def killed_when(self, is_so: Callable[[], object]) -> None:
        """Kill the process as soon as `is_so()` is true, which must be before its end."""
        wait_until(lambda: is_so() or self.process.poll() is not None, 30)
        self.process.send_signal(signal.SIGKILL)
        assert self.process.communicate(timeout=30)[0] == ""
        assert self.process.returncode == -signal.SIGKILL

    def reported(self) -> Any:
        """Wait for the end of the process; return its output."""
        reported, complaints = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, complaints
        return json.loads(reported)


def left(table: str = "exports") -> set[str]:
    return {row[0] for row in rows(f"SELECT id FROM {table}")}  # noqa: S608 - our own names


def archived(folder: Path) -> set[str]:
    """Return the ids of the exports whose line in an archive is complete. A kill can leave a partial last line."""
    lines = [line for path in folder.glob("*-exports.jsonl") for line in path.read_text().split("\n")[:-1]]
    return {json.loads(line)["id"] for line in lines}


def test_a_killed_prune_has_archived_every_deleted_record(database: str, customer: Customer, tmp_path: Path) -> None:
    everything = set(make_exports(customer, MANY, utc_now() - timedelta(days=91)))
    [young] = make_exports(customer, 1, utc_now())
    folder = tmp_path / "archive"
    words = ("prune", "--archive", str(folder))
    for _ in range(2):
        before = len(left())
        command = CronProcess(tmp_path / "data", database, *words)
        command.killed_when(lambda before=before: len(left()) < before)  # type: ignore[misc]  # mypy takes no default
        removed = everything - left()
        assert 0 < len(removed) < MANY
        assert removed <= archived(folder)
    rest = len(left()) - 1
    assert CronProcess(tmp_path / "data", database, *words).reported()["exports"] == rest
    assert left() == {young}
    assert archived(folder) == everything


@on_sqlite
def test_a_worker_deletes_expired_records_by_itself(failing: Callable[..., FailingWorker], customer: Customer) -> None:
    make_exports(customer, 3, utc_now() - timedelta(days=91))
    [young] = make_exports(customer, 1, utc_now())
    with failing("--prune-after", "2") as worker:
        worker.go()
        wait_until(lambda: worker.has_logged("worker started"))
        assert len(left()) == 4
        wait_until(lambda: left() == {young})
        wait_until(lambda: worker.has_logged("expired records deleted"))
    [line] = [line for line in worker.log_lines if line["message"] == "expired records deleted"]
    assert line["count"] == 3


@on_sqlite
def test_the_next_compliance_run_completes_a_killed_one(database: str, customer: Customer, tmp_path: Path) -> None:
    plant_captures(give_shop(customer), ADA, CAPTURES)
    request_id = receive(Topic.CUSTOMER_REDACT, VAULT, ADA)
    killed = CronProcess(tmp_path / "data", database, "compliance", "run")
    killed.killed_when(lambda: compliance_requests.get(request_id).counts)
    assert 0 < len(left("evidence_captures")) < CAPTURES
    # The next command continues once the lease of the killed one has expired, not before.
    assert CronProcess(tmp_path / "data", database, "compliance", "run").reported() == {"done": 0, "waiting": 1}
    execute("UPDATE compliance_requests SET next_run_at = 1")
    assert CronProcess(tmp_path / "data", database, "compliance", "run").reported() == {"done": 1, "waiting": 0}
    assert left("evidence_captures") == set()
    assert compliance_requests.get(request_id).counts["evidence_captures"] == CAPTURES
