"""`python -m bench.requests.rates`: requests a second of the product's hot routes, beside the least that could answer them.

Three applications run under the same gunicorn, with our own configuration and two processes, and are measured
alternately: Falcon with nothing behind it, the same work written by hand in bare SQL, and the product with everything on,
its rate limits and its log included. `bench.load.questions` says what is asked. Before anything is measured the work by hand
must answer and store what the product does (`bench.handwritten.comparison`), and after every round the tables must hold
what was answered. Loopback only; what it starts it stops.

For a service that runs already, on a database of anybody's:

    rates(served: Served, asked: Mapping[str, Question], connections: int, seconds: int) -> dict[str, Asked]

sends each kind of request on so many connections (`bench.load.questions.status(export_id, bearer)`, `.postback(1)`, …) and
returns answers a second, processor time of the serving processes, p50 and p99 of each by its name.
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

from bench.figures import Extent, Figure, machine, ratio, table, write
from bench.handwritten.comparison import difference, left_behind, sent_once, steady
from bench.load.answered_rows import LEFT, settled, stored
from bench.load.questions import APPROVABLE, APPROVABLE_DIGITS, SeededDatabase, prepare_many, seed
from bench.load.repeated_requests import CONNECTIONS, TOOLS, Loaded, Numbers, Question, load, tool_here
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.serving import Served, serving
from storage.accounts.account_limits import Limited
from tests.support.factories import LOOPBACK, environment
from tests.support.servers.redis_and_postgres import RedisServer

#: A small installation's, as WEB_PROCESSES says by default.
PROCESSES: Final = 2
#: A warm-up fills pools and caches of statements.
_WARM_UP_S: Final = 1
#: A limit counts, and is never reached.
_UNLIMITED: Final = "1000000"
#: The same for what an account stores, beside the rows of the other measurements.
_STORED_WITHOUT_LIMIT: Final = "100000000"
#: More than either side can do: the commit alone takes a quarter of a millisecond, and an approval is ten times that.
_MAX_APPROVALS_PER_S: Final = 3000
#: What is sent by hand to each side before anything is measured; no round has it.
_ONCE: Final = 1

BARE: Final = "bench.servers.bare_falcon:app"
WITH_A_DATABASE: Final = {"handwritten": "bench.handwritten.app:create_app()", "product": "service.wsgi:app"}
DATABASES: Final = ("sqlite", "postgresql")

KINDS: Final = tuple(LEFT)

#: To bare Falcon and to the work by hand: what SQLite's figures of these kinds ought to be at least.
_AIMS: Final = {
    "status": (0.28, 0.6),
    "not_modified": (0.32, 0.7),
    "postback": (0.1, 0.95),
    "postback_100": (None, 0.95),
    "approval": (0.25, 0.9),
}
#: What its slowest requests of a hundred ought to take at most.
_P99_AIMS_MS: Final = {"status": 10.0, "postback": 60.0}
#: The names of what `measure` promises.
PROMISED: Final = ("approval_per_s", *(f"{kind}_vs_{other}" for kind in _AIMS for other in ("bare", "raw_sql")))


@dataclass(frozen=True, slots=True)
class Asked:
    """One round: answers a second, how long they took, and the processor time of one in the serving processes."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


@dataclass(slots=True)
class BenchedApplication:
    """One application that serves; its database, unless it has none; what it is asked; the next export to be approved."""

    served: Served
    seeded: SeededDatabase | None
    questions: Mapping[str, Question]
    next_export: int = _ONCE + 1


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What is asked how often: rounds of each kind, how long a round is, what makes the load, and what the product logs."""

    rounds: Mapping[str, int]
    seconds: int = 2
    tool: str = field(default_factory=tool_here)
    log_level: str = "info"


#: Those with an aim, which is SQLite's, get more repetitions, since a ratio of two noisy figures is noisier than both.
_FULL: Final = {"sqlite": {kind: 5 if kind in _AIMS else 3 for kind in KINDS}, "postgresql": dict.fromkeys(KINDS, 3)}
_QUICK: Final = {kind: 2 for kind in _AIMS if kind != "postback_100"}

Rounds = dict[str, list[Asked]]


@click.command(epilog="Example: python -m bench.requests.rates --database sqlite --rounds 5 --kind status")
@click.option("--database", type=click.Choice([*DATABASES, "both"]), default="both", show_default=True)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="What is asked; all unless some are named.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 50), help="Repetitions; reports medians.")
@click.option("--seconds", default=2, show_default=True, type=click.IntRange(1, 60), help="How long each is asked a round.")
@click.option("--tool", type=click.Choice(TOOLS), default=tool_here(), show_default=True, help="What makes the load.")
@click.option(
    "--log", default="info", type=click.Choice(["info", "warning"]), show_default=True, help="The product's level."
)
def bench(database: str, kinds: tuple[str, ...], rounds: int, seconds: int, tool: str, log: str) -> None:
    """Measure requests a second of the product beside bare Falcon and beside the same work by hand."""
    databases = DATABASES if database == "both" else (database,)
    plan = RequestPlan(dict.fromkeys(kinds or KINDS, rounds), seconds, tool, log)
    figures: dict[str, Any] = {**machine(), "processes": PROCESSES, "connections": CONNECTIONS, "tool": tool}
    for name in databases:
        measured = _measured(name, plan)
        _tell(name, measured)
        for kind, asked in measured.items():
            figures |= {figure.name: figure.median for figure in _figures(name, kind, asked)}
    write("requests", figures)


def measure(extent: Extent) -> list[Figure]:
    """Measure every kind on both databases, or SQLite's headlines; under eight minutes, or one."""
    plans = {"sqlite": RequestPlan(_QUICK, seconds=1)}
    if extent is Extent.FULL:
        plans = {database: RequestPlan(rounds) for database, rounds in _FULL.items()}
    figures: list[Figure] = []
    for database, plan in plans.items():
        for kind, asked in _measured(database, plan).items():
            figures += _figures(database, kind, asked)
    return figures


def rates(served: Served, asked: Mapping[str, Question], connections: int, seconds: int) -> dict[str, Asked]:
    """Send each kind of request to a service after a warm-up; return the results by kind."""
    tool, found = tool_here(), {}
    for name, question in asked.items():
        load(tool, served.port, question, _WARM_UP_S, connections)
        found[name] = _asked(served, tool, question, seconds, connections)[0]
    return found


@contextmanager
def installations(database: str, log_level: str) -> Iterator[dict[str, BenchedApplication]]:
    """Serve the three applications; those with a database have one of their own, seeded alike."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(DurablePostgres()) if database == "postgresql" else None
        env = service_environment(folder, REDIS_URL=redis.url, LOG_LEVEL=log_level)
        sides = {}
        for name, app in WITH_A_DATABASE.items():
            seeded = seed(postgres.create_database() if postgres else f"sqlite:///{folder / name}.db")
            prepare_many(seeded, _ONCE, 1)
            served = stack.enter_context(serving(app, {**env, "DATABASE_URL": seeded.url}))
            sides[name] = BenchedApplication(served, seeded, seeded.questions())
        sizes = {"BENCH_ANSWER_BYTES": json.dumps(_require_same_work(sides))}
        bare = stack.enter_context(serving(BARE, {**env, **sizes}))
        yield {"bare": BenchedApplication(bare, None, sides["product"].questions), **sides}


def service_environment(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a service that takes every question as often as it comes."""
    return environment(
        folder,
        **LOOPBACK,
        DEPLOYMENT_MODE="cloud",
        OPERATOR_ACCOUNT_ID="1",
        WEB_PROCESSES=str(PROCESSES),
        DEFAULT_PROJECT_ID="1",
        RATE_LIMIT_PER_MINUTE=_UNLIMITED,
        **dict.fromkeys(Limited, _STORED_WITHOUT_LIMIT),
        LOG_FORMAT="json",
        # One for all, since it stands in answers, and so in the tables.
        PUBLIC_BASE_URL="https://bench.example",
        **settings,
    )


def _measured(database: str, plan: RequestPlan) -> dict[str, Rounds]:
    """Measure the applications alternately, so that a busy moment of the machine affects all of them."""
    with installations(database, plan.log_level) as sides:
        measured: dict[str, Rounds] = {}
        for kind, rounds in plan.rounds.items():
            measured[kind] = {name: [] for name in sides}
            for side in sides.values():
                _ask(side, kind, plan.tool, _WARM_UP_S)
            for _ in range(rounds):
                for name, side in sides.items():
                    measured[kind][name].append(_ask(side, kind, plan.tool, plan.seconds))
        return measured


def _ask(side: BenchedApplication, kind: str, tool: str, seconds: int) -> Asked:
    """Ask one side one kind of question, and hold what it stored against what it answered."""
    numbers = _approvable(side, seconds) if kind == "approval" else None
    url = side.seeded.url if side.seeded else None
    before = stored(url, kind) if url else []
    asked, loaded = _asked(side.served, tool, side.questions[kind], seconds, CONNECTIONS, numbers)
    if url:
        _check(kind, before, settled(url, kind), loaded, tool)
    return asked


def _approvable(side: BenchedApplication, seconds: int) -> Numbers:
    """Store as many prepared exports as can be approved in so many seconds, and return their numbers."""
    first, count = side.next_export, _MAX_APPROVALS_PER_S * seconds
    side.next_export += count
    if side.seeded is not None:
        prepare_many(side.seeded, first, count)
    return Numbers(APPROVABLE, APPROVABLE_DIGITS, first)


def _asked(
    served: Served, tool: str, question: Question, seconds: int, connections: int, numbers: Numbers | None = None
) -> tuple[Asked, Loaded]:
    cpu_before_s = served.cpu_s()
    loaded = load(tool, served.port, question, seconds, connections, numbers)
    assert loaded.answers, f"Not one answer came within {seconds} s."
    cpu_ms = (served.cpu_s() - cpu_before_s) * 1000 / loaded.answers
    return Asked(loaded.per_s, loaded.p50_ms, loaded.p99_ms, cpu_ms), loaded


def _check(kind: str, before: list[int], after: list[int], loaded: Loaded, tool: str) -> None:
    """Hold the tables against the answers: a row of each kind an answer, and what wrk left unread at its end at most."""
    unread = CONNECTIONS if tool == "wrk" else 0
    found = [now - then for now, then in zip(after, before, strict=True)]
    assert len(set(found)) <= 1, f"A {kind} left rows of some kinds alone: {found}"
    assert all(loaded.answers <= count <= loaded.answers + unread for count in found), (kind, found, loaded)


def _require_same_work(sides: Mapping[str, BenchedApplication]) -> dict[str, int]:
    """Hold the work by hand against the product's, and return how many bytes the product answers to each question."""
    sizes = {}
    for kind in KINDS:
        answers = {name: _once(side, kind) for name, side in sides.items()}
        ours, theirs = (steady(json.loads(answers[name] or "null")) for name in ("product", "handwritten"))
        assert ours == theirs, f"The two answer a {kind} differently: {ours} / {theirs}"
        sizes[kind] = len(answers["product"])
    ours, theirs = (left_behind(side.seeded.url) for side in (sides["product"], sides["handwritten"]) if side.seeded)
    assert ours == theirs, difference(ours, theirs)
    return sizes


def _once(side: BenchedApplication, kind: str) -> bytes:
    """Ask one question once, and return the body of its answer."""
    question, number = side.questions[kind], KINDS.index(kind) + _ONCE
    head, _, body = sent_once(kind, question, _ONCE if kind == "approval" else number).decode().partition("\r\n\r\n")
    line, *headers = head.split("\r\n")
    method, path, _ = line.split()
    asked = Request(f"http://127.0.0.1:{side.served.port}{path}", body.encode() or None, method=method)
    for header in headers:
        asked.add_header(*header.split(": ", 1))
    try:
        with urlopen(asked, timeout=10) as answer:  # noqa: S310 - our own loopback address
            status, content = answer.status, answer.read()
    except HTTPError as refused:  # a 304 is one to urllib
        status, content = refused.code, refused.read()
    assert status == question.status, (kind, status, content)
    return bytes(content)


def _figures(database: str, kind: str, asked: Rounds) -> list[Figure]:
    """Name what was measured; SQLite's have no prefix, as SQLite is the default."""
    name = kind if database == "sqlite" else f"{database}_{kind}"
    to_bare, to_raw_sql = _AIMS.get(kind, (None, None)) if database == "sqlite" else (None, None)
    rates_per_s = {side: [one.per_s for one in rounds] for side, rounds in asked.items()}
    ours = asked["product"]
    p99_aim_ms = _P99_AIMS_MS.get(kind) if database == "sqlite" else None
    return [
        Figure(f"{name}_per_s", rates_per_s["product"], "1/s"),
        ratio(f"{name}_vs_bare", rates_per_s["product"], rates_per_s["bare"], to_bare),
        ratio(f"{name}_vs_raw_sql", rates_per_s["product"], rates_per_s["handwritten"], to_raw_sql),
        Figure(f"{name}_p50_ms", [one.p50_ms for one in ours], "ms", is_cost=True),
        Figure(f"{name}_p99_ms", [one.p99_ms for one in ours], "ms", p99_aim_ms, is_cost=True),
        Figure(f"{name}_cpu_ms", [one.cpu_ms for one in ours], "ms", is_cost=True),
        Figure(f"{name}_raw_sql_per_s", rates_per_s["handwritten"], "1/s"),
        Figure(f"{name}_raw_sql_cpu_ms", [one.cpu_ms for one in asked["handwritten"]], "ms", is_cost=True),
        Figure(f"{name}_bare_per_s", rates_per_s["bare"], "1/s"),
        Figure(f"{name}_bare_cpu_ms", [one.cpu_ms for one in asked["bare"]], "ms", is_cost=True),
    ]


def _tell(database: str, measured: Mapping[str, Rounds]) -> None:
    """Print a row of medians for each kind."""
    columns = ("a second", "÷ bare", "÷ by hand", "p50 ms", "p99 ms", "CPU ms", "by hand/s", "CPU ms", "bare/s", "CPU ms")
    rows = {}
    for kind, asked in measured.items():
        rows[kind] = [median(figure.values) for figure in _figures(database, kind, asked)]
    table(database, columns, rows)


if __name__ == "__main__":
    bench()
