"""`python -m bench.scale.export_list`: response time of the list of a million exports, by filter, order and search.

Three accounts, 51 rules, 40 hosts; the frequencies of words are as uneven as in a natural language. Each figure is the
median of one account's queries as the API makes them: a page of 50, or the total, or the counts next to the filters.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any, Final

import click
from ulid import ULID

from bench import figures
from bench.servers.empty_installation import empty_installation
from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.intake.scanner import SEVERITIES
from schemas.triage.export_filter import ExportQuery, ExportSort
from schemas.triage.search_words import hosts_of, words_of
from storage.db.bulk_sql import insert_records
from storage.db.engine import database, execute, is_sqlite, transaction
from storage.db.models import ExportRow
from storage.exports.search import export_list, export_search
from storage.exports.search.export_list import position_of
from storage.exports.search.export_search import SearchEntry
from tests.support.factories import Customer, make_customer, make_project, make_target

#: The product's bound for each median.
BOUND_MS: Final = 50.0
PAGE: Final = 51
ACCOUNTS: Final = 3
RULES: Final = 51
HOSTS: Final = 40
PROJECTS: Final = 10
TARGETS: Final = 10
VOCABULARY: Final = 5_000
_WORDS_PER_DESCRIPTION: Final = 25
#: Rows per transaction.
_CHUNK: Final = 10_000
#: One export every ten seconds: a million in four months.
_EVERY_MS: Final = 10_000

_STATUSES: Final = {
    "exported": 84,
    "prepared": 6,
    "dismissed": 5,
    "failed": 3,
    "blocked": 1,
    "approved": 0.5,
    "retry_scheduled": 0.4,
    "delivering": 0.1,
}
_SOURCES: Final = dict(zip(SOURCE_TYPES, (90, 3, 1, 1, 5), strict=True))
_SEVERITIES: Final = dict(zip(SEVERITIES, (30, 35, 25, 9, 1), strict=True))


@click.command(epilog="Example: python -m bench.scale.export_list --exports 100000 --database sqlite")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--exports", default=1_000_000, show_default=True, type=click.IntRange(min=1000), help="How many there are.")
@click.option("--times", default=15, show_default=True, type=click.IntRange(min=3), help="Of each request.")
def bench(database: str, exports: int, times: int) -> None:
    """Measure lists, totals and counts of many exports."""
    measured: dict[str, dict[str, float]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        with empty_installation(name) as installation:
            query = fill(installation.customer, exports)
            measured[name] = {request: _median_ms(work, times) for request, work in requests(query).items()}
    lines: dict[str, Sequence[float | str | None]] = {
        request: [*(result[request] for result in measured.values()), f"< {BOUND_MS:g}"]
        for request in next(iter(measured.values()))
    }
    figures.print_table("a request, ms", (*measured, "bound"), lines)
    figures.write("export_list", {**figures.machine(), "exports": exports, "times": times, **measured})


def requests(query: ExportQuery) -> Mapping[str, Callable[[], object]]:
    """Return the measured queries of an account by name; `query` has the values for some filters."""
    account = ExportQuery(query.account_id)
    waiting = account.waiting_for_decision(utc_now())
    half = utc_now() - timedelta(days=60)
    filters: dict[str, ExportQuery] = {
        "no filter": account,
        "status prepared": replace(account, statuses=("prepared",)),
        "status failed, blocked": replace(account, statuses=("failed", "blocked")),
        "severity critical": replace(account, severities=("critical",)),
        "severity high, critical": replace(account, severities=("high", "critical")),
        "project": replace(account, project_ids=query.project_ids),
        "source email": replace(account, sources=("inbound_email",)),
        "rule, common": replace(account, rules=("rule-0",)),
        "rule, rare": replace(account, rules=(f"rule-{RULES - 1}",)),
        "target": replace(account, target_ids=query.target_ids),
        "host": replace(account, hosts=query.hosts),
        "created": replace(account, created_before=half),
        "q common word": replace(account, words=("w0",)),
        "q two common words": replace(account, words=("w1", "w2")),
        "q rare word": replace(account, words=(f"w{VOCABULARY - 1}",)),
        "q no match": replace(account, words=("nowhere",)),
        "waiting": waiting,
        "waiting, project, high": replace(waiting, project_ids=query.project_ids, severities=("high",)),
        "host, rule, prepared": replace(account, hosts=query.hosts, rules=("rule-0",), statuses=("prepared",)),
        "q common word, prepared": replace(waiting, words=("w0",)),
    }
    calls: dict[str, Callable[[], object]] = {}
    for name, each in filters.items():
        calls[f"page: {name}"] = partial(export_list.list_page, each, ExportSort.NEWEST, PAGE)
        calls[f"by severity: {name}"] = partial(export_list.list_page, each, ExportSort.SEVERITY, PAGE)
        calls[f"by findings: {name}"] = partial(export_list.list_page, each, ExportSort.FINDINGS, PAGE)
        calls[f"total: {name}"] = partial(export_list.count, each)
        calls[f"facets: {name}"] = partial(export_list.facets, each)
    calls["page: oldest"] = lambda: export_list.list_page(account, ExportSort.OLDEST, PAGE)
    for sort in ExportSort:
        calls[f"page 20: {sort}"] = _later_page(account, sort)
    return calls


def _later_page(query: ExportQuery, sort: ExportSort) -> Callable[[], object]:
    last = export_list.list_page(query, sort, 20 * PAGE)[-1]
    return lambda: export_list.list_page(query, sort, PAGE, position_of(last, sort))


def _median_ms(work: Callable[[], object], times: int) -> float:
    elapsed_ms: list[float] = []
    for _ in range(times + 1):
        began = time.perf_counter()
        work()
        elapsed_ms.append((time.perf_counter() - began) * 1000)
    return round(median(elapsed_ms[1:]), 1)


def fill(customer: Customer, exports: int) -> ExportQuery:
    """Store exports of the customer and of two others; return a query of the customer with values for some filters."""
    rng = random.Random(20)
    customers = [customer, *(make_customer() for _ in range(ACCOUNTS - 1))]
    projects = {each: [make_project(each) for _ in range(PROJECTS)] for each in customers}
    targets = {each: [make_target(each).id for _ in range(TARGETS)] for each in customers}
    began_ms = to_ms(utc_now()) - exports * _EVERY_MS
    for first in range(0, exports, _CHUNK):
        until = min(first + _CHUNK, exports)
        rows = [_export(n, began_ms + n * _EVERY_MS, rng, customers, projects, targets) for n in range(first, until)]
        with transaction():
            if not is_sqlite():
                # Without foreign key checks, which run for each row; all keys exist.
                execute("SET LOCAL session_replication_role = replica")
            insert_records(ExportRow, [row for row, _ in rows])
            export_search.add([entry for _, entry in rows])
    database.execute_sql("ANALYZE" if is_sqlite() else "VACUUM ANALYZE")
    hosts = (f"shop{HOSTS // 2}.example",)
    return ExportQuery(
        customer.account_id, project_ids=(projects[customer][3],), target_ids=(targets[customer][3],), hosts=hosts
    )


def _export(
    number: int,
    at_ms: int,
    rng: random.Random,
    customers: Sequence[Customer],
    projects: Mapping[Customer, Sequence[int]],
    targets: Mapping[Customer, Sequence[str]],
) -> tuple[dict[str, Any], SearchEntry]:
    customer = rng.choices(customers, (50, 30, 20))[0]
    status, source = (rng.choices([*of], [*of.values()])[0] for of in (_STATUSES, _SOURCES))
    severity = rng.choices([*_SEVERITIES], [*_SEVERITIES.values()])[0]
    rule = f"rule-{_uneven(rng, RULES)}" if source == "finding" else None
    total = None if rule is None else rng.choice((1, 1, 1, rng.randrange(2, 60)))
    host = f"shop{_uneven(rng, HOSTS)}.example"
    ticket = {
        "title": f"{rule or 'Note'}: {total or 1} pages of {host}",
        "description": " ".join(_words(rng)),
        "severity": severity,
        "page_url": f"https://{host}/products/{number}",
        "labels": ["bench"],
        "evidence": {"location": "main > img.hero", "places": [{"url": f"https://{host}/{number}", "location": "main"}]},
    }
    export_id = f"exp_{ULID.from_timestamp(at_ms)}"
    is_sent = status not in {"prepared", "dismissed"}
    row = {
        "id": export_id,
        "account_id": customer.account_id,
        "project_id": rng.choice(projects[customer]),
        "source_type": source,
        "source_id": f"note-{number}",
        "status": status,
        "target_id": rng.choice(targets[customer]) if is_sent else None,
        "ticket": json.dumps(ticket),
        "ticket_digest": "sha256:0",
        "preview_problems": "[]",
        "body": _body(ticket) if is_sent else None,
        "attempts": 1,
        "attempts_before": 0,
        "due_at": at_ms + 10**10 if status in {"approved", "retry_scheduled", "delivering"} else None,
        "lease": "lease" if status == ExportStatus.DELIVERING else None,
        "version": 1,
        "created_at": at_ms,
        "severity_rank": SEVERITIES.index(severity),
        "rule": rule,
        "findings_total": total,
        "findings_fixed": None if total is None else 0,
    }
    return row, SearchEntry(export_id, customer.account_id, words_of(ticket), hosts_of(ticket), rule)


def _body(ticket: Mapping[str, Any]) -> Any:
    body = json.dumps({"type": "ticket.export", "ticket": ticket}).encode()
    # In the text form of an array, PostgreSQL needs bytes in hex.
    return body if is_sqlite() else "\\x" + body.hex()


def _uneven(rng: random.Random, count: int) -> int:
    """Return a number below `count`; small numbers are far more frequent."""
    return min(int(count * rng.random() ** 3), count - 1)


def _words(rng: random.Random) -> Iterator[str]:
    for _ in range(_WORDS_PER_DESCRIPTION):
        yield f"w{int(VOCABULARY ** rng.random()) - 1}"


if __name__ == "__main__":
    bench()
