"""`python -m bench.requests`: requests a second of the product's two hot routes, beside the least that could answer them.

Three applications stand under the same gunicorn, with our own configuration and two processes, and are asked in turns:
Falcon with nothing behind it, the same work written by hand in bare SQL, and the product with everything on, its rate limits
included. Asked are the status of an export, and postbacks with a new finding and an Idempotency-Key of its own each; after
every round of those the tables must hold what was answered. Loopback only; what it starts it stops.
"""

import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.request import Request, urlopen

import click

from bench.load import CONNECTIONS, NUMBER, TOOLS, Loaded, load, request, tool_here
from bench.serving import Served, serving
from bench.stores import Row, open_store
from schemas.exports import Approval
from schemas.ticket import Source, Ticket
from storage import exports, schema
from storage.clock import utc_now
from storage.database import close_database, connection, open_database, transaction
from storage.export_rows import Draft
from tests.factories import SCANNER_SECRET, environment, issue, make_customer, make_target, postback
from tests.servers import PostgresServer, RedisServer

LATEST: Final = Path(__file__).parent / "latest_requests.json"
#: A small installation's, as WEB_PROCESSES says by default.

PROCESSES: Final = 2
#: A warm-up fills pools and caches of statements.
_WARM_UP_S: Final = 1
#: The limit counts, and is never reached.
_UNLIMITED: Final = "1000000"
#: What is under way when wrk ends is answered within this.
_SETTLE_S: Final = 0.3

BARE: Final = "bench.bare_route:app"
WITH_A_DATABASE: Final = {"by_hand": "bench.by_hand:create_app()", "product": "service.wsgi:app"}

#: What a postback leaves behind, of every kind.
_STORED: Final = """
SELECT (SELECT count(*) FROM page_results), (SELECT count(*) FROM findings),
    (SELECT count(*) FROM exports WHERE source_type = 'finding'),
    (SELECT count(*) FROM audit_entries WHERE action = 'prepare' AND actor = 'scanner'),
    (SELECT count(*) FROM idempotency_keys WHERE response_status = 202)"""
#: Where the same work must fill the same columns.
_TABLES: Final = ("scan_runs", "page_results", "findings", "exports", "audit_entries", "idempotency_keys")


@dataclass(frozen=True, slots=True)
class Asked:
    """One round: answers a second, and the processor time of one in the serving processes."""

    per_s: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Side:
    """One application that serves, and its database."""

    served: Served
    database_url: str
    read: bytes


@click.command(epilog="Example: python -m bench.requests --database sqlite --rounds 5")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 50), help="Of which medians are told.")
@click.option("--seconds", default=3, show_default=True, type=click.IntRange(1, 60), help="How long each is asked a round.")
@click.option("--tool", type=click.Choice(TOOLS), default=tool_here(), show_default=True, help="What makes the load.")
@click.option(
    "--log", default="info", type=click.Choice(["info", "warning"]), show_default=True, help="The product's level."
)
def bench(database: str, rounds: int, seconds: int, tool: str, log: str) -> None:
    """Measure status reads and postbacks a second beside bare Falcon and beside the same work by hand."""
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "processes": PROCESSES,
        "connections": CONNECTIONS,
        "tool": tool,
        "rounds": rounds,
        "seconds": seconds,
        "log_level": log,
        "load_average_before": round(os.getloadavg()[0], 2),
    }
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        with installations(name, log) as sides:
            measured = measure(sides, tool, rounds, seconds)
        figures[name] = {kind: _figures(asked) for kind, asked in measured.items()}
        _print(name, figures[name])
    LATEST.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


@contextmanager
def installations(database: str, log_level: str) -> Iterator[dict[str, Side]]:
    """Serve the three applications; those with a database have one of their own, seeded alike."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(PostgresServer()) if database == "postgresql" else None
        env = environment(
            folder,
            REDIS_URL=redis.url,
            WEB_PROCESSES=str(PROCESSES),
            DEFAULT_PROJECT_ID="1",
            RATE_LIMIT_PER_MINUTE=_UNLIMITED,
            LOG_LEVEL=log_level,
            LOG_FORMAT="json",
        )
        sides = {}
        for name, app in WITH_A_DATABASE.items():
            url = postgres.create_database() if postgres else f"sqlite:///{folder / name}.db"
            read = _seed(url)
            served = stack.enter_context(serving(app, {**env, "DATABASE_URL": url}))
            sides[name] = Side(served, url, read)
        record, accepted = _require_same_work(sides)
        sizes = {"BENCH_RECORD_BYTES": str(record), "BENCH_ACCEPTED_BYTES": str(accepted)}
        bare = stack.enter_context(serving(BARE, {**env, **sizes}))
        yield {"bare": Side(bare, "", sides["product"].read), **sides}


def measure(sides: Mapping[str, Side], tool: str, rounds: int, seconds: int) -> dict[str, dict[str, list[Asked]]]:
    """Ask every application in turns, so that a busy moment of the machine meets them all."""
    kinds = {"read": _read, "postback": _post}
    measured: dict[str, dict[str, list[Asked]]] = {kind: {name: [] for name in sides} for kind in kinds}
    for kind, ask in kinds.items():
        for side in sides.values():
            ask(side, tool, _WARM_UP_S)
        for _ in range(rounds):
            for name, side in sides.items():
                measured[kind][name].append(ask(side, tool, seconds))
    return measured


def _seed(url: str) -> bytes:
    """Make a customer with an approved export, and return the request that reads its status."""
    open_database(url)
    schema.migrate()
    with connection(), transaction():
        customer = make_customer()
        target = make_target(customer)
        ticket = Ticket("Image without alternative text", "x" * 1000, "high", "https://shop.example/", ("bench",), {})
        draft = Draft(customer.account_id, customer.project_id, Source("manual", "note", 42), ticket)
        (export_id,) = exports.prepare([draft], utc_now(), "bench")
        exports.approve(export_id, customer.account_id, Approval(target.id, None), utc_now(), "bench")
    close_database()
    return request("GET", f"/api/ticket-exports/{export_id}", customer.bearer)


def _postback(number: str) -> bytes:
    """Return the request that posts one new finding on a page of its own."""
    url = f"https://shop.example/products/{number}"
    page = {**postback()["page"], "url": url, "normalizedUrl": url}
    body = json.dumps(postback(issues=[issue()], page=page))
    headers = {"Content-Type": "application/json", "X-Scanner-Secret": SCANNER_SECRET, "Idempotency-Key": f"bench-{number}"}
    return request("POST", "/api/scanner/results", headers, body)


def _read(side: Side, tool: str, seconds: int) -> Asked:
    return _asked(side, tool, side.read, 200, seconds)[0]


def _post(side: Side, tool: str, seconds: int) -> Asked:
    before = _stored(side)
    asked, loaded = _asked(side, tool, _postback(NUMBER), 202, seconds)
    time.sleep(_SETTLE_S)
    _check([now - then for now, then in zip(_stored(side), before, strict=True)], loaded, tool)
    return asked


def _asked(side: Side, tool: str, sent: bytes, status: int, seconds: int) -> tuple[Asked, Loaded]:
    cpu_before_s = side.served.cpu_s()
    loaded = load(tool, side.served.port, sent, status, seconds)
    return Asked(loaded.per_s, (side.served.cpu_s() - cpu_before_s) * 1e6 / loaded.answers), loaded


def _stored(side: Side) -> Row:
    found = open_store(side.database_url).row(_STORED) if side.database_url else ()
    assert found is not None
    return found


def _check(stored: list[int], loaded: Loaded, tool: str) -> None:
    """Hold the tables against the answers: a row of each kind a postback, and what wrk left unread at its end at most."""
    unread = CONNECTIONS if tool == "wrk" else 0
    assert len(set(stored)) <= 1, f"A postback left rows of some kinds alone: {stored}"
    assert all(loaded.answers <= count <= loaded.answers + unread for count in stored), (stored, loaded)


def _require_same_work(sides: Mapping[str, Side]) -> tuple[int, int]:
    """Hold the work by hand against the product's, and return how many bytes the product answers to both requests."""
    sizes = {}
    for kind, numbered in (("read", None), ("postback", "first")):
        answers = {name: _once(side, side.read if numbered is None else _postback(numbered)) for name, side in sides.items()}
        told = {name: sorted(json.loads(answer)) for name, answer in answers.items()}
        assert told["by_hand"] == told["product"], f"The two answer a {kind} differently: {told}"
        sizes[kind] = len(answers["product"])
    filled = {name: [_filled(side, table) for table in _TABLES] for name, side in sides.items()}
    assert filled["by_hand"] == filled["product"], f"The two store different things: {filled}"
    return sizes["read"], sizes["postback"]


def _once(side: Side, sent: bytes) -> bytes:
    head, _, body = sent.decode().partition("\r\n\r\n")
    line, *headers = head.split("\r\n")
    method, path, _ = line.split()
    asked = Request(f"http://127.0.0.1:{side.served.port}{path}", body.encode() or None, method=method)
    for header in headers:
        asked.add_header(*header.split(": ", 1))
    with urlopen(asked, timeout=10) as answer:  # noqa: S310 - our own loopback address
        told: bytes = answer.read()
        return told


def _filled(side: Side, table: str) -> list[bool]:
    """Tell which columns of the newest row hold something."""
    row = open_store(side.database_url).row(f"SELECT * FROM {table} ORDER BY id DESC LIMIT 1")  # noqa: S608 - our own names
    assert row is not None, f"Nothing stands in {table}."
    return [value is not None for value in row]


def _figures(asked: Mapping[str, list[Asked]]) -> dict[str, float]:
    """Name the medians; the ratios are those of each round."""
    figures: dict[str, float] = {}
    for name, rounds in asked.items():
        figures[f"{name}_per_s"] = round(median(one.per_s for one in rounds))
        figures[f"{name}_cpu_us"] = round(median(one.cpu_us for one in rounds))
    for other in ("bare", "by_hand"):
        pairs = zip(asked["product"], asked[other], strict=True)
        figures[f"product_vs_{other}"] = round(median(ours.per_s / theirs.per_s for ours, theirs in pairs), 3)
    return figures


def _print(database: str, figures: Mapping[str, Mapping[str, float]]) -> None:
    click.echo(database)
    for kind, told in figures.items():
        click.echo(f"  {kind}")
        for name, figure in told.items():
            click.echo(f"    {name:20}  {figure:>10}")


if __name__ == "__main__":
    bench()
