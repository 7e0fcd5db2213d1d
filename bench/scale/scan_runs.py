"""`python -m bench.scale.scan_runs`: repeated scan runs of a site with 5,000 pages and 100,000 findings.

Every page has its own rule with 20 places, and so becomes one ticket, which is delivered to a target that receives events.
The next run reports all places, two runs omit half of them, and the last one reports them again. Reports pages per second,
from the parsed body to the commit, in one process, and the time to form the events of a run, one for each ticket.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import click

from bench import figures
from bench.servers.empty_installation import empty_installation
from runtime.clock import utc_now
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.exports.record import Approval
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.targets.target import TargetEdit
from schemas.triage.bulk_decisions import ExportReference
from storage.accounts import projects
from storage.db.engine import database, execute, rows
from storage.exports import transitions
from storage.exports.events import forming
from storage.intake import findings
from storage.targets import changes
from tests.support.factories import DEFAULT_SECRET, LOOPBACK_POLICY, Customer, issue, make_target, postback

PLACES: Final = 20
#: Exports that are approved in one transaction.
_CHUNK: Final = 200
#: The runs after the delivery: number, and places that it reports on every page.
_RUNS: Final[Mapping[str, tuple[int, int]]] = {
    "all seen again": (3, PLACES),
    "half is missed": (4, PLACES // 2),
    "half is fixed": (5, PLACES // 2),
    "half is open again": (6, PLACES),
}


@click.command(epilog="Example: python -m bench.scale.scan_runs --pages 500 --database sqlite")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--pages", default=5_000, show_default=True, type=click.IntRange(min=10), help="Pages of the site.")
def bench(database: str, pages: int) -> None:
    """Measure scan runs of a large site, and the events that they cause."""
    measured: dict[str, dict[str, float]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        with empty_installation(name) as installation:
            measured[name] = _scanned(installation.customer, pages)
    lines: dict[str, Sequence[float | str | None]] = {
        each: [*(result[each] for result in measured.values())] for each in next(iter(measured.values()))
    }
    figures.print_table("pages in a second; events and seconds of each run", tuple(measured), lines)
    figures.write("scan_runs", {**figures.machine(), "pages": pages, **measured})


def _scanned(customer: Customer, pages: int) -> dict[str, float]:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, utc_now(), "bench")
    found = {"first run, all new": _run(customer, 1, pages, PLACES)}
    _deliver(customer)
    # Autovacuum does this within a minute; without statistics, PostgreSQL reads far more.
    database.execute_sql("ANALYZE")
    for name, (run, places) in _RUNS.items():
        found[name] = _run(customer, run, pages, places)
        before, began = _count_events(), time.perf_counter()
        later = utc_now() + timedelta(hours=1)
        while (ready := forming.next_run(later, 60)) is not None:
            forming.form(ready, later)
        found[f"{name}: events"] = _count_events() - before
        found[f"{name}: formed in s"] = round(time.perf_counter() - began, 1)
    return found


def _run(customer: Customer, run: int, pages: int, places: int) -> float:
    form, elapsed_s = PostbackForm(), 0.0
    for page in range(pages):
        url = f"https://shop.example/products/{page}"
        issues: list[Mapping[str, Any]] = [
            issue(f"rule-{page}", location=f"main > img:nth-child({place})") for place in range(places)
        ]
        parsed = form.read(postback(run, issues, page={"url": url}, status="completed"))
        began = time.perf_counter()
        findings.record(findings.prepare_postback(parsed, customer.project_id), customer.project_id, utc_now(), "bench")
        elapsed_s += time.perf_counter() - began
    return round(pages / elapsed_s)


def _deliver(customer: Customer) -> None:
    """Approve every ticket for a target that receives events, and mark it as delivered."""
    target = make_target(customer)
    changes.edit(target.id, TargetEdit(events=ALL_EVENTS), DEFAULT_SECRET, utc_now(), "bench")
    ids, approval = [row[0] for row in rows("SELECT id FROM exports ORDER BY id")], Approval(target.id, None)
    for first in range(0, len(ids), _CHUNK):
        references = [ExportReference(each) for each in ids[first : first + _CHUNK]]
        transitions.approve_many(references, customer.account_id, approval, utc_now(), "bench", LOOPBACK_POLICY)
    execute("UPDATE exports SET status = 'exported', due_at = NULL")


def _count_events() -> int:
    return int(rows("SELECT COUNT(*) FROM ticket_events")[0][0])


if __name__ == "__main__":
    bench()
