"""Runs the receiver and other child processes of a measurement, which read lines from a pipe and end with this process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final
from urllib.request import Request, urlopen

#: The default address of receivers; measurements with several hosts use another one.
LOOPBACK: Final = "127.0.0.1"
ROOT: Final = Path(__file__).resolve().parents[2]
#: Longer than any child process takes to exit after its standard input is closed.
_END_WITHIN_S: Final = 10


@contextmanager
def child(module: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a module of `bench` as a process; it exits when its standard input is closed, also if this process is killed."""
    command = [sys.executable, "-m", module, *words]
    # In a new session: only this process gets the terminal's Ctrl-C, and then stops its children one after the other.
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        pipe(process.stdin).close()
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        pipe(process.stdout).close()


def pipe(end: IO[str] | None) -> IO[str]:
    """Return a pipe of a process that was started with it; narrows the type."""
    assert end is not None
    return end


class BenchReceiver:
    """A receiver in a separate process; each of its `urls` is a separate origin.

    `port` is its control port, without TLS.
    """

    def __init__(self, port: int, targets: Sequence[int], scheme: str = "http", address: str = LOOPBACK) -> None:
        self._control_url = f"http://{address}:{port}"
        self.urls = [f"{scheme}://{address}:{target}/" for target in targets]
        self.url = self.urls[0]

    def arrivals(self) -> dict[str, Any]:
        """Return the counts: requests, distinct, hung, first_at, last_at; and cpu_s, the receiver's processor time."""
        return self._request("GET")

    def times(self) -> dict[str, float]:
        """Return the first arrival of each Idempotency-Key, in milliseconds since 1970."""
        return self._request("GET", "times")

    def clear(self) -> None:
        """Reset all counts."""
        self._request("DELETE")

    def _request(self, method: str, path: str = "") -> dict[str, Any]:
        request = Request(f"{self._control_url}/{path}", method=method)  # noqa: S310 - our own address
        with urlopen(request, timeout=10) as response:  # noqa: S310 - our own loopback address
            record: dict[str, Any] = json.load(response)
            return record


@contextmanager
def run_receiver(
    delay_ms: int, origins: int = 1, certificate: Path | None = None, address: str = LOOPBACK
) -> Iterator[BenchReceiver]:
    """Run a receiver that responds after `delay_ms`, on `origins` ports; over TLS with a `certificate`."""
    words = [address, str(delay_ms / 1000), str(origins), *([] if certificate is None else [str(certificate)])]
    with child("bench.servers.instant_receiver", *words) as process:
        port, *targets = [int(port) for port in pipe(process.stdout).readline().split()]
        yield BenchReceiver(port, targets, "http" if certificate is None else "https", address)


def rate(arrivals: dict[str, Any]) -> float:
    """Return requests per second between the first and the last arrival."""
    return float((arrivals["requests"] - 1) / (arrivals["last_at"] - arrivals["first_at"]))
