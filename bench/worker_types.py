"""`python -m bench.worker_types`: which of gunicorn's worker types serves us best, with slow clients around and without.

Real sockets on loopback, two worker processes of each type. While some connections drip their headers and others their
bodies, an ordinary client asks for an export, each time on a new connection; that is what a slow line or an attacker does to
everybody else. Requests a second are measured with wrk, where it is installed.
"""

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.counterpart import ROOT
from bin import child_process
from bin.serve import GUNICORN
from schemas.ticket import Source, Ticket
from storage import exports, schema
from storage.clock import utc_now
from storage.database import close_database, connection, open_database, transaction
from storage.export_rows import Draft
from tests.factories import SCANNER_SECRET, environment, make_customer, postback
from tests.servers import RedisServer

PROCESSES: Final = 2
#: What gunicorn is told beside our configuration, which says gevent.
OPTIONS: Final = {
    "sync": ("--worker-class", "sync"),
    "gthread": ("--worker-class", "gthread", "--threads", "16"),
    "gevent": (),
}
#: Half of them drip headers, half a body: far more than any of the types has threads or processes.
SLOW: Final = 60
#: A byte now and then, well within every timeout of the server's.
DRIP_S: Final = 0.2
#: How long the ordinary client asks, and how long it waits for one answer before it calls that an error.
ASK_S: Final = 2.5
PATIENCE_S: Final = 2.0
WRK_S: Final = 2
WRK_CONNECTIONS: Final = 16
#: The types take turns, and medians are told, since a machine is never quite quiet.
ROUNDS: Final = 3
_START_WITHIN_S: Final = 30.0
#: Longer than gunicorn's graceful_timeout, after which it ends its own workers.
_STOP_WITHIN_S: Final = 20

#: Every request is another page with another finding, so that each one inserts.
_POSTBACKS: Final = """
local n, pid = 0, tostring({{}}):gsub("[^%w]", "")
function request()
  n = n + 1
  local body = [[{body}]]
  body = body:gsub("PAGE", pid .. n)
  return wrk.format("POST", nil, {{["Content-Type"]="application/json", ["X-Scanner-Secret"]="{secret}"}}, body)
end
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs, what asks it for an export, and what it must be told to take a postback."""

    port: int
    export_path: str
    bearer: dict[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the ordinary client met: how long its answers took, and how many did not come."""

    answers: int
    errors: int
    median_ms: float | None
    worst_ms: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """One round with one type."""

    reads_per_s: float | None
    postbacks_per_s: float | None
    quiet: Asked
    with_slow_clients: Asked


COLUMNS: Final = ("type", "reads/s", "postbacks/s", "quiet ms", "slow: ms", "slow: worst", "slow: errors")


@contextmanager
def service(worker_type: str, redis_url: str) -> Iterator[Service]:
    """Run the service with one worker type, on a database of its own with one export."""
    with tempfile.TemporaryDirectory(prefix="riskrelay-bench-") as folder:
        url = f"sqlite:///{folder}/riskrelay.db"
        export_path, bearer = _seed(url)
        port = _free_port()
        env = environment(
            Path(folder),
            DATABASE_URL=url,
            REDIS_URL=redis_url,
            BIND=f"127.0.0.1:{port}",
            WEB_PROCESSES=str(PROCESSES),
            DEFAULT_PROJECT_ID="1",
            # One client asks as fast as it can; what is measured is the worker type, not the refusals.
            RATE_LIMIT_PER_MINUTE="1000000000",
            PYTHONPATH=str(ROOT),
            LOG_LEVEL="error",
        )
        process = child_process.start([sys.executable, *GUNICORN[:-1], *OPTIONS[worker_type], GUNICORN[-1]], env=env)
        try:
            _wait_for(port)
            yield Service(port, export_path, bearer)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_WITHIN_S)
            process.kill()
            process.wait()


def _seed(url: str) -> tuple[str, dict[str, str]]:
    open_database(url)
    schema.migrate()
    with connection(), transaction():
        customer = make_customer()
        ticket = Ticket("Image without alternative text", "x" * 1000, "serious", None, ("bench",), {})
        draft = Draft(customer.account_id, customer.project_id, Source("finding", "fnd_1", 42), ticket)
        (export_id,) = exports.prepare([draft], utc_now(), "bench")
    close_database()
    return f"/api/ticket-exports/{export_id}", customer.bearer


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    until = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"The service does not listen after {_START_WITHIN_S:g} s.")


@contextmanager
def slow_clients(port: int, count: int) -> Iterator[None]:
    """Keep `count` connections busy that send a byte now and then; who is thrown out comes back."""
    stop = threading.Event()
    threads = [threading.Thread(target=_drip, args=(port, number % 2 == 0, stop), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)  # until each has got hold of whatever it can get hold of
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _drip(port: int, of_headers: bool, stop: threading.Event) -> None:
    head = b"POST /api/scanner/results HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    head += b"X-Scanner-Secret: " + SCANNER_SECRET.encode() + b"\r\n"
    head += b"X-Slow: " if of_headers else b"Content-Length: 100000\r\n\r\n"
    while not stop.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
            sock.sendall(head)
            while not stop.wait(DRIP_S):
                sock.sendall(b"x")


def ask(there: Service) -> Asked:
    """Be the ordinary client for a while."""
    took_ms: list[float] = []
    errors = 0
    until = time.monotonic() + ASK_S
    while time.monotonic() < until:
        began_at = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", there.port, timeout=PATIENCE_S)
        try:
            client.request("GET", there.export_path, headers=there.bearer)
            answer = client.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            took_ms.append((time.monotonic() - began_at) * 1000)
        except (OSError, http.client.HTTPException):
            errors += 1
        finally:
            client.close()
        time.sleep(0.01)
    return Asked(len(took_ms), errors, median(took_ms) if took_ms else None, max(took_ms) if took_ms else None)


def reads_per_s(there: Service) -> float | None:
    """Return how many polls of an export are answered a second."""
    return _wrk(
        f"http://127.0.0.1:{there.port}{there.export_path}", [f"Authorization: {there.bearer['Authorization']}"], None
    )


def postbacks_per_s(there: Service) -> float | None:
    """Return how many postbacks with a new finding each are taken a second."""
    body = json.dumps(postback()).replace("img-alt", "img-PAGE").replace("shop.example/", "shop.example/PAGE")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_POSTBACKS.format(body=body, secret=SCANNER_SECRET))
        script.flush()
        return _wrk(f"http://127.0.0.1:{there.port}/api/scanner/results", [], script.name)


def _wrk(url: str, headers: list[str], script: str | None) -> float | None:
    """Return wrk's requests a second; None where it is not installed. Fails on any answer but 2xx."""
    wrk = shutil.which("wrk")
    if wrk is None:
        return None
    words = [wrk, "--threads", "1", "--connections", str(WRK_CONNECTIONS), "--duration", f"{WRK_S}s"]
    words += [word for header in headers for word in ("--header", header)]
    words += ["--script", script] if script else []
    told = subprocess.run([*words, url], capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in told, told
    rate = re.search(r"Requests/sec:\s+([\d.]+)", told)
    assert rate is not None, told
    return float(rate[1])


def _measured(worker_type: str, redis_url: str) -> Measured:
    with service(worker_type, redis_url) as there:
        quiet = ask(there)
        reads, postbacks = reads_per_s(there), postbacks_per_s(there)
        with slow_clients(there.port, SLOW):
            return Measured(reads, postbacks, quiet, ask(there))


def _row(worker_type: str, measured: list[Measured]) -> list[str]:
    met = [one.with_slow_clients for one in measured]
    errors = sum(asked.errors for asked in met)
    return [
        worker_type,
        _median([one.reads_per_s for one in measured]),
        _median([one.postbacks_per_s for one in measured]),
        _median([one.quiet.median_ms for one in measured]),
        _median([asked.median_ms for asked in met]),
        _median([asked.worst_ms for asked in met]),
        f"{errors}/{errors + sum(asked.answers for asked in met)}",
    ]


def _median(figures: list[float | None]) -> str:
    there = [figure for figure in figures if figure is not None]
    if not there:
        return "-"
    return f"{median(there):.0f}" if median(there) >= 100 else f"{median(there):.1f}"


def main() -> None:
    """Measure every type in turns and print a row each."""
    measured: dict[str, list[Measured]] = {worker_type: [] for worker_type in OPTIONS}
    with RedisServer() as redis:
        for _ in range(ROUNDS):
            for worker_type in OPTIONS:
                measured[worker_type].append(_measured(worker_type, redis.url))
    for row in (COLUMNS, *(_row(name, measured[name]) for name in OPTIONS)):
        print("  ".join(f"{text:>11}" for text in row))


if __name__ == "__main__":
    main()
