"""Many idle clients hold connections while an active client sends requests.

`make test` opens a few hundred connections to a service with few threads; `make fuzz` opens 10,000 to a service with the
default settings. The tests log response times and the service's memory: `--log-cli-level=info` shows them.
"""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

import pytest

from runtime.files import raise_file_limit
from tests.support.factories import environment
from tests.support.http.raw_http import EXPORTS
from tests.support.http.specification import COMPLIANCE
from tests.support.processes.gunicorn_process import Service, read_response

PROBE: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
#: The bytes that an idle client sends before it stops. The service reads a signed body before it can authenticate it.
FIRST_BYTES: Final = {
    "silent": b"",
    "in a head": f"GET {EXPORTS} HTTP/1.1\r\nHost: x\r\nX-Slow: ".encode(),
    "in a body": f"POST {COMPLIANCE} HTTP/1.1\r\nX-Platform-Hmac-Sha256: a\r\nContent-Length: 1000\r\n\r\n ".encode(),
    "after an answer": PROBE,
}
#: Source addresses of the idle clients: one address has only about 28,000 ports.
SOURCES: Final = [f"127.0.3.{number}" for number in range(1, 11)]
#: Timeouts of the active client. Its first request is queued behind all idle clients, and has QUEUE_S.
TIMEOUT_S: Final = 10
QUEUE_S: Final = 60

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Size:
    """The number of idle clients, the number of the active client's requests, and the service's settings."""

    idle_clients: int
    requests: int
    settings: dict[str, str]


QUICK: Final = Size(200, 20, {"WEB_PROCESSES": "1", "WEB_THREADS": "40"})
LONG: Final = Size(10_000, 200, {})


@pytest.fixture(scope="module")
def size(request: pytest.FixtureRequest) -> Size:
    return LONG if request.config.getoption("--hypothesis-profile") == "long" else QUICK


@pytest.fixture(scope="module")
def service(size: Size, tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("idle")
    (folder / "riskrelay.db").write_bytes(migrated_sqlite.read_bytes())
    # A high limit, so that bodies from an address with many failed authentications are still read.
    known = {
        "DEPLOYMENT_MODE": "cloud",
        "STOREFRONT_WEBHOOK_SECRET": "a-secret-for-tests",
        "AUTH_FAILURES_PER_MINUTE": "100000",
    }
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    with Service(environment(folder, DATABASE_URL=url, **known, **size.settings)) as running:
        yield running


@contextmanager
def idle_clients(port: int, count: int, first_bytes: bytes) -> Iterator[list[socket.socket]]:
    """Open `count` connections that each send `first_bytes` and then nothing."""
    raise_file_limit(count + 1000)
    opened: list[socket.socket] = []
    try:
        for number in range(count):
            source = SOURCES[number % len(SOURCES)]
            client = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
            client.sendall(first_bytes)
            opened.append(client)
        yield opened
    finally:
        for client in opened:
            client.close()


def measure_ms(service: Service, times: int, timeout_s: float = TIMEOUT_S) -> list[float]:
    """Send requests, each on a new connection; return the response time of each, in ms."""
    elapsed_ms: list[float] = []
    for _ in range(times):
        began_at = time.monotonic()
        assert service.request("GET", "/readyz", timeout_s=timeout_s).status in {200, 503}
        elapsed_ms.append((time.monotonic() - began_at) * 1000)
    return elapsed_ms


def memory_mb(service: Service) -> float:
    """Return the resident memory of all workers of the service."""
    return sum(resident_kb(pid) for pid in service.workers) / 1024


def resident_kb(pid: int) -> int:
    reported = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1]
    return int(reported.split()[0])


@pytest.mark.parametrize("first_bytes", FIRST_BYTES.values(), ids=FIRST_BYTES)
def test_idle_clients_do_not_block_other_requests(first_bytes: bytes, size: Size, service: Service) -> None:
    measure_ms(service, 1, QUEUE_S)
    quiet, before_mb, served_by = measure_ms(service, size.requests), memory_mb(service), service.workers
    with idle_clients(service.port, size.idle_clients, first_bytes):
        [first_ms] = measure_ms(service, 1, QUEUE_S)
        times_ms, held_mb = measure_ms(service, size.requests), memory_mb(service)
    with_idle = f"beside {size.idle_clients} first {first_ms:.0f} ms, then {reported(times_ms)}"
    _log.info("%s: alone %s, %s; %.0f MB, then %.0f", first_bytes[:5], reported(quiet), with_idle, before_mb, held_mb)
    assert service.workers == served_by
    assert '"level": "error"' not in service.log.read_text()


def reported(took_ms: list[float]) -> str:
    percentiles = quantiles(took_ms, n=100, method="inclusive")
    return f"p50 {percentiles[49]:.1f} p99 {percentiles[98]:.1f} most {max(took_ms):.0f} ms"


def test_a_connection_kept_between_polls_survives_idle_clients_of_other_addresses(size: Size, service: Service) -> None:
    """At the limit, the service closes connections of the address that holds most."""
    with service.connect() as active:
        active.sendall(PROBE)
        assert read_response(active).status == 200
        with idle_clients(service.port, size.idle_clients, b""):
            measure_ms(service, 5, QUEUE_S)
            active.sendall(PROBE)
            assert read_response(active).status == 200
