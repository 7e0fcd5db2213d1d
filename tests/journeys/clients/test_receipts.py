"""Real workers deliver, chain the audit log and log its anchor. Receipts prove deliveries without the installation."""

import hashlib
import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from runtime.clock import utc_now
from storage.accounts import audit_chain
from storage.db.engine import execute, rows
from tests.support.factories import WEBHOOK_SECRET, Customer, environment, make_approved, make_tracker
from tests.support.processes.workers import (
    RISKRELAY,
    CountingReceiver,
    WorkerProcess,
    all_are,
    approved_each,
    notify_workers,
    wait_until,
)
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.trackers.servers import FakeGitea

#: A worker extends the audit chain every five seconds.
CHAINED_WITHIN_S: Final = 30.0


def run(folder: Path, url: str | None, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in the installation at `url`, or without any installation."""
    elsewhere = {"PATH": "/usr/bin:/bin", "RISKRELAY_ENV_FILE": "/nonexistent/.env"}
    return subprocess.run(
        [RISKRELAY, *words],
        cwd=folder,
        env=elsewhere if url is None else environment(folder, DATABASE_URL=url),
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_audit_log_and_receipts_of_two_workers_are_verified_without_the_database(
    start: Callable[..., WorkerProcess],
    database: str,
    redis: RedisServer,
    customer: Customer,
    receiver: CountingReceiver,
    tmp_path: Path,
) -> None:
    with FakeGitea() as gitea, ExitStack() as stack:
        workers = [stack.enter_context(start()) for _ in range(2)]
        ids = approved_each(receiver.url(), 20, utc_now())
        issue_id = make_approved(customer, make_tracker(customer, gitea.base_url), utc_now(), labels=())
        notify_workers(redis)
        wait_until(all_are("exported"))
        wait_until(lambda: audit_chain.count_unchained() == 0, CHAINED_WITHIN_S)
    anchors = [
        line["message"].removeprefix("audit log anchor ")
        for worker in workers
        for line in worker.log_lines
        if line["message"].startswith("audit log anchor ")
    ]
    assert anchors

    log, receipt = tmp_path / "audit.jsonl", tmp_path / "receipt.json"
    assert run(tmp_path, database, "audit", "export", str(log)).returncode == 0
    anchored = [word for anchor in anchors for word in ("--anchor", anchor)]
    verified = run(tmp_path, None, "audit", "verify", str(log), *anchored, "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["entries"] == rows("SELECT COUNT(*) FROM audit_entries")[0][0]

    for export_id, signatures in ((ids[0], 1), (ids[-1], 1), (issue_id, 0)):
        shown = run(tmp_path, database, "receipt", "show", export_id, "--output", str(receipt))
        assert shown.returncode == 0, shown.stderr
        secret = ["--secret-stdin"] if signatures else []
        words = ("receipt", "verify", str(receipt), "--audit", str(log), *secret, "--json")
        valid = run(tmp_path, None, *words, given=WEBHOOK_SECRET)
        assert valid.returncode == 0, valid.stdout + valid.stderr
        assert json.loads(valid.stdout)["valid_signatures"] == signatures
        assert json.loads(valid.stdout)["not_proven"] == []
    [request] = receiver.of(ids[0])
    assert run(tmp_path, database, "receipt", "show", ids[0], "--output", str(receipt)).returncode == 0
    [attempt] = json.loads(receipt.read_text())["attempts"]
    got: dict[str, Any] = {
        "id": request.headers["x-request-id"],
        "nonce": request.headers["x-service-nonce"],
        "signature": request.headers["x-service-signature"],
        "body_sha256": hashlib.sha256(request.body).hexdigest(),
        "response_sha256": hashlib.sha256(b'{"id": "T-1"}').hexdigest(),
        "address_class": "address_loopback",
    }
    assert {name: attempt[name] for name in got} == got

    execute("UPDATE audit_entries SET actor = 'user:99' WHERE subject_id = ? AND action = 'approve'", (ids[0],))
    broken = run(tmp_path, database, "audit", "verify")
    assert (broken.returncode, "The audit log is broken." in broken.stderr) == (1, True)
