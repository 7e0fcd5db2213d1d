"""A real installation: service, workers, Redis, database, receivers and trackers as processes.

Processes that exit are restarted, as a service manager does. The main thread starts all processes, which end with it. All
files are in one folder.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from bench.servers.durable_postgres import DurablePostgres
from bin.processes import child_process
from soak.plan import SoakPlan
from soak.receivers.event_log import now_ms
from soak.receivers.receiver import FORBIDDEN_ADDRESS
from storage.db import schema_version
from storage.db.engine import OUTAGES, close_database, connection, open_database, rows
from tests.support.factories import LOOPBACK, WEBHOOK_SECRET, environment
from tests.support.fakes import LoopbackServer
from tests.support.http.storefront import CLOUD
from tests.support.servers.authorities import CertificateAuthority
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer, processes_in
from tests.support.worker.receivers import always, say_nothing

ROOT: Final = Path(__file__).resolve().parent.parent
RISKRELAY: Final = str(ROOT / "bin" / "riskrelay")

#: Below the kernel's range for clients: a client could otherwise take the port of a server that restarts.
_PORTS: Final = range(20_000, 30_000)
#: Time limit to start or stop one process on a slow machine.
WITHIN_S: Final = 60.0
_POLL_S: Final = 0.1
#: A service manager's pause before a restart.
_RESTART_AFTER_S: Final = 0.3

#: Differences from default settings: shorter deadlines and retry intervals, so that everything ends within minutes; rate
#: limits that clients do not reach; the account is the operator's, for the console; events after nearly every scan run.
SETTINGS: Final = {
    **CLOUD,
    "DELIVERY_TIMEOUT_S": "3",
    "CONNECT_TIMEOUT_S": "2",
    "RETRY_SCHEDULE": ",".join(["1"] * 4 + ["2"] * 4 + ["4"] * 40),
    "RATE_LIMIT_PER_MINUTE": "1000000",
    "OPERATOR_ACCOUNT_ID": "1",
    "EVENT_SETTLE_SECONDS": "1",
    "LOG_FORMAT": "json",
    "LOG_LEVEL": "info",
}


class Child:
    """A command of the installation, restarted whenever it exits."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name.replace(' ', '-')}.log"
        self._command = command
        self._env = env
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._exited_at: float | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self._process = child_process.start(self._command, env=self._env, cwd=self._folder, output=log)
        self._exited_at = None

    def restart_if_exited(self) -> None:
        """Restart it if it has exited, after a pause."""
        if self.pid is not None:
            return
        now = time.monotonic()
        self._exited_at = self._exited_at or now
        if now - self._exited_at >= _RESTART_AFTER_S:
            self.start()

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; return whether it was running."""
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.send_signal(number)
        return True

    def children(self) -> list[int]:
        """The ids of its own child processes."""
        return children_of(self.pid)

    @property
    def is_up(self) -> bool:
        """Return whether it handles SIGTERM; before that, SIGTERM would kill it."""
        return bool(_handled_signals(self.pid) & 1 << signal.SIGTERM - 1)

    def terminate(self) -> None:
        """Send SIGTERM, after resuming it if it is suspended."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)

    def stop(self) -> int | None:
        """Wait for it to exit and return the exit code; None if it had to be killed."""
        if self._process is None:
            return None
        try:
            return self._process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """End it and its children."""
        for pid in self.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()


class SoakReceiverProcess:
    """A receiver or a tracker as a separate process, which ends with its standard input.

    `kind` is `receiver` or `tracker`; `arguments` follow the port in its command.
    """

    def __init__(self, folder: Path, kind: str, number: int, *arguments: str) -> None:
        self.port = _free_port(FORBIDDEN_ADDRESS)
        self.log = folder / f"{kind}-{number}.log"
        arguments = (str(folder), str(number), str(self.port), *arguments)
        self._command = [sys.executable, "-m", f"soak.receivers.{kind}", *arguments]
        self._is_faulty = True
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        """Its origin, `http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self.port}"

    def start_if_exited(self) -> None:
        """Start it if it does not run."""
        if self._process is not None and self._process.poll() is None:
            return
        self._close()
        words = [*self._command, "faulty" if self._is_faulty else "accepting"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    def accept_all(self) -> None:
        """Make it accept every request from now on."""
        self._is_faulty = False
        with suppress(OSError):  # it has just been killed, and will accept every request after the restart
            _pipe(self._process).write(b"\n")
            _pipe(self._process).flush()

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it."""
        self.kill()
        self._close()

    def _close(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                _pipe(self._process).close()


class SoakInstallation:
    """All processes of a soak; the service listens on `port`."""

    def __init__(self, folder: Path, plan: SoakPlan) -> None:
        self.folder = folder
        self.plan = plan
        self.began_at_ms = now_ms()
        self.redis = RedisServer(persistent=True)
        self.postgres = DurablePostgres() if plan.database == "postgresql" else None
        if self.postgres is not None:
            self.postgres.port = _free_port()
        self.port = _free_port()
        seed_arguments = (str(plan.seed), str(self.began_at_ms))
        self.receivers = [
            SoakReceiverProcess(folder, "receiver", number, WEBHOOK_SECRET, *seed_arguments)
            for number in range(plan.receivers)
        ]
        self.trackers = [SoakReceiverProcess(folder, "tracker", number, *seed_arguments) for number in range(plan.trackers)]
        #: Signs the certificate of `alerts`, which receives the alerts; `silent` is the target of the second account.
        self._authority = CertificateAuthority("the soak")
        self.alerts = LoopbackServer(always(), self._authority.server("127.0.0.1"))
        self.silent = LoopbackServer(say_nothing)
        self.service: Child
        self.workers: list[Child] = []
        self.exit_codes: dict[str, int | None] = {}

    @property
    def children(self) -> list[Child]:
        """The product's processes."""
        return [self.service, *self.workers]

    @property
    def recipients(self) -> list[SoakReceiverProcess]:
        """The receivers and trackers."""
        return [*self.receivers, *self.trackers]

    @property
    def servers(self) -> list[RedisServer | PostgresServer]:
        """The servers that the product uses."""
        return [self.redis, *([self.postgres] if self.postgres else [])]

    def start(self, project_id: int) -> None:
        """Start receivers, trackers, service and workers; wait until the service responds. Needs `open_database` before."""
        self.alerts.__enter__()
        self.silent.__enter__()
        env = self._environment(project_id)
        narrow = {**env, "TARGET_ALLOWED_NETWORKS": "127.0.0.1/32"}
        self.service = Child("service", [RISKRELAY, "serve"], env, self.folder)
        self.workers = [
            Child(f"worker {number + 1}", [RISKRELAY, "work"], narrow, self.folder) for number in range(self.plan.workers)
        ]
        for receiver in self.recipients:
            receiver.start_if_exited()
        for child in self.children:
            child.start()
        if not self.wait_until(self.is_responding):
            raise AssertionError(f"The service does not respond after {WITHIN_S:g} s; see {self.service.log}")

    def open_database(self) -> None:
        """Start the servers, migrate a fresh database and open it in this process."""
        for server in self.servers:
            server.start()
        self.database_url = self.postgres.create_database() if self.postgres else f"sqlite:///{self.folder / 'riskrelay.db'}"
        open_database(self.database_url)
        schema_version.migrate()

    def restart_exited(self) -> None:
        """Restart exited processes."""
        for child in self.children:
            child.restart_if_exited()
        for receiver in self.recipients:
            receiver.start_if_exited()
        for server in self.servers:
            if not server.is_running:
                server.start()

    def is_responding(self) -> bool:
        """Return whether the service responds."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return client.recv(12).endswith(b"200")
        return False

    def wait_until(self, is_done: Callable[[], object], within_s: float = WITHIN_S) -> bool:
        """Wait until `is_done()` while restarting exited processes; return whether it became true in time."""
        deadline = time.monotonic() + within_s
        while not is_done():
            if time.monotonic() > deadline:
                return False
            self.restart_exited()
            time.sleep(_POLL_S)
        return True

    def is_up(self) -> bool:
        """Return whether every process of the product handles SIGTERM."""
        return all(child.is_up for child in self.children)

    def is_settled(self) -> bool:
        """Return whether no approved export, compliance request, event or changed scan run is pending."""
        try:
            with connection():
                waiting = rows(
                    "SELECT (SELECT COUNT(*) FROM exports WHERE status IN ('approved', 'delivering', 'retry_scheduled')), "
                    "(SELECT COUNT(*) FROM compliance_requests WHERE status <> 'done'), "
                    "(SELECT COUNT(*) FROM ticket_events WHERE status = 'pending'), "
                    "(SELECT COUNT(*) FROM scan_runs WHERE has_changes)"
                )
        except OUTAGES:
            return False
        return waiting == [(0, 0, 0, 0)]

    def product_processes(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the id of every process of the product and of Redis."""
        for child in self.children:
            if child.pid is not None:
                yield child.name, child.pid
        for number, pid in enumerate(sorted(self.service.children()), start=1):
            yield f"service process {number}", pid
        for pid in processes_in(self.redis.folder):
            yield "redis", pid

    def stop_product(self) -> None:
        """Stop the product's processes and record their exit codes; idempotent."""
        running = self.children if hasattr(self, "service") else []
        for child in running:
            child.terminate()
        for child in running:
            self.exit_codes[child.name] = child.stop()

    def stop(self) -> None:
        """Stop all processes; idempotent."""
        self.stop_product()
        for receiver in self.recipients:
            receiver.stop()
        for listener in (self.alerts, self.silent):
            listener.__exit__()
        close_database()
        for server in self.servers:
            server.stop()

    def move_server_files(self) -> None:
        """Move the servers' files into the folder, once all processes have ended."""
        for server, name in zip(self.servers, ("redis", "postgresql"), strict=False):
            with suppress(shutil.Error, OSError):
                shutil.move(str(server.folder), str(self.folder / name))

    def _environment(self, project_id: int) -> dict[str, str]:
        here = f"127.0.0.1:{self.port}"
        alerts = {
            "ALERT_WEBHOOK_URL": self.alerts.url(),
            "ALERT_WEBHOOK_SECRET": WEBHOOK_SECRET,
            "TARGET_CA": self._authority.pem,
        }
        settings = {**SETTINGS, **LOOPBACK, "DEFAULT_PROJECT_ID": str(project_id), **alerts}
        places = {"BIND": here, "PUBLIC_BASE_URL": f"http://{here}"}
        return environment(self.folder, DATABASE_URL=self.database_url, REDIS_URL=self.redis.url, **settings, **places)


def children_of(pid: int | None) -> list[int]:
    """Return the ids of a process's children; none if it has exited."""
    if pid is None:
        return []
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _handled_signals(pid: int | None) -> int:
    """Return the bit mask of a process's signal handlers; 0 if it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16)


def _free_port(*also_at: str) -> int:
    """Return a port that is free on all loopback addresses."""
    while True:
        port = random.choice(_PORTS)
        if all(_is_free(address, port) for address in ("127.0.0.1", *also_at)):
            return port


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _pipe(process: subprocess.Popen[bytes] | None) -> IO[bytes]:
    assert process is not None
    assert process.stdin is not None
    return process.stdin
