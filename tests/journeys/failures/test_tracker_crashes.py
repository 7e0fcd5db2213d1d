"""A worker can die at any point of a delivery to a tracker: in the end there is exactly one issue."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import utc_now
from storage.db.engine import execute, rows
from storage.exports import queries
from tests.support import canaries
from tests.support.database.databases import on_postgresql
from tests.support.factories import Customer, make_approved, make_tracker
from tests.support.processes.workers import FailingWorker, WorkerProcess, all_are, delete_workers, notify_workers, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.trackers.servers import TOKEN, FakeGitea, Refusal

# The issues of a tracker do not depend on the database. `test_kill_points` kills workers on both databases.
pytestmark = on_postgresql

# the point, and the number of issues that exist at this point
POINTS: Final = [
    ("claim committed", 0),
    ("request sent", 1),
    ("tracker answered", 1),
    ("before the result", 1),
    ("result written", 1),  # taken back with its transaction
    ("result committed", 1),
]
#: A lease expires within 10 s. If no issue is found, the next attempt follows after the tracker's delay of 5 s.
RECOVERED_WITHIN_S: Final = 40.0


@pytest.fixture
def gitea() -> Iterator[FakeGitea]:
    with FakeGitea() as made:
        yield made


def test_a_worker_killed_at_any_point_causes_exactly_one_issue(
    failing: Callable[..., FailingWorker], customer: Customer, gitea: FakeGitea
) -> None:
    with ExitStack() as stack:
        killed_workers = [failing("--at", point, WORKER_CONCURRENCY="1") for point, _ in POINTS]
        for worker in (successor := failing(), *killed_workers):
            stack.enter_context(worker)
        ids = []
        for (point, issues), worker in zip(POINTS, killed_workers, strict=True):
            target_id = make_tracker(customer, gitea.base_url)
            # Without labels, the first request creates the issue.
            export_id = make_approved(customer, target_id, utc_now(), labels=())
            ids.append(export_id)
            worker.go()
            assert worker.wait() == -signal.SIGKILL, point
            wait_until(lambda export_id=export_id, issues=issues: len(gitea.issues_of(export_id)) == issues)  # type: ignore[misc]  # mypy takes no default
            delete_workers()
            execute("UPDATE targets SET status = 'paused' WHERE id = ?", (target_id,))
        execute("UPDATE targets SET status = 'active'")
        successor.go()
        wait_until(all_are("exported"), RECOVERED_WITHIN_S)
    assert {point: len(gitea.issues_of(each)) for (point, _), each in zip(POINTS, ids, strict=True)} == dict.fromkeys(
        [point for point, _ in POINTS], 1
    )
    for number, export_id in enumerate(ids):
        [issue] = gitea.issues_of(export_id)
        assert queries.get(export_id).provider_ticket_id == str(issue["number"]), POINTS[number]
    assert rows("SELECT COUNT(*) FROM exports WHERE is_outcome_unknown") == [(0,)]


def test_no_file_row_redis_command_or_command_line_contains_the_token(
    start: Callable[..., WorkerProcess], customer: Customer, gitea: FakeGitea, redis: RedisServer, tmp_path: Path
) -> None:
    target_id = make_tracker(customer, gitea.base_url)
    delivered, refused = (make_approved(customer, target_id, utc_now()) for _ in range(2))
    gitea.next_creates(None, Refusal(422, {"X-Token": TOKEN}, f"refused {TOKEN}".encode()))
    with canaries.Monitor(redis.url) as monitor, start(LOG_LEVEL="debug") as worker:
        notify_workers(redis)
        wait_until(lambda: {queries.get(each).status for each in (delivered, refused)} == {"exported", "failed"})
        running = canaries.processes([worker.process.pid])
        in_redis = canaries.redis(redis.url)
    found = canaries.folder(tmp_path) | canaries.columns() | monitor.places | running | in_redis
    assert canaries.traces(found, [TOKEN]) == []
    assert [answer for (answer,) in rows("SELECT answer FROM attempts") if answer and "refused [redacted]" in answer]
