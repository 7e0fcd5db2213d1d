"""`python -m bench.deliveries.trackers`: issues created per second, and a tracker's backlog beside webhooks.

First one real worker delivers exports to ten targets of one local Gitea; every export must have one issue, and without an
unknown outcome nothing is looked up. Then a hundred webhook targets get exports, one after the other and all at once,
alternately with and without a tracker whose target has a large backlog and a limit of 60 a minute: reports the time from due
to arrival, and how many issues were created meanwhile.
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
from bench.deliveries.isolation import LEAD, TARGETS, Pattern, Waited, waited
from bench.deliveries.runs import PROCESSES, SeededTargets, approve, finished, listening, prepare, wait_until, workers
from bench.processes.cost import cpu_s
from bench.servers.crowd import Crowd, crowd
from bench.servers.receiver_process import BenchReceiver, child, pipe, receiver
from runtime.clock import utc_now
from storage.db.engine import database, execute, is_sqlite, rows, transaction
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.database.many_rows import many_targets, many_waiting
from tests.support.factories import ENCRYPTION_KEY, limit_target, make_tracker
from tests.support.trackers.servers import TOKEN

#: Targets of the tracker that gets as many issues as it can take.
_REPOSITORIES: Final = 10
#: Exports of one transaction.
_CHUNK: Final = 500
MAX_PER_MINUTE: Final = 60
#: What the product is held to, as with a target that hangs.
WANTED: Final = 1.2
_DELIVERED_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class BenchTracker:
    """The tracker in a process of its own."""

    base_url: str
    _process: Popen[str]

    def counts(self) -> dict[str, Any]:
        """Return what it counted so far."""
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
        figures.table(f"{name}: {creates:,} issues", ("measured",), {key: [value] for key, value in issues.items()})
        beside = _beside(name, backlog, patterns, rounds)
        results[name] = {**issues, **beside}
        lines: dict[str, Sequence[float | str | None]] = {
            pattern: [*one.values(), f"< {WANTED:g}"] for pattern, one in beside.items()
        }
        columns = ("without, ms", "95th", "with, ms", "95th", "with/without", "creates", "a minute", "lookups", "wanted")
        figures.table(f"{name}: {backlog:,} exports wait for a tracker", columns, lines)
    figures.write("trackers", results)


def created(database: str, count: int) -> dict[str, float]:
    """Create issues with one worker process; each export has one, and nothing is looked up."""
    with _tracker() as tracker, crowd(database, SWEEP_SECONDS="0.05") as installation:
        ids = [make_tracker(installation.customer, tracker.base_url) for _ in range(_REPOSITORIES)]
        for start in range(0, count, _CHUNK):
            with transaction():
                approve(prepare(installation.customer, min(_CHUNK, count - start), start), installation.customer, ids)
        seeded = SeededTargets(installation.customer, ids)
        seeded.change_status("pause")
        with workers(installation.env, 1) as pids:
            wait_until(lambda: listening(installation.env["REDIS_URL"]) == 1, "the worker to listen")
            before_s, tracker_before_s = cpu_s(pids), tracker.counts()["cpu_s"]
            seeded.change_status("resume")
            wait_until(lambda: finished() == count, "every issue to be created", _DELIVERED_WITHIN_S, 0.1)
            took_s = cpu_s(pids) - before_s
        counts = tracker.counts()
        asked = (counts["creates"], counts["issues"], counts["lookups"], _delivered())
        assert asked == (count, count, 0, count), asked
        return {
            "creates_per_s": round((count - 1) / (counts["last_at"] - counts["first_at"]), 1),
            "worker_cpu_ms": round(took_s * 1000 / count, 3),
            "tracker_cpu_ms": round((counts["cpu_s"] - tracker_before_s) * 1000 / count, 3),
            # One more than the create: the labels of the repository, by their names.
            "requests_per_create": round(counts["requests"] / count, 2),
            "lookups": counts["lookups"],
        }


def _beside(database: str, backlog: int, patterns: Sequence[Pattern], rounds: int) -> dict[str, dict[str, float]]:
    """Measure each pattern with and without the backlog; the side that begins changes."""
    with _tracker() as tracker, receiver(0, TARGETS) as there, crowd(database) as installation:
        for number, url in enumerate(there.urls):
            many_targets(installation.customer, number, 1, url)
        body = _body(installation, tracker)
        results = {}
        for pattern in patterns:
            measured: dict[bool, list[Waited]] = {True: [], False: []}
            before, rates = tracker.counts(), []
            for number in range(rounds):
                for is_waiting in (False, True) if number % 2 == 0 else (True, False):
                    round_before = tracker.counts()["creates"]
                    took = _waited(installation, there, pattern, backlog if is_waiting else 0, body)
                    measured[is_waiting].append(took[0])
                    if is_waiting:
                        rates.append((tracker.counts()["creates"] - round_before) * 60 / took[1])
            after = tracker.counts()
            pairs = zip(measured[True], measured[False], strict=True)
            results[pattern.name] = {
                **_sides(measured[False], "without"),
                **_sides(measured[True], "with"),
                "with_vs_without": round(median(one.median_ms / other.median_ms for one, other in pairs), 2),
                "creates": after["creates"] - before["creates"],
                "creates_per_minute": round(max(rates), 1),
                "lookups": after["lookups"] - before["lookups"],
            }
        return results


def _waited(installation: Crowd, there: BenchReceiver, pattern: Pattern, backlog: int, body: bytes) -> tuple[Waited, float]:
    """Return how long the webhooks' exports took, and for how many seconds the workers ran."""
    installation.begin_anew()
    there.clear()
    if backlog:
        many_waiting(installation.customer, 0, backlog, (TARGETS, 1), utc_now() - timedelta(seconds=1))
        execute("UPDATE exports SET body = ?", (body,))
        if not is_sqlite():
            # As an installation whose exports came one by one: autovacuum has seen them.
            database.execute_sql("VACUUM ANALYZE exports")
    with workers(installation.env, is_in_order=False):
        began_at = utc_now()
        wait_until(lambda: listening(installation.env["REDIS_URL"]) == PROCESSES, "the workers to listen")
        begins_at = utc_now() + LEAD
        many_waiting(installation.customer, backlog, pattern.exports, (0, TARGETS), begins_at, every_ms=pattern.every_ms)
        wait_until(lambda: bool(there.arrivals()["requests"] >= pattern.exports), "every export to arrive")
        return waited(there, pattern, begins_at, backlog), (utc_now() - began_at).total_seconds()


def _sides(measured: Sequence[Waited], side: str) -> dict[str, float]:
    return {
        f"{side}_median_ms": round(median(one.median_ms for one in measured), 1),
        f"{side}_p95_ms": round(median(one.p95_ms for one in measured), 1),
    }


def _body(installation: Crowd, tracker: BenchTracker) -> bytes:
    """Make target number TARGETS a repository of the tracker, with its limit; return the bytes of a short ticket."""
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
