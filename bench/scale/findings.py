"""`python -m bench.scale.findings`: the time of lists, trends and reports of findings, with 100,000 of them on 5,000 pages.

One account with three projects, one of which has 80 % of the findings; 50 rules with a group each. The findings were first
seen over 90 days; 40 % are fixed, 5 % were reported again after they had been fixed. Each figure is a median, except that of
a report, which is the time of one run for its whole text.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from statistics import median
from typing import Any, Final

import click
from ulid import ULID

from bench import figures
from bench.servers.empty_installation import empty_installation
from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.intake.page_url import page_digest
from schemas.intake.scanner import SEVERITIES
from schemas.triage.finding_filter import FindingQuery
from service.operations.finding_reports import ReportFormat, report
from storage.accounts import projects
from storage.accounts.projects import Project
from storage.db import identifiers
from storage.db.bulk_sql import insert_records
from storage.db.engine import database, execute, is_sqlite, rows, transaction
from storage.db.models import FindingRow, FindingSightingRow, ScanRunRow
from storage.intake import finding_history, finding_list
from storage.reporting import finding_trends
from tests.support.factories import Customer, make_exports, make_project

#: The product's bound for each median, except for reports.
BOUND_MS: Final = 100.0
PAGES: Final = 5_000
RULES: Final = 50
DAYS: Final = 90
PAGE: Final = 51
_DAY_MS: Final = 86_400_000
#: Rows per transaction.
_CHUNK: Final = 10_000
_SEVERITIES: Final = dict(zip(SEVERITIES, (30, 35, 25, 9, 1), strict=True))


@click.command(epilog="Example: python -m bench.scale.findings --findings 20000 --database sqlite")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--findings", default=100_000, show_default=True, type=click.IntRange(min=1000), help="How many there are.")
@click.option("--times", default=9, show_default=True, type=click.IntRange(min=3), help="Of each request.")
def bench(database: str, findings: int, times: int) -> None:
    """Measure lists, trends and reports of many findings."""
    measured: dict[str, dict[str, float]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        with empty_installation(name) as installation:
            project_id = fill(installation.customer, findings)
            account_id, now = installation.customer.account_id, utc_now()
            elapsed_ms = {
                request: _median_ms(work, times) for request, work in requests(account_id, project_id, now).items()
            }
            project = projects.get_project(project_id)
            for form in ReportFormat:
                elapsed_ms[f"report: {form}"] = _median_ms(partial(_write, project, form, now), 1)
            measured[name] = elapsed_ms
    lines: dict[str, Sequence[float | str | None]] = {
        name: [*(result[name] for result in measured.values()), "" if name.startswith("report") else f"< {BOUND_MS:g}"]
        for name in next(iter(measured.values()))
    }
    figures.print_table("a request, ms", (*measured, "bound"), lines)
    figures.write("findings", {**figures.machine(), "findings": findings, "times": times, **measured})


def requests(account_id: int, project_id: int, now: datetime) -> Mapping[str, Callable[[], object]]:
    """Return the measured queries of an account by name."""
    [(small_project,)] = rows("SELECT MIN(project_id) FROM findings WHERE project_id <> ?", (project_id,))
    oldest = "SELECT id, page_digest FROM findings WHERE project_id = ? ORDER BY id LIMIT 1"
    [(finding_id, digest)] = rows(oldest, (project_id,))
    of_page = FindingQuery(account_id, project_ids=(project_id,), pages=(digest,))
    of_rule = FindingQuery(account_id, rules=("rule-0",))
    filters = {
        "no filter": FindingQuery(account_id),
        "open": FindingQuery(account_id, states=("open",)),
        "fixed": FindingQuery(account_id, states=("fixed",)),
        "snoozed, none": FindingQuery(account_id, states=("snoozed",)),
        "dismissed": FindingQuery(account_id, states=("dismissed",)),
        "critical": FindingQuery(account_id, severities=("critical",)),
        "small project": FindingQuery(account_id, project_ids=(small_project,)),
        "rule": of_rule,
        "host": FindingQuery(account_id, hosts=("shop3.example",)),
        "page": of_page,
        "q common word": FindingQuery(account_id, words=("image",)),
        "q no match": FindingQuery(account_id, words=("nowhere",)),
    }
    calls: dict[str, Callable[[], object]] = {
        f"list: {name}": partial(finding_list.list_page, query, now, PAGE) for name, query in filters.items()
    }
    calls["counts: rule"] = partial(finding_list.count_by_state, of_rule, now)
    calls["counts: page"] = partial(finding_list.count_by_state, of_page, now)
    calls["one finding"] = partial(finding_list.get, finding_id, account_id, now)
    calls["its history"] = partial(finding_history.list_runs, finding_id, 201)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for days in (7, 30, 90):
        first = today - timedelta(days=days - 1)
        calls[f"trend: {days} days"] = partial(finding_trends.read_trend, account_id, None, first, days)
        calls[f"trend: {days} days, project"] = partial(finding_trends.read_trend, account_id, project_id, first, days)
    return calls


def _write(project: Project, form: ReportFormat, now: datetime) -> int:
    return sum(map(len, report(project, form, now)))


def _median_ms(work: Callable[[], object], times: int) -> float:
    elapsed_ms: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        elapsed_ms.append((time.perf_counter() - began) * 1000)
    return round(median(elapsed_ms), 1)


def fill(customer: Customer, findings: int) -> int:
    """Store findings in three projects of the customer; return the id of the project with most of them."""
    rng = random.Random(22)
    projects = [make_project(customer) for _ in range(3)]
    exports = make_exports(customer, RULES)
    now_ms = to_ms(utc_now())
    run = {"project": projects[0], "status": "completed", "created_at": 0, "updated_at": 0}
    ScanRunRow.insert_many([{**run, "id": run_id} for run_id in range(1, 9)]).execute()
    execute("UPDATE exports SET status = 'dismissed' WHERE id = ?", (exports[-1],))
    for first in range(0, findings, _CHUNK):
        made = [
            _finding(number, now_ms, rng, customer.account_id, projects, exports)
            for number in range(first, min(first + _CHUNK, findings))
        ]
        with transaction():
            if not is_sqlite():
                # Without foreign key checks, which run for each row; all keys exist.
                execute("SET LOCAL session_replication_role = replica")
            insert_records(FindingRow, [row for row, _ in made])
            insert_records(FindingSightingRow, [sighting for _, sightings in made for sighting in sightings])
    database.execute_sql("ANALYZE" if is_sqlite() else "VACUUM ANALYZE")
    return projects[0]


def _finding(
    number: int, now_ms: int, rng: random.Random, account_id: int, projects: Sequence[int], exports: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    first_ms = now_ms - int(rng.random() * DAYS * _DAY_MS)
    finding_id = f"{identifiers.FINDING}_{ULID.from_timestamp(first_ms)}"
    is_fixed, times_reopened = rng.random() < 0.4, int(rng.random() < 0.05)
    outcomes = ["seen", "seen", *(["missed", "fixed", "reopened"] * times_reopened), *(["missed", "fixed"] * is_fixed)]
    step = (now_ms - first_ms) // (len(outcomes) + 1)
    sightings = [
        {"finding_id": finding_id, "scan_run_id": run + 1, "seen_at": first_ms + run * step, "outcome": outcome}
        for run, outcome in enumerate(outcomes)
    ]
    page, rule = rng.randrange(PAGES), min(int(RULES * rng.random() ** 2), RULES - 1)
    url = f"https://shop{page % 10}.example/products/{page}"
    row = {
        "id": finding_id,
        "project_id": rng.choices(projects, (80, 19, 1))[0],
        "fingerprint": f"{number:064x}",
        "code": f"rule-{rule}",
        "title": "Image without alternative text",
        "severity": rng.choices([*_SEVERITIES], [*_SEVERITIES.values()])[0],
        "page_url": url,
        "location": f"main > section:nth-child({number % 40}) > img.hero",
        "first_scan_run_id": 1,
        "last_scan_run_id": 2,
        "first_seen_at": first_ms,
        "last_seen_at": first_ms + step,
        "times_seen": 2 + times_reopened,
        "export_id": exports[rule],
        "help_url": None,
        "account_id": account_id,
        "page_digest": page_digest(url),
        "host": f"shop{page % 10}.example",
        "missed_runs": 2 if is_fixed else 0,
        "fixed_at": sightings[-1]["seen_at"] if is_fixed else None,
        "times_reopened": times_reopened,
    }
    return row, sightings


if __name__ == "__main__":
    bench()
