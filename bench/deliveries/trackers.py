"""`python -m bench.deliveries.trackers`: issues created per second, and whether a tracker's backlog delays webhooks.

First one real worker delivers exports to ten targets of one local Gitea. Every export must get one issue, and there must be
no lookups, since no outcome is unknown. Then a hundred webhook targets get exports, one after the other and all at once,
alternately with and without a tracker whose target has a large backlog and a limit of 60 per minute. Reports the time from
due to arrival, and how many issues were created meanwhile.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from subprocess import Popen
from typing import Any, Final

import click

from bench import figures
from bench.deliveries.isolation import LEAD, TARGETS, Pattern, WaitResult, waited
from bench.deliveries.runs import (
    PROCESSES,
    SeededTargets,
    approve,
    count_delivered,
    count_listening,
    prepare,
    wait_until,
    workers,
)
from bench.processes.cost import cpu_s
from bench.servers.empty_installation import EmptyInstallation, empty_installation
from bench.servers.receiver_process import BenchReceiver, child, pipe, run_receiver
from runtime.clock import utc_now
from storage.db.engine import database, execute, is_sqlite, rows, transaction
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.database.many_rows import many_targets, many_waiting
from tests.support.factories import ENCRYPTION_KEY, limit_target, make_tracker
from tests.support.trackers.servers import TOKEN

#: Targets of the tracker in the first measurement, which creates issues at the highest possible rate.
_REPOSITORIES: Final = 10
#: Exports per transaction.
_CHUNK: Final = 500
MAX_PER_MINUTE: Final = 60
#: The product's bound for the ratio of the medians, the same as for a target that never responds.
BOUND: Final = 1.2
_DELIVERED_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class BenchTracker:
    """The tracker in a separate process."""

    base_url: str
    _process: Popen[str]

    def counts(self) -> dict[str, Any]:
        """Return its counts so far."""
        pipe(self._process.stdin).write("\n")
        pipe(self._process.stdin).flush()
        counts: dict[str, Any] = json.loads(pipe(self._process.stdout).readline())
        return counts


@click.command(epilog="Example: python -m bench.deliveries.trackers --database both --backlog 1000000 --rounds 1")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="sqlite", show_default=True)
@click.option("--creates", default=2000, show_default=True, type=click.IntRange(min=100), help="Issues to create.")
@click.option("--backlog", default=20_000, show_default=True, type=click.IntRange(min=100), help="Exports at the tracker.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 20), help="Of which medians are results.")
@click.option("--exports", default=1500, show_default=True, type=click.IntRange(min=200), help="Of the webhooks, each time.")
@click.option("--every-ms", default=4, show_default=True, type=click.IntRange(min=1), help="Between two of these.")
def bench(database: str, creates: int, backlog: int, rounds: int, exports: int, every_ms: int) -> None:
    """Measure creates per second, and how long webhooks wait with and without a tracker's backlog."""
    patterns = [Pattern("one after the other", exports, every_ms), Pattern("all at once", exports, 0)]
    results: dict[str, Any] = {**figures.machine(), "rounds": rounds, "exports": exports, "backlog": backlog}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        issues = created(name, creates)
        figures.print_table(f"{name}: {creates:,} issues", ("measured",), {key: [value] for key, value in issues.items()})
        by_pattern = _with_backlog(name, backlog, patterns, rounds)
        results[name] = {**issues, **by_pattern}
        lines: dict[str, Sequence[float | str | None]] = {
            pattern: [*result.values(), f"< {BOUND:g}"] for pattern, result in by_pattern.items()
        }
        columns = ("without, ms", "95th", "with, ms", "95th", "with/without", "creates", "a minute", "lookups", "bound")
        figures.print_table(f"{name}: {backlog:,} exports wait for a tracker", columns, lines)
    figures.write("trackers", results)


def created(database: str, count: int) -> dict[str, float]:
    """Create issues with one worker process; AssertionError unless each export gets one and there are no lookups."""
    with _tracker() as tracker, empty_installation(database, SWEEP_SECONDS="0.05") as installation:
        ids = [make_tracker(installation.customer, tracker.base_url) for _ in range(_REPOSITORIES)]
        for start in range(0, count, _CHUNK):
            with transaction():
                approve(prepare(installation.customer, min(_CHUNK, count - start), start), installation.customer, ids)
        seeded = SeededTargets(installation.customer, ids)
        seeded.change_status("pause")
        with workers(installation.env, 1) as pids:
            wait_until(lambda: count_listening(installation.env["REDIS_URL"]) == 1, "the worker to listen")
            before_s, tracker_before_s = cpu_s(pids), tracker.counts()["cpu_s"]
            seeded.change_status("resume")
            wait_until(lambda: count_delivered() == count, "every issue to be created", _DELIVERED_WITHIN_S, 0.1)
            elapsed_s = cpu_s(pids) - before_s
        counts = tracker.counts()
        found = (counts["creates"], counts["issues"], counts["lookups"], _delivered())
        assert found == (count, count, 0, count), found
        return {
            "creates_per_s": round((count - 1) / (counts["last_at"] - counts["first_at"]), 1),
            "worker_cpu_ms": round(elapsed_s * 1000 / count, 3),
            "tracker_cpu_ms": round((counts["cpu_s"] - tracker_before_s) * 1000 / count, 3),
            # More than one, since the worker also reads the repository's labels.
            "requests_per_create": round(counts["requests"] / count, 2),
            "lookups": counts["lookups"],
        }


def _with_backlog(database: str, backlog: int, patterns: Sequence[Pattern], rounds: int) -> dict[str, dict[str, float]]:
    """Measure each pattern with and without the backlog; the two take turns to begin."""
    with _tracker() as tracker, run_receiver(0, TARGETS) as receiver, empty_installation(database) as installation:
        for number, url in enumerate(receiver.urls):
            many_targets(installation.customer, number, 1, url)
        body = _body(installation, tracker)
        results = {}
        for pattern in patterns:
            measured: dict[bool, list[WaitResult]] = {True: [], False: []}
            before, rates = tracker.counts(), []
            for number in range(rounds):
                for is_waiting in (False, True) if number % 2 == 0 else (True, False):
                    round_before = tracker.counts()["creates"]
                    took = _waited(installation, receiver, pattern, backlog if is_waiting else 0, body)
                    measured[is_waiting].append(took[0])
                    if is_waiting:
                        rates.append((tracker.counts()["creates"] - round_before) * 60 / took[1])
            after = tracker.counts()
            pairs = zip(measured[True], measured[False], strict=True)
            results[pattern.name] = {
                **_sides(measured[False], "without"),
                **_sides(measured[True], "with"),
                "with_vs_without": round(median(slow.median_ms / alone.median_ms for slow, alone in pairs), 2),
                "creates": after["creates"] - before["creates"],
                "creates_per_minute": round(max(rates), 1),
                "lookups": after["lookups"] - before["lookups"],
            }
        return results


def _waited(
    installation: EmptyInstallation, receiver: BenchReceiver, pattern: Pattern, backlog: int, body: bytes
) -> tuple[WaitResult, float]:
    """Return the wait times of the webhooks' exports, and the seconds that the workers ran."""
    installation.reset()
    receiver.clear()
    if backlog:
        many_waiting(installation.customer, 0, backlog, (TARGETS, 1), utc_now() - timedelta(seconds=1))
        execute("UPDATE exports SET body = ?", (body,))
        if not is_sqlite():
            # In an installation, exports are stored one by one, and autovacuum has processed the table.
            database.execute_sql("VACUUM ANALYZE exports")
    with workers(installation.env, is_graceful=False):
        began_at = utc_now()
        wait_until(lambda: count_listening(installation.env["REDIS_URL"]) == PROCESSES, "the workers to listen")
        begins_at = utc_now() + LEAD
        many_waiting(installation.customer, backlog, pattern.exports, (0, TARGETS), begins_at, every_ms=pattern.every_ms)
        wait_until(lambda: bool(receiver.arrivals()["requests"] >= pattern.exports), "every export to arrive")
        return waited(receiver, pattern, begins_at, backlog), (utc_now() - began_at).total_seconds()


def _sides(measured: Sequence[WaitResult], side: str) -> dict[str, float]:
    return {
        f"{side}_median_ms": round(median(result.median_ms for result in measured), 1),
        f"{side}_p95_ms": round(median(result.p95_ms for result in measured), 1),
    }


def _body(installation: EmptyInstallation, tracker: BenchTracker) -> bytes:
    """Turn target number TARGETS into a repository of the tracker, with a limit; return the body of a short ticket."""
    made = make_tracker(installation.customer, tracker.base_url)
    approve(prepare(installation.customer, 1, 0), installation.customer, [made])
    [(body,)] = rows("SELECT body FROM exports")
    record = json.loads(body)
    record["ticket"]["description"] = "One of many."
    [target_id] = many_targets(installation.customer, TARGETS, 1, tracker.base_url)
    with transaction():
        execute("UPDATE targets SET provider_key = 'gitea' WHERE id = ?", (target_id,))
        targets.set_secret(target_id, TOKEN, Vault([b64decode(ENCRYPTION_KEY)]), utc_now())
        limit_target(target_id, MAX_PER_MINUTE)
        execute("UPDATE targets SET validation_due_at = NULL")
    return json.dumps(record).encode()


@contextmanager
def _tracker() -> Iterator[BenchTracker]:
    with child("bench.servers.instant_tracker") as process:
        yield BenchTracker(pipe(process.stdout).readline().strip(), process)


def _delivered() -> int:
    return int(rows("SELECT count(*) FROM attempts WHERE outcome = 'delivered'")[0][0])


if __name__ == "__main__":
    bench()
