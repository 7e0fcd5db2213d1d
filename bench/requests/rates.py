"""`python -m bench.requests.rates`: requests per second of the product's hot routes, compared with two simpler applications.

Three applications run under the same gunicorn, with the product's configuration and two processes, and are measured
alternately: bare Falcon without a database, hand-written routes with plain SQL, and the product with all features, rate
limits and log included. `bench.load.request_templates` has the requests. Before the measurement, the hand-written routes
must return and store the same as the product (`bench.handwritten.comparison`); after every round, the tables must have the
rows of all responses. Loopback only; started processes are stopped.

Other measurements call `rates` for a service that they have started, on their own database.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import click

from bench.figures import Extent, Figure, machine, print_table, ratio, write
from bench.handwritten.comparison import difference, normalize, numbered_request, stored_rows
from bench.load.recorded_requests import ROWS_PER_REQUEST, count_recorded, count_when_stable
from bench.load.repeated_requests import CONNECTIONS, TOOLS, LoadResult, Numbers, RequestTemplate, available_tool, load
from bench.load.request_templates import APPROVABLE, APPROVABLE_DIGITS, SeededDatabase, prepare_many, seed
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.serving import ServedApplication, serving
from storage.accounts.account_limits import Limited
from tests.support.factories import LOOPBACK, environment
from tests.support.servers.redis_and_postgres import RedisServer

#: As for a small installation: the default of WEB_PROCESSES.
PROCESSES: Final = 2
#: The warm-up fills connection pools and statement caches.
_WARM_UP_S: Final = 1
#: A rate limit that is counted but never reached.
_UNLIMITED: Final = "1000000"
#: A limit of an account's stored rows that no measurement reaches.
_UNLIMITED_ROWS: Final = "100000000"
#: More than any application reaches: the commit alone takes a quarter of a millisecond, an approval ten times as long.
_MAX_APPROVALS_PER_S: Final = 3000
#: The number of the first single requests, which compare the applications before the measurement; rounds use later numbers.
_FIRST_NUMBER: Final = 1

BARE: Final = "bench.servers.bare_falcon:app"
APPS_WITH_DATABASE: Final = {"handwritten": "bench.handwritten.app:create_app()", "product": "service.wsgi:app"}
DATABASES: Final = ("sqlite", "postgresql")

KINDS: Final = tuple(ROWS_PER_REQUEST)

#: Smallest acceptable ratios on SQLite: product to bare Falcon, and product to the hand-written routes.
_AIMS: Final = {
    "status": (0.28, 0.6),
    "not_modified": (0.32, 0.7),
    "postback": (0.1, 0.95),
    "postback_100": (None, 0.95),
    "approval": (0.25, 0.9),
}
#: Largest acceptable p99 of the product on SQLite.
_P99_AIMS_MS: Final = {"status": 10.0, "postback": 60.0}
#: The figures that `measure` always returns.
PROMISED: Final = ("approval_per_s", *(f"{kind}_vs_{other}" for kind in _AIMS for other in ("bare", "raw_sql")))


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One round: responses per second, response times, and the worker processes' processor time per response."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


@dataclass(slots=True)
class BenchedApplication:
    """A running application, its database if it has one, its requests, and the number of the next export to approve."""

    served: ServedApplication
    seeded: SeededDatabase | None
    templates: Mapping[str, RequestTemplate]
    next_export: int = _FIRST_NUMBER + 1


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Rounds of each kind of request, seconds of each round, the load generator, and the product's log level."""

    rounds: Mapping[str, int]
    seconds: int = 2
    tool: str = field(default_factory=available_tool)
    log_level: str = "info"


#: Kinds with an aim on SQLite get more repetitions, since a ratio of two noisy figures is noisier than both.
_FULL: Final = {"sqlite": {kind: 5 if kind in _AIMS else 3 for kind in KINDS}, "postgresql": dict.fromkeys(KINDS, 3)}
_QUICK: Final = {kind: 2 for kind in _AIMS if kind != "postback_100"}

Rounds = dict[str, list[RequestResult]]


@click.command(epilog="Example: python -m bench.requests.rates --database sqlite --rounds 5 --kind status")
@click.option("--database", type=click.Choice([*DATABASES, "both"]), default="both", show_default=True)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Kind of request; by default all.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 50), help="Repetitions; reports medians.")
@click.option("--seconds", default=2, show_default=True, type=click.IntRange(1, 60), help="Seconds of each round.")
@click.option("--tool", type=click.Choice(TOOLS), default=available_tool(), show_default=True, help="Load generator.")
@click.option(
    "--log", default="info", type=click.Choice(["info", "warning"]), show_default=True, help="The product's level."
)
def bench(database: str, kinds: tuple[str, ...], rounds: int, seconds: int, tool: str, log: str) -> None:
    """Measure requests per second of the product, of bare Falcon, and of hand-written routes."""
    databases = DATABASES if database == "both" else (database,)
    plan = RequestPlan(dict.fromkeys(kinds or KINDS, rounds), seconds, tool, log)
    figures: dict[str, Any] = {**machine(), "processes": PROCESSES, "connections": CONNECTIONS, "tool": tool}
    for name in databases:
        measured = _measured(name, plan)
        _print_medians(name, measured)
        for kind, results in measured.items():
            figures |= {figure.name: figure.median for figure in _figures(name, kind, results)}
    write("requests", figures)


def measure(extent: Extent) -> list[Figure]:
    """Measure every kind on both databases in under eight minutes; in a quick run the main kinds on SQLite, in under one."""
    plans = {"sqlite": RequestPlan(_QUICK, seconds=1)}
    if extent is Extent.FULL:
        plans = {database: RequestPlan(rounds) for database, rounds in _FULL.items()}
    figures: list[Figure] = []
    for database, plan in plans.items():
        for kind, rounds in _measured(database, plan).items():
            figures += _figures(database, kind, rounds)
    return figures


def rates(
    served: ServedApplication, templates: Mapping[str, RequestTemplate], connections: int, seconds: int
) -> dict[str, RequestResult]:
    """Send each kind of request over `connections` to a running service after a warm-up; return the results by kind."""
    tool, found = available_tool(), {}
    for name, template in templates.items():
        load(tool, served.port, template, _WARM_UP_S, connections)
        found[name] = _measured_load(served, tool, template, seconds, connections)[0]
    return found


@contextmanager
def installations(database: str, log_level: str) -> Iterator[dict[str, BenchedApplication]]:
    """Run the three applications; each one that needs a database gets its own, with the same rows."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(DurablePostgres()) if database == "postgresql" else None
        env = service_environment(folder, REDIS_URL=redis.url, LOG_LEVEL=log_level)
        sides = {}
        for name, app in APPS_WITH_DATABASE.items():
            seeded = seed(postgres.create_database() if postgres else f"sqlite:///{folder / name}.db")
            prepare_many(seeded, _FIRST_NUMBER, 1)
            served = stack.enter_context(serving(app, {**env, "DATABASE_URL": seeded.url}))
            sides[name] = BenchedApplication(served, seeded, seeded.templates())
        sizes = {"BENCH_RESPONSE_BYTES": json.dumps(_check_same_results(sides))}
        bare = stack.enter_context(serving(BARE, {**env, **sizes}))
        yield {"bare": BenchedApplication(bare, None, sides["product"].templates), **sides}


def service_environment(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a service whose limits are too high to reject a measurement's requests."""
    return environment(
        folder,
        **LOOPBACK,
        DEPLOYMENT_MODE="cloud",
        OPERATOR_ACCOUNT_ID="1",
        WEB_PROCESSES=str(PROCESSES),
        DEFAULT_PROJECT_ID="1",
        RATE_LIMIT_PER_MINUTE=_UNLIMITED,
        **dict.fromkeys(Limited, _UNLIMITED_ROWS),
        LOG_FORMAT="json",
        # The same for all applications, since responses contain it, and the tables store responses.
        PUBLIC_BASE_URL="https://bench.example",
        **settings,
    )


def _measured(database: str, plan: RequestPlan) -> dict[str, Rounds]:
    """Measure the applications alternately, so that other load on the machine affects all of them."""
    with installations(database, plan.log_level) as sides:
        measured: dict[str, Rounds] = {}
        for kind, rounds in plan.rounds.items():
            measured[kind] = {name: [] for name in sides}
            for side in sides.values():
                _run_round(side, kind, plan.tool, _WARM_UP_S)
            for _ in range(rounds):
                for name, side in sides.items():
                    measured[kind][name].append(_run_round(side, kind, plan.tool, plan.seconds))
        return measured


def _run_round(side: BenchedApplication, kind: str, tool: str, seconds: int) -> RequestResult:
    """Send one kind of request to one application, and compare the stored rows with the responses."""
    numbers = _new_export_numbers(side, seconds) if kind == "approval" else None
    url = side.seeded.url if side.seeded else None
    before = count_recorded(url, kind) if url else []
    result, loaded = _measured_load(side.served, tool, side.templates[kind], seconds, CONNECTIONS, numbers)
    if url:
        _check_rows(kind, before, count_when_stable(url, kind), loaded, tool)
    return result


def _new_export_numbers(side: BenchedApplication, seconds: int) -> Numbers:
    """Store more prepared exports than can be approved in `seconds`, and return their numbers."""
    first, count = side.next_export, _MAX_APPROVALS_PER_S * seconds
    side.next_export += count
    if side.seeded is not None:
        prepare_many(side.seeded, first, count)
    return Numbers(APPROVABLE, APPROVABLE_DIGITS, first)


def _measured_load(
    served: ServedApplication,
    tool: str,
    template: RequestTemplate,
    seconds: int,
    connections: int,
    numbers: Numbers | None = None,
) -> tuple[RequestResult, LoadResult]:
    cpu_before_s = served.cpu_s()
    loaded = load(tool, served.port, template, seconds, connections, numbers)
    assert loaded.responses, f"No response arrived within {seconds} s."
    cpu_ms = (served.cpu_s() - cpu_before_s) * 1000 / loaded.responses
    return RequestResult(loaded.per_s, loaded.p50_ms, loaded.p99_ms, cpu_ms), loaded


def _check_rows(kind: str, before: list[int], after: list[int], loaded: LoadResult, tool: str) -> None:
    """Compare the tables with the responses; wrk may leave one response per connection unread at its end."""
    unread = CONNECTIONS if tool == "wrk" else 0
    found = [now - then for now, then in zip(after, before, strict=True)]
    assert len(set(found)) <= 1, f"A {kind} is missing in some tables: {found}"
    assert all(loaded.responses <= count <= loaded.responses + unread for count in found), (kind, found, loaded)


def _check_same_results(sides: Mapping[str, BenchedApplication]) -> dict[str, int]:
    """Compare the hand-written routes with the product; return the size of its response to each kind of request."""
    sizes = {}
    for kind in KINDS:
        bodies = {name: _send_once(side, kind) for name, side in sides.items()}
        ours, theirs = (normalize(json.loads(bodies[name] or "null")) for name in ("product", "handwritten"))
        assert ours == theirs, f"The responses to a {kind} differ: {ours} / {theirs}"
        sizes[kind] = len(bodies["product"])
    ours, theirs = (stored_rows(side.seeded.url) for side in (sides["product"], sides["handwritten"]) if side.seeded)
    assert ours == theirs, difference(ours, theirs)
    return sizes


def _send_once(side: BenchedApplication, kind: str) -> bytes:
    """Send a request of one kind once, and return the body of the response."""
    template, number = side.templates[kind], KINDS.index(kind) + _FIRST_NUMBER
    head, _, body = (
        numbered_request(kind, template, _FIRST_NUMBER if kind == "approval" else number).decode().partition("\r\n\r\n")
    )
    line, *headers = head.split("\r\n")
    method, path, _ = line.split()
    request = Request(f"http://127.0.0.1:{side.served.port}{path}", body.encode() or None, method=method)
    for header in headers:
        request.add_header(*header.split(": ", 1))
    try:
        with urlopen(request, timeout=10) as response:  # noqa: S310 - our own loopback address
            status, content = response.status, response.read()
    except HTTPError as error:  # urllib raises it for a 304, too
        status, content = error.code, error.read()
    assert status == template.status, (kind, status, content)
    return bytes(content)


def _figures(database: str, kind: str, rounds: Rounds) -> list[Figure]:
    """Return the figures of one kind of request; those of SQLite have no prefix, since it is the default."""
    name = kind if database == "sqlite" else f"{database}_{kind}"
    to_bare, to_raw_sql = _AIMS.get(kind, (None, None)) if database == "sqlite" else (None, None)
    rates_per_s = {side: [result.per_s for result in results] for side, results in rounds.items()}
    ours = rounds["product"]
    p99_aim_ms = _P99_AIMS_MS.get(kind) if database == "sqlite" else None
    return [
        Figure(f"{name}_per_s", rates_per_s["product"], "1/s"),
        ratio(f"{name}_vs_bare", rates_per_s["product"], rates_per_s["bare"], to_bare),
        ratio(f"{name}_vs_raw_sql", rates_per_s["product"], rates_per_s["handwritten"], to_raw_sql),
        Figure(f"{name}_p50_ms", [result.p50_ms for result in ours], "ms", is_cost=True),
        Figure(f"{name}_p99_ms", [result.p99_ms for result in ours], "ms", p99_aim_ms, is_cost=True),
        Figure(f"{name}_cpu_ms", [result.cpu_ms for result in ours], "ms", is_cost=True),
        Figure(f"{name}_raw_sql_per_s", rates_per_s["handwritten"], "1/s"),
        Figure(f"{name}_raw_sql_cpu_ms", [result.cpu_ms for result in rounds["handwritten"]], "ms", is_cost=True),
        Figure(f"{name}_bare_per_s", rates_per_s["bare"], "1/s"),
        Figure(f"{name}_bare_cpu_ms", [result.cpu_ms for result in rounds["bare"]], "ms", is_cost=True),
    ]


def _print_medians(database: str, measured: Mapping[str, Rounds]) -> None:
    """Print a row of medians for each kind."""
    columns = ("a second", "÷ bare", "÷ by hand", "p50 ms", "p99 ms", "CPU ms", "by hand/s", "CPU ms", "bare/s", "CPU ms")
    rows = {}
    for kind, rounds in measured.items():
        rows[kind] = [median(figure.values) for figure in _figures(database, kind, rounds)]
    print_table(database, columns, rows)


if __name__ == "__main__":
    bench()
