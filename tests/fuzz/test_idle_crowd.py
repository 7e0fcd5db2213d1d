"""A crowd that holds connections and asks for nothing, while an honest client asks.

A few hundred against a service with few places in `make test`; 10,000 against a service as it is by default in `make fuzz`,
which logs what the honest client met and what the crowd cost: `--log-cli-level=info` shows it.
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
#: What a client of the crowd says before it falls silent. A signed body is read before anybody knows who sends it.
HOLDS: Final = {
    "silent": b"",
    "in a head": f"GET {EXPORTS} HTTP/1.1\r\nHost: x\r\nX-Slow: ".encode(),
    "in a body": f"POST {COMPLIANCE} HTTP/1.1\r\nX-Platform-Hmac-Sha256: a\r\nContent-Length: 1000\r\n\r\n ".encode(),
    "after an answer": PROBE,
}
#: From addresses of their own: one address has no more than some 28,000 ports to come from.
SOURCES: Final = [f"127.0.3.{number}" for number in range(1, 11)]
#: How long the honest client waits for an answer, and for its first one, for which it queues behind the whole crowd.
PATIENCE_S: Final = 10
QUEUE_S: Final = 60

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Size:
    """How many make a crowd, how often the honest client asks, and how many places there are."""

    crowd: int
    asks: int
    places: dict[str, str]


QUICK: Final = Size(200, 20, {"WEB_PROCESSES": "1", "WEB_THREADS": "40"})
LONG: Final = Size(10_000, 200, {})


@pytest.fixture(scope="module")
def size(request: pytest.FixtureRequest) -> Size:
    return LONG if request.config.getoption("--hypothesis-profile") == "long" else QUICK


@pytest.fixture(scope="module")
def service(size: Size, tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("crowded")
    (folder / "riskrelay.db").write_bytes(migrated_sqlite.read_bytes())
    # One address fails to authenticate as often as it likes here, so that its bodies are read.
    known = {
        "DEPLOYMENT_MODE": "cloud",
        "STOREFRONT_WEBHOOK_SECRET": "a-secret-for-tests",
        "AUTH_FAILURES_PER_MINUTE": "100000",
    }
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    with Service(environment(folder, DATABASE_URL=url, **known, **size.places)) as running:
        yield running


@contextmanager
def crowd(port: int, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """Open `count` connections that say something and nothing more."""
    raise_file_limit(count + 1000)
    there: list[socket.socket] = []
    try:
        for number in range(count):
            source = SOURCES[number % len(SOURCES)]
            client = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
            client.sendall(said)
            there.append(client)
        yield there
    finally:
        for client in there:
            client.close()


def ask(service: Service, times: int, patience_s: float = PATIENCE_S) -> list[float]:
    """Ask as an honest client does, each time on a new connection; return how long each answer took, in ms."""
    took: list[float] = []
    for _ in range(times):
        began_at = time.monotonic()
        assert service.request("GET", "/readyz", timeout_s=patience_s).status in {200, 503}
        took.append((time.monotonic() - began_at) * 1000)
    return took


def memory_mb(service: Service) -> float:
    """Return the resident memory of all processes that serve."""
    return sum(resident_kb(pid) for pid in service.workers) / 1024


def resident_kb(pid: int) -> int:
    reported = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1]
    return int(reported.split()[0])


@pytest.mark.parametrize("said", HOLDS.values(), ids=HOLDS)
def test_a_crowd_that_asks_nothing_keeps_nobody_from_an_answer(said: bytes, size: Size, service: Service) -> None:
    ask(service, 1, QUEUE_S)
    quiet, before_mb, served_by = ask(service, size.asks), memory_mb(service), service.workers
    with crowd(service.port, size.crowd, said):
        [first_ms] = ask(service, 1, QUEUE_S)
        met, held_mb = ask(service, size.asks), memory_mb(service)
    crowded = f"beside {size.crowd} first {first_ms:.0f} ms, then {reported(met)}"
    _log.info("%s: alone %s, %s; %.0f MB, then %.0f", said[:5], reported(quiet), crowded, before_mb, held_mb)
    assert service.workers == served_by
    assert '"level": "error"' not in service.log.read_text()


def reported(took_ms: list[float]) -> str:
    percentiles = quantiles(took_ms, n=100, method="inclusive")
    return f"p50 {percentiles[49]:.1f} p99 {percentiles[98]:.1f} most {max(took_ms):.0f} ms"


def test_a_connection_kept_between_polls_outlives_a_crowd_of_other_addresses(size: Size, service: Service) -> None:
    """Who holds most has to give most."""
    with service.connect() as honest:
        honest.sendall(PROBE)
        assert read_response(honest).status == 200
        with crowd(service.port, size.crowd, b""):
            ask(service, 5, QUEUE_S)
            honest.sendall(PROBE)
            assert read_response(honest).status == 200
