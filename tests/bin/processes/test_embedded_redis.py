"""The embedded Redis: private, persistent across restarts, stopped with its parent."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from bin.processes.embedded_redis import SERVER_IN_VENV, EmbeddedRedis, EmbeddedRedisError, find_server, redis_command
from tests.support.servers.redis_and_postgres import PROJECT_ROOT, processes_in

READY_TIMEOUT_S = 20.0


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Return a short path with a space: pytest's paths are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="rr ") as folder:
        yield Path(folder)


def embedded(data_dir: Path) -> EmbeddedRedis:
    return EmbeddedRedis(data_dir, data_dir / "redis" / "redis.sock")


@contextmanager
def running(data_dir: Path) -> Iterator[EmbeddedRedis]:
    server = embedded(data_dir)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def run_child(data_dir: Path, rest: str) -> subprocess.Popen[str]:
    """Start a process that starts an embedded Redis and then runs `rest`, lines of Python."""
    program = f"""
import os, time
from pathlib import Path
from bin.processes.embedded_redis import EmbeddedRedis
server = EmbeddedRedis(Path({str(data_dir)!r}), Path({str(data_dir)!r}, "redis", "redis.sock"))
server.start()
server.wait_until_ready({READY_TIMEOUT_S})
{rest}
"""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_empty_soon(folder: Path) -> bool:
    deadline = time.monotonic() + 10
    while list(processes_in(folder)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def test_redis_listens_on_its_socket_and_on_no_port(data_dir: Path) -> None:
    with running(data_dir) as server:
        server.wait_until_ready(READY_TIMEOUT_S)
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            assert client.ping()
            assert client.config_get("port") == {"port": "0"}


def test_other_users_cannot_enter_the_redis_folder(data_dir: Path) -> None:
    with running(data_dir) as server:
        server.wait_until_ready(READY_TIMEOUT_S)
        assert stat.S_IMODE((data_dir / "redis").stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700


def test_redis_data_survive_a_restart(data_dir: Path) -> None:
    for expected in (None, b"value"):
        with running(data_dir) as server:
            server.wait_until_ready(READY_TIMEOUT_S)
            with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
                assert client.get("key") == expected
                client.set("key", "value")


def test_redis_can_be_started_again_after_a_kill(data_dir: Path) -> None:
    with running(data_dir) as server:
        server.wait_until_ready(READY_TIMEOUT_S)
        server.process.kill()
        server.process.wait()
        server.start()
        server.wait_until_ready(READY_TIMEOUT_S)
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            assert client.ping()


def test_a_second_server_on_the_same_data_is_refused(data_dir: Path) -> None:
    with running(data_dir) as server:
        server.wait_until_ready(READY_TIMEOUT_S)
        with pytest.raises(EmbeddedRedisError, match="already running"):
            EmbeddedRedis(data_dir, server.socket_path, lock_timeout_s=0.1).start()
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            assert client.ping()


def test_redis_exits_when_its_parent_is_killed(data_dir: Path) -> None:
    with run_child(data_dir, "os.kill(os.getpid(), 9)") as parent:
        assert parent.wait() == -signal.SIGKILL
    assert is_empty_soon(data_dir)


def test_ctrl_c_in_the_terminal_does_not_reach_redis(data_dir: Path) -> None:
    after_the_signal = """
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    assert server.process.poll() is None
    server.stop()
    assert server.process.returncode == 0
    print("stopped last")
"""
    with run_child(data_dir, after_the_signal) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
        assert parent.stdout.read() == "stopped last\n"
        assert parent.wait() == 0


def test_a_folder_that_other_users_can_enter_is_refused(data_dir: Path) -> None:
    (data_dir / "redis").mkdir(mode=0o755)
    (data_dir / "redis").chmod(0o755)
    with pytest.raises(EmbeddedRedisError, match="chmod 700"):
        embedded(data_dir).start()


def test_a_server_that_cannot_start_shows_its_log(data_dir: Path) -> None:
    server = embedded(data_dir)
    server.socket_path.mkdir(mode=0o700, parents=True)
    (data_dir / "redis").chmod(0o700)
    for _ in ("without data, and with", "that are not the cause"):
        with pytest.raises(EmbeddedRedisError, match=r"The end of its log .*redis\.log:"):
            server.start_and_wait(READY_TIMEOUT_S)
        (data_dir / "redis" / "appendonly.aof").touch()


def test_redis_starts_without_data_damaged_by_a_power_failure(data_dir: Path) -> None:
    with running(data_dir) as server:
        server.wait_until_ready(READY_TIMEOUT_S)
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            client.set("key", "value")
    # A file system may have reserved space that was never written.
    names = (data_dir / "redis").glob("appendonly*/*.incr.aof"), (data_dir / "redis").glob("appendonly.aof")
    for path in [path for each in names for path in each]:
        path.write_bytes(path.read_bytes() + bytes(4096))
    server = embedded(data_dir)
    try:
        server.start_and_wait(READY_TIMEOUT_S)
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            assert client.get("key") is None
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("on_path", "expected"),
    [
        (["redis-server", "valkey-server"], "redis-server"),  # the first name wins
        (["valkey-server"], "valkey-server"),
    ],
)
def test_a_server_on_path_takes_precedence(tmp_path: Path, on_path: list[str], expected: str) -> None:
    for name in on_path:
        (tmp_path / name).touch(mode=0o755)
    assert find_server(str(tmp_path)) == tmp_path / expected


def test_without_a_server_on_path_the_one_in_the_venv_is_used(tmp_path: Path) -> None:
    in_venv = tmp_path / SERVER_IN_VENV
    in_venv.parent.mkdir(parents=True)
    in_venv.touch(mode=0o755)
    assert find_server(str(tmp_path), root=tmp_path) == in_venv


def test_without_any_server_the_error_contains_the_fix(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match="apt-get install redis-server, or set REDIS_URL"):
        find_server(str(tmp_path), root=tmp_path)


def test_the_command_opens_no_port_and_appends_to_a_file(data_dir: Path) -> None:
    command = redis_command(data_dir / "redis", data_dir / "redis.sock")
    settings = dict(zip(command[1::2], command[2::2], strict=True))
    assert settings["--port"] == "0"
    assert settings["--appendonly"] == "yes"
    assert settings["--dir"] == str(data_dir / "redis")
