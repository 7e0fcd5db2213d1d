"""Duration of starts and stops: from `bin/riskrelay run` to ready and to the first delivery, from SIGTERM to the exit.

A cold start uses a new folder with its `.env`, embedded Redis, and one approved export. Service and workers are stopped
under load: requests on eight connections, and deliveries to a receiver that responds after 50 ms. They finish requests in
progress, so a stop takes at least that long.
"""

import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from bench.deliveries.runs import (
    BODY_BYTES,
    PROCESSES,
    approve,
    count_listening,
    log_on_failure,
    prepare,
    wait_until,
    workers,
)
from bench.figures import Extent, Figure
from bench.servers.empty_installation import empty_installation
from bench.servers.receiver_process import ROOT, run_receiver
from bench.servers.serving import serving
from bin.processes import child_process
from runtime.clock import utc_now
from storage.db.engine import close_database, connection, open_database, transaction
from tests.support.database.many_rows import many_targets, many_waiting
from tests.support.factories import LOOPBACK, make_customer, make_target
from tests.support.servers.redis_and_postgres import free_port

PROMISED: Final = ("start_ready_s", "start_first_delivery_s", "stop_run_s", "stop_service_s", "stop_worker_s")
_ROUNDS: Final = {Extent.QUICK: 1, Extent.FULL: 3}
_RISKRELAY: Final = str(ROOT / "bin" / "riskrelay")
_WITHIN_S: Final = 60.0
_READERS: Final = 8
_DELAY_MS: Final = 50
_TARGETS: Final = 20
#: More exports than workers deliver before they are stopped.
_BACKLOG: Final = 20_000
#: After this many deliveries, both workers are certainly delivering.
_UNDER_LOAD: Final = 500
#: Duration of the requests before the service is stopped.
_REQUESTS_FOR_S: Final = 1.0


def measure(extent: Extent) -> list[Figure]:
    """Start and stop everything, then stop only the workers and only the service."""
    found: dict[str, list[float]] = {name: [] for name in PROMISED}
    for _ in range(_ROUNDS[extent]):
        for measured in (_start_cold(), _stop_workers(), _stop_service()):
            for name, elapsed_s in measured.items():
                found[name].append(elapsed_s)
    return [Figure(name, values, "s", is_cost=True) for name, values in found.items()]


@contextmanager
def initialized(**settings: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Create an installation with `init` and these settings; yield its folder and environment, with its database open."""
    with tempfile.TemporaryDirectory(prefix="riskrelay-bench-") as name:
        folder = Path(name)
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        own = {"BIND": f"127.0.0.1:{free_port()}", "RISKRELAY_ENV_FILE": str(folder / ".env")}
        env = {**inherited, **LOOPBACK, **own, **settings}
        subprocess.run([_RISKRELAY, "init"], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
        open_database(f"sqlite:///{folder / 'data' / 'riskrelay.db'}")
        try:
            yield folder, env
        finally:
            close_database()


@contextmanager
def running(folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run `bin/riskrelay run` in an installation's folder; yield the process without waiting until it is ready."""
    with (folder / "run.log").open("w+b") as log:
        process = child_process.start([_RISKRELAY, "run"], env=env, cwd=folder, output=log)
        try:
            with log_on_failure(log):
                yield process
        finally:
            # SIGTERM first, even after an error: `run` then stops all its child processes.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_WITHIN_S)
            process.kill()
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], env: dict[str, str]) -> None:
    """Wait until every check of /readyz is ok."""
    wait_until(lambda: _is_ready(process, env["BIND"]), "the service to be ready", _WITHIN_S)


def _start_cold() -> dict[str, float]:
    with run_receiver(0) as receiver, initialized() as (folder, env):
        with connection(), transaction():
            customer = make_customer()
            approve(prepare(customer, 1, 0), customer, [make_target(customer, receiver.url).id])
        close_database()
        began_at = time.monotonic()
        with running(folder, env) as process:
            wait_until_ready(process, env)
            ready_at = time.monotonic()
            wait_until(lambda: bool(receiver.arrivals()["requests"]), "the first delivery", _WITHIN_S)
            stopped_at = time.monotonic()
            process.terminate()
            process.wait(_WITHIN_S)
            ended_at = time.monotonic()
        return {
            "start_ready_s": ready_at - began_at,
            "start_first_delivery_s": receiver.arrivals()["first_at"] - began_at,
            "stop_run_s": ended_at - stopped_at,
        }


def _is_ready(process: subprocess.Popen[bytes], bind: str) -> bool:
    assert process.poll() is None, f"It ended with {process.returncode} before it was ready."
    try:
        with urlopen(f"http://{bind}/readyz", timeout=1) as response:
            return all(found == "ok" for found in json.load(response)["checks"].values())
    except OSError:
        return False


def _stop_workers() -> dict[str, float]:
    with run_receiver(_DELAY_MS, _TARGETS) as receiver, empty_installation("sqlite") as installation:
        for number, url in enumerate(receiver.urls):
            many_targets(installation.customer, number, 1, url)
        due_at = utc_now() - timedelta(minutes=1)
        many_waiting(installation.customer, 0, _BACKLOG, (0, _TARGETS), due_at, body_bytes=BODY_BYTES)
        with workers(installation.env):
            wait_until(lambda: count_listening(installation.env["REDIS_URL"]) == PROCESSES, "the workers to listen")
            wait_until(lambda: bool(receiver.arrivals()["requests"] >= _UNDER_LOAD), "the workers to deliver")
            stopped_at = time.monotonic()
        return {"stop_worker_s": time.monotonic() - stopped_at}


def _stop_service() -> dict[str, float]:
    is_over = threading.Event()
    with empty_installation("sqlite") as installation, serving("service.wsgi:app", installation.env) as served:
        readers = [threading.Thread(target=_read, args=(served.port, is_over)) for _ in range(_READERS)]
        try:
            for reader in readers:
                reader.start()
            time.sleep(_REQUESTS_FOR_S)
            stopped_at = time.monotonic()
            os.kill(served.pid, signal.SIGTERM)
            wait_until(lambda: not _is_running(served.pid), "the service to end", _WITHIN_S)
            return {"stop_service_s": time.monotonic() - stopped_at}
        finally:
            is_over.set()
            for reader in readers:
                reader.join()


def _read(port: int, is_over: threading.Event) -> None:
    """Request /healthz repeatedly until the service no longer responds or `is_over` is set."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with suppress(OSError, http.client.HTTPException):
        while not is_over.is_set():
            client.request("GET", "/healthz")
            client.getresponse().read()
    client.close()


def _is_running(pid: int) -> bool:
    """Return whether a child process runs; False for a zombie, which has exited but was not waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
