"""Runs the receiver and other child processes of a measurement, controlled by lines; they end with this process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final
from urllib.request import Request, urlopen

#: Where receivers listen; measurements of several hosts have an address of their own.
LOOPBACK: Final = "127.0.0.1"
ROOT: Final = Path(__file__).resolve().parents[2]
#: Longer than any child takes to end once its standard input is closed.
_END_WITHIN_S: Final = 10


@contextmanager
def child(module: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a module of `bench`; it is ended by closing its standard input, which a death of ours does too."""
    command = [sys.executable, "-m", module, *words]
    # In a session of its own: the terminal's Ctrl-C is ours alone, and what it interrupts ends its children in order.
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
    """Return an end that was asked for."""
    assert end is not None
    return end


class BenchReceiver:
    """The receiver in a process of its own, and what it counted; each of its `urls` is an origin of its own.

    `port` takes questions; it is no target, and speaks no TLS.
    """

    def __init__(self, port: int, targets: Sequence[int], scheme: str = "http", address: str = LOOPBACK) -> None:
        self._asked_at = f"http://{address}:{port}"
        self.urls = [f"{scheme}://{address}:{target}/" for target in targets]
        self.url = self.urls[0]

    def arrivals(self) -> dict[str, Any]:
        """Return the counts: requests, distinct, hung, first_at, last_at; and cpu_s, the receiver's own processor time."""
        return self._ask("GET")

    def times(self) -> dict[str, float]:
        """Return when each Idempotency-Key arrived first, in milliseconds since 1970."""
        return self._ask("GET", "times")

    def clear(self) -> None:
        """Set the counts to zero."""
        self._ask("DELETE")

    def _ask(self, method: str, path: str = "") -> dict[str, Any]:
        asked = Request(f"{self._asked_at}/{path}", method=method)  # noqa: S310 - our own address
        with urlopen(asked, timeout=10) as answer:  # noqa: S310 - our own loopback address
            record: dict[str, Any] = json.load(answer)
            return record


@contextmanager
def receiver(
    delay_ms: int, origins: int = 1, certificate: Path | None = None, address: str = LOOPBACK
) -> Iterator[BenchReceiver]:
    """Run a receiver that answers after `delay_ms`, on as many ports as `origins`; over TLS with a `certificate`."""
    words = [address, str(delay_ms / 1000), str(origins), *([] if certificate is None else [str(certificate)])]
    with child("bench.servers.instant_receiver", *words) as process:
        port, *targets = [int(port) for port in pipe(process.stdout).readline().split()]
        yield BenchReceiver(port, targets, "http" if certificate is None else "https", address)


def rate(arrivals: dict[str, Any]) -> float:
    """Return requests a second between the first arrival and the last."""
    return float((arrivals["requests"] - 1) / (arrivals["last_at"] - arrivals["first_at"]))
