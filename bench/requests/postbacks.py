"""`python -m bench.requests.postbacks`: processor time of postbacks in projects that group by finding and by rule.

    new     one page with 500 new findings of 25 rules
    seen    the same page again, by the next scan run
    site    42 pages of a site, each with one new finding of each of 10 rules; the time is that of all pages together

In this process, on SQLite: from the parsed body to the commit, without HTTP. Each repetition uses a new page and a new site.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from bench.figures import Extent, Figure, print_figures
from runtime.clock import utc_now
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm, ScanPostback
from storage.db import schema_version
from storage.db.engine import close_database, connection, open_database
from storage.intake import findings
from tests.support.factories import issue, make_customer, postback

RULES: Final = 25
PLACES: Final = 20
SITE_PAGES: Final = 42
SITE_RULES: Final = 10
_REPETITIONS: Final = {Extent.QUICK: 5, Extent.FULL: 15}
#: Repetitions that are not counted: they fill the statement caches.
_WARM_UP: Final = 1
_FIRST_RUN: Final = 42


@click.command(epilog="Example: python -m bench.requests.postbacks --repetitions 5")
@click.option("--repetitions", default=15, show_default=True, type=click.IntRange(1, 100), help="Reports medians.")
def bench(repetitions: int) -> None:
    """Measure the processor time of postbacks."""
    print_figures("postbacks", _measured(repetitions))


def measure(extent: Extent) -> list[Figure]:
    """Measure every case in both groupings; under ten seconds."""
    return _measured(_REPETITIONS[extent])


def _measured(repetitions: int) -> list[Figure]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="riskrelay-bench-") as folder:
        open_database(f"sqlite:///{Path(folder) / 'riskrelay.db'}")
        schema_version.migrate()
        with connection():
            for grouping in TicketGrouping:
                project_id = make_customer(grouping=grouping).project_id
                for number in range(_WARM_UP + repetitions):
                    for name, elapsed_ms in _repetition(project_id, number).items():
                        found.setdefault(f"{name}_{grouping}_cpu_ms", []).append(elapsed_ms)
        close_database()
    return [Figure(name, values[_WARM_UP:], "ms", is_cost=True) for name, values in found.items()]


def _repetition(project_id: int, number: int) -> dict[str, float]:
    first_run = _FIRST_RUN + 10 * number + 1_000_000 * project_id
    # New rules for each repetition: otherwise the second one would extend the groups of the first.
    rule = f"page-{number}-rule"
    new, seen = (_page(run_id, f"/page-{number}", RULES, PLACES, rule) for run_id in (first_run, first_run + 1))
    site = [_page(first_run + 2, f"/{number}/{page}", SITE_RULES, 1, f"site-{number}-rule") for page in range(SITE_PAGES)]
    return {
        "postback_500_new": _cpu_ms(lambda: _post([new], project_id)),
        "postback_500_seen": _cpu_ms(lambda: _post([seen], project_id)),
        "postback_site": _cpu_ms(lambda: _post(site, project_id)),
    }


def _page(run_id: int, path: str, rules: int, places: int, rule: str) -> ScanPostback:
    url = f"https://shop.example{path}"
    issues: list[Mapping[str, Any]] = [
        issue(f"{rule}-{number}", location=f"main > section.{chr(ord('a') + place)} > img.hero")
        for number in range(rules)
        for place in range(places)
    ]
    page = {**postback()["page"], "url": url, "normalizedUrl": url}
    read: ScanPostback = PostbackForm().read(postback(run_id, issues=issues, page=page))
    return read


def _post(pages: Sequence[ScanPostback], project_id: int) -> None:
    for page in pages:
        findings.record(findings.prepare_postback(page, project_id), project_id, utc_now(), "scanner")


def _cpu_ms(work: Callable[[], None]) -> float:
    began_s = time.process_time()
    work()
    return (time.process_time() - began_s) * 1000


if __name__ == "__main__":
    bench()
