"""`python -m bench.requests.slow_clients`: response times of regular clients while five hundred slow clients are connected.

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

from bench.figures import Extent, Figure, machine, print_figures, write
from bench.load.repeated_requests import request
from bench.load.request_templates import SeededDatabase, seed
from bench.load.slow_connections import ServiceAddress, dripping
from bench.requests.rates import service_environment
from bench.servers.example_proxy import example_proxy, is_nginx_installed
from bench.servers.serving import ServedApplication, serving
from tests.support.servers.redis_and_postgres import RedisServer

SLOW: Final = 500
CLIENTS: Final = 8
#: A response that takes longer than this counts as an error.
PATIENCE_S: Final = 5.0
#: Pause after a response: eight clients send about 150 requests per second, which does not saturate the service.
PAUSE_S: Final = 0.05
#: Seconds of a round with slow clients, and of one without.
_LOAD_S: Final = 8.0
_QUIET_S: Final = 3.0
_ROUNDS: Final = {Extent.QUICK: 1, Extent.FULL: 3}
#: After this time, every slow client has occupied the resources that the server gives it.
_OCCUPY_S: Final = 1.0
#: Twice the number of all clients' connections, since a process has other files open, too.
_FILES: Final = 2 * (SLOW + CLIENTS)

#: Any address of this network is loopback.
_SLOW_SOURCES: Final = [f"127.0.1.{number}" for number in range(1, 11)]
_REGULAR_SOURCE: Final = "127.0.2.1"

PROMISED: Final = ("slow_clients_p99_ms",)
#: Largest acceptable p99 of regular clients with gunicorn alone.
_AIM_MS: Final = 250.0


@dataclass(frozen=True, slots=True)
class ClientResult:
    """Results of the regular clients: response times, requests without a valid response, and the duration of the load."""

    elapsed_ms: Sequence[float]
    errors: int
    seconds: float
    served_cpu_s: float = 0.0

    @property
    def error_share(self) -> float:
        """The share of requests without a valid response."""
        return self.errors / (self.errors + len(self.elapsed_ms))

    def percentile_ms(self, percent: int) -> float:
        """Return a percentile of the response times; PATIENCE_S if there are fewer than two responses."""
        if len(self.elapsed_ms) < 2:
            return PATIENCE_S * 1000
        return quantiles(self.elapsed_ms, n=100, method="inclusive")[percent - 1]


@click.command(epilog="Example: python -m bench.requests.slow_clients --rounds 1")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 50), help="Repetitions; reports medians.")
def bench(rounds: int) -> None:
    """Measure regular clients while five hundred slow clients are connected."""
    figures = _figures(_measured(rounds))
    print_figures("slow clients", figures)
    write("slow_clients", {**machine(), **{figure.name: figure.median for figure in figures}})


def measure(extent: Extent) -> list[Figure]:
    """Measure with gunicorn alone and behind the example proxy; without nginx, the figures of the proxy have no values."""
    return _figures(_measured(_ROUNDS[extent]))


def run_clients(
    address: ServiceAddress, request_bytes: bytes, clients: int, seconds: float, patience_s: float, pause_s: float
) -> ClientResult:
    """Run `clients` regular clients for `seconds`, which open a new connection for each request."""
    began_at = time.monotonic()
    with ThreadPoolExecutor(clients) as threads:
        futures = [threads.submit(_run_client, address, request_bytes, seconds, patience_s, pause_s) for _ in range(clients)]
        found = [future.result() for future in futures]
    elapsed_ms = [elapsed for client_ms, _ in found for elapsed in client_ms]
    return ClientResult(elapsed_ms, sum(errors for _, errors in found), time.monotonic() - began_at)


def _run_client(
    address: ServiceAddress, request_bytes: bytes, seconds: float, patience_s: float, pause_s: float
) -> tuple[list[float], int]:
    elapsed_ms: list[float] = []
    errors, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        began_at = time.monotonic()
        if _is_successful(address, request_bytes, patience_s):
            elapsed_ms.append((time.monotonic() - began_at) * 1000)
        else:
            errors += 1
        time.sleep(pause_s)
    return elapsed_ms, errors


def _is_successful(address: ServiceAddress, request_bytes: bytes, patience_s: float) -> bool:
    """Send a request; return whether a complete 200 response arrived; `patience_s` limits each read and write."""
    received = b""
    with suppress(OSError), address.connect(_REGULAR_SOURCE, patience_s) as connected:
        connected.sendall(request_bytes)
        while piece := connected.recv(65536):
            received += piece
    return received.startswith(b"HTTP/1.1 200 ") and received.endswith(b"}")


def read_request(seeded: SeededDatabase) -> bytes:
    """Return the request of a regular client: it reads an export and closes the connection."""
    headers = {**seeded.customer.bearer, "Connection": "close"}
    return request("GET", f"/api/ticket-exports/{seeded.export_id}", headers)


@contextmanager
def service(*options: str, **changes: str) -> Iterator[tuple[ServedApplication, SeededDatabase]]:
    """Run a service on a seeded database; `options` are gunicorn's, `changes` the service's settings."""
    raise_file_limit()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        seeded = seed(f"sqlite:///{folder}/riskrelay.db")
        settings = {"DATABASE_URL": seeded.url, "REDIS_URL": redis.url, "TRUSTED_PROXIES": "127.0.0.1"}
        env = service_environment(folder, **settings, **changes)
        yield stack.enter_context(serving("service.wsgi:app", env, *options)), seeded


def raise_file_limit() -> None:
    """Raise the limit of open files for this process and its children; AssertionError if the hard limit is too low."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    assert most == unlimited or most >= _FILES, f"{_FILES} open files are needed, and `ulimit -Hn` says {most}."
    if allowed not in {unlimited} and allowed < _FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, most))


def _measured(rounds: int) -> dict[str, list[ClientResult]]:
    """Measure alternately without and with slow clients, directly and through the proxy if available."""
    found: dict[str, list[ClientResult]] = {name: [] for name in ("quiet", "slow", "proxy_quiet", "proxy_slow")}
    with ExitStack() as stack:
        served, seeded = stack.enter_context(service())
        request_bytes = read_request(seeded)
        addresses = {"": ServiceAddress(served.port)}
        if is_nginx_installed():
            addresses["proxy_"] = stack.enter_context(example_proxy(served.port))
        for address in addresses.values():
            run_clients(address, request_bytes, CLIENTS, _OCCUPY_S, PATIENCE_S, PAUSE_S)
        for _ in range(rounds):
            for prefix, address in addresses.items():
                found[f"{prefix}quiet"].append(run_clients(address, request_bytes, CLIENTS, _QUIET_S, PATIENCE_S, PAUSE_S))
                found[f"{prefix}slow"].append(_with_slow_clients(served, address, request_bytes))
    return found


def _with_slow_clients(served: ServedApplication, address: ServiceAddress, request_bytes: bytes) -> ClientResult:
    with dripping(address, SLOW, _SLOW_SOURCES) as lost:
        time.sleep(_OCCUPY_S)
        cpu_before_s = served.cpu_s()
        result = run_clients(address, request_bytes, CLIENTS, _LOAD_S, PATIENCE_S, PAUSE_S)
        result = ClientResult(result.elapsed_ms, result.errors, result.seconds, served.cpu_s() - cpu_before_s)
    # Without the proxy, no slow client may be disconnected in favor of regular ones. The proxy disconnects them after 15 s.
    assert address.authority is not None or lost == [0], f"{lost} of the slow clients lost their connection."
    return result


def _figures(found: dict[str, list[ClientResult]]) -> list[Figure]:
    figures: list[Figure] = []
    for name, results in found.items():
        beginning = f"slow_clients_{name.replace('slow', '')}".rstrip("_")
        aim = _AIM_MS if name == "slow" else None
        figures += [
            Figure(f"{beginning}_p50_ms", [result.percentile_ms(50) for result in results], "ms", is_cost=True),
            Figure(f"{beginning}_p99_ms", [result.percentile_ms(99) for result in results], "ms", aim, is_cost=True),
            Figure(f"{beginning}_error_share", [result.error_share for result in results], "of 1", 0.0, is_cost=True),
        ]
    cores = [result.served_cpu_s / result.seconds for result in found["slow"]]
    return [*figures, Figure("slow_clients_service_cores", cores, "cores", is_cost=True)]


if __name__ == "__main__":
    bench()
