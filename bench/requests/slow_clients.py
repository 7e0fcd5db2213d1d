"""`python -m bench.requests.slow_clients`: response times of regular clients beside five hundred slow ones.

The service runs under gunicorn with its own configuration and two processes; then behind nginx with the example of
deploy/nginx, over TLS, if nginx is installed. Half of the slow clients send headers, half a body, at a byte every 0.2 s,
as a slow line or an attacker does. Eight regular clients read an export, each time on a new connection and again 50 ms
after the response, alternately with and without the slow clients. These use ten addresses, since the example allows a
hundred connections per address.
"""

import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

import click

from bench.figures import Extent, Figure, machine, tell, write
from bench.load.questions import SeededDatabase, seed
from bench.load.repeated_requests import request
from bench.load.slow_connections import ServiceAddress, dripping
from bench.requests.rates import service_environment
from bench.servers.example_proxy import example_proxy, is_here
from bench.servers.serving import Served, serving
from tests.support.servers.redis_and_postgres import RedisServer

SLOW: Final = 500
CLIENTS: Final = 8
#: How long an ordinary client waits for one answer before it calls that an error.
PATIENCE_S: Final = 5.0
#: Between an answer and the next request: eight clients ask some 150 times a second, which leaves the service time.
PAUSE_S: Final = 0.05
#: A round with slow clients, and one without.
_ASK_S: Final = 8.0
_QUIET_S: Final = 3.0
_ROUNDS: Final = {Extent.QUICK: 1, Extent.FULL: 3}
#: Until each slow client has got hold of whatever it can get hold of.
_SETTLE_S: Final = 1.0
#: Twice as many as all clients together have, for what a process has open besides.
_FILES: Final = 2 * (SLOW + CLIENTS)

#: Any address of this network is loopback.
_SLOW_SOURCES: Final = [f"127.0.1.{number}" for number in range(1, 11)]
_ORDINARY_SOURCE: Final = "127.0.2.1"

PROMISED: Final = ("slow_clients_p99_ms",)
#: The most that an ordinary client's p99 may be with gunicorn alone.
_AIM_MS: Final = 250.0


@dataclass(frozen=True, slots=True)
class Met:
    """What ordinary clients met: how long each answer took, how many requests got none, and how long all of it lasted."""

    took_ms: Sequence[float]
    errors: int
    seconds: float
    served_cpu_s: float = 0.0

    @property
    def error_share(self) -> float:
        """The part of all requests that got no answer."""
        return self.errors / (self.errors + len(self.took_ms))

    def percentile_ms(self, percent: int) -> float:
        """Return how long the slowest of `percent` of a hundred answers took; forever, where nobody got one."""
        if len(self.took_ms) < 2:
            return PATIENCE_S * 1000
        return quantiles(self.took_ms, n=100, method="inclusive")[percent - 1]


@click.command(epilog="Example: python -m bench.requests.slow_clients --rounds 1")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 50), help="Repetitions; reports medians.")
def bench(rounds: int) -> None:
    """Measure ordinary clients beside five hundred slow ones."""
    figures = _figures(_measured(rounds))
    tell("slow clients", figures)
    write("slow_clients", {**machine(), **{figure.name: figure.median for figure in figures}})


def measure(extent: Extent) -> list[Figure]:
    """Measure it with gunicorn alone and behind the example proxy, whose figures have no values where nginx is missing."""
    return _figures(_measured(_ROUNDS[extent]))


def ask(place: ServiceAddress, sent: bytes, clients: int, seconds: float, patience_s: float, pause_s: float) -> Met:
    """Be `clients` ordinary clients for a while, each with a new connection for each request."""
    began_at = time.monotonic()
    with ThreadPoolExecutor(clients) as threads:
        futures = [threads.submit(_ask, place, sent, seconds, patience_s, pause_s) for _ in range(clients)]
        found = [future.result() for future in futures]
    took_ms = [each for took, _ in found for each in took]
    return Met(took_ms, sum(errors for _, errors in found), time.monotonic() - began_at)


def _ask(place: ServiceAddress, sent: bytes, seconds: float, patience_s: float, pause_s: float) -> tuple[list[float], int]:
    took_ms: list[float] = []
    errors, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        began_at = time.monotonic()
        if _is_answered(place, sent, patience_s):
            took_ms.append((time.monotonic() - began_at) * 1000)
        else:
            errors += 1
        time.sleep(pause_s)
    return took_ms, errors


def _is_answered(place: ServiceAddress, sent: bytes, patience_s: float) -> bool:
    """Ask once, and tell whether it was answered with 200 within the time that each step may take."""
    received = b""
    with suppress(OSError), place.connect(_ORDINARY_SOURCE, patience_s) as connected:
        connected.sendall(sent)
        while piece := connected.recv(65536):
            received += piece
    return received.startswith(b"HTTP/1.1 200 ") and received.endswith(b"}")


def read_of(seeded: SeededDatabase) -> bytes:
    """Return the request of an ordinary client: an export's record, on a connection that is not kept."""
    headers = {**seeded.customer.bearer, "Connection": "close"}
    return request("GET", f"/api/ticket-exports/{seeded.export_id}", headers)


@contextmanager
def service(*options: str, **changes: str) -> Iterator[tuple[Served, SeededDatabase]]:
    """Run a service on a database with one export; `options` are gunicorn's, `changes` the service's settings."""
    allow_files()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        seeded = seed(f"sqlite:///{folder}/riskrelay.db")
        settings = {"DATABASE_URL": seeded.url, "REDIS_URL": redis.url, "TRUSTED_PROXIES": "127.0.0.1"}
        env = service_environment(folder, **settings, **changes)
        yield stack.enter_context(serving("service.wsgi:app", env, *options)), seeded


def allow_files() -> None:
    """Let this process and those it starts have as many connections open as are needed. Raises where the system does not."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    assert most == unlimited or most >= _FILES, f"{_FILES} open files are needed, and `ulimit -Hn` says {most}."
    if allowed not in {unlimited} and allowed < _FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, most))


def _measured(rounds: int) -> dict[str, list[Met]]:
    """Measure alternately without and with slow clients, directly and through the proxy if available."""
    found: dict[str, list[Met]] = {name: [] for name in ("quiet", "slow", "proxy_quiet", "proxy_slow")}
    with ExitStack() as stack:
        served, seeded = stack.enter_context(service())
        sent = read_of(seeded)
        places = {"": ServiceAddress(served.port)}
        if is_here():
            places["proxy_"] = stack.enter_context(example_proxy(served.port))
        for place in places.values():
            ask(place, sent, CLIENTS, _SETTLE_S, PATIENCE_S, PAUSE_S)
        for _ in range(rounds):
            for prefix, place in places.items():
                found[f"{prefix}quiet"].append(ask(place, sent, CLIENTS, _QUIET_S, PATIENCE_S, PAUSE_S))
                found[f"{prefix}slow"].append(_among_slow_ones(served, place, sent))
    return found


def _among_slow_ones(served: Served, place: ServiceAddress, sent: bytes) -> Met:
    with dripping(place, SLOW, _SLOW_SOURCES) as lost:
        time.sleep(_SETTLE_S)
        cpu_before_s = served.cpu_s()
        met = ask(place, sent, CLIENTS, _ASK_S, PATIENCE_S, PAUSE_S)
        met = Met(met.took_ms, met.errors, met.seconds, served.cpu_s() - cpu_before_s)
    # Nobody was served at the cost of slow clients that were thrown out; only the proxy does that, after its 15 s.
    assert place.authority is not None or lost == [0], f"{lost} of the slow clients lost their connection."
    return met


def _figures(found: dict[str, list[Met]]) -> list[Figure]:
    figures: list[Figure] = []
    for name, asked in found.items():
        beginning = f"slow_clients_{name.replace('slow', '')}".rstrip("_")
        aim = _AIM_MS if name == "slow" else None
        figures += [
            Figure(f"{beginning}_p50_ms", [met.percentile_ms(50) for met in asked], "ms", is_cost=True),
            Figure(f"{beginning}_p99_ms", [met.percentile_ms(99) for met in asked], "ms", aim, is_cost=True),
            Figure(f"{beginning}_error_share", [met.error_share for met in asked], "of 1", 0.0, is_cost=True),
        ]
    cores = [met.served_cpu_s / met.seconds for met in found["slow"]]
    return [*figures, Figure("slow_clients_service_cores", cores, "cores", is_cost=True)]


if __name__ == "__main__":
    bench()
