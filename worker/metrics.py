"""What a worker counts of its attempts, and the door by which a worker host without a service shows it.

The door is opened by `work` where WORKER_METRICS_BIND says so, once for all its processes, and says nothing of the database:
that is the service's to say. Who only holds a connection open there loses it to the next one.
"""

import logging
import socket
import socketserver
import threading
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from runtime import metrics
from runtime.metrics import PAGE_FOR_S, PREFIX, Role
from schemas.exports.delivery import DELIVERED, CompletedAttempt

#: From a receiver next door to the deadline of 15 s; what takes longer has waited for a thread besides.
DELIVERY_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
#: An attempt whose lease lapsed before its answer was written: it was made, and somebody else has the export.
LATE: Final = "late"
#: What an attempt comes to (`worker.delivery.outcomes`).
OUTCOMES: Final = (DELIVERED, "retryable", "rejected", "refused", "exhausted", LATE)

#: A Prometheus or two, and a person who looks.
_AT_ONCE: Final = 8
#: A scrape is one line and a few headers.
_SILENT_FOR_S: Final = 5

_log: Final = logging.getLogger(__name__)


class Attempts:
    """Counts attempts by what came of them; nothing that goes wrong with it is felt.

    `registry` is for tests; what is in files needs none.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        total = Counter(f"{PREFIX}attempts_total", "Attempts by outcome.", ("outcome",), registry=registry)
        self._seconds = _Seconds(
            f"{PREFIX}delivery_seconds", "Seconds an attempt took.", buckets=DELIVERY_BUCKETS_S, registry=registry
        )
        # Each from the beginning: what has not happened yet is 0 and not unknown.
        self._add: dict[str, Callable[[float], None]] = {outcome: total.labels(outcome).inc for outcome in OUTCOMES}

    def count(self, attempts: Sequence[CompletedAttempt], moved: Collection[str]) -> None:
        """Count attempts that are written; those of exports that were not `moved` came too late."""
        # Once a tick and not once an attempt: 0.8 µs each, not 4.
        outcomes = Tally([each.verdict.outcome if each.claim.export_id in moved else LATE for each in attempts])
        for outcome, count in outcomes.items():
            # One that is not among OUTCOMES must not cost the tick that has just been written.
            self._add.get(outcome, _nothing)(count)
        self._seconds.observe_all([each.outcome.timings.total_ms / 1000 for each in attempts])


class _Seconds(Histogram):
    """A histogram that takes many observations at once."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Observe amounts as `observe` would each: into the first bucket that holds it, and into the sum."""
        self._sum.inc(sum(amounts))
        for place, count in Tally([bisect_left(self._upper_bounds, amount) for amount in amounts]).items():
            self._buckets[place].inc(count)


def _nothing(_count: float) -> None:
    """Count nothing."""


def serve(bind: str, data_dir: Path) -> int:
    """Show what the workers with this DATA_DIR count at `bind` (HOST:PORT), on threads of its own; return the port.

    Raises OSError where the address cannot be had.
    """
    host, _, port = bind.rpartition(":")
    server = _Door((host.strip("[]"), int(port)), data_dir)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_address[1])


class _Door(socketserver.ThreadingTCPServer):
    """Serves a few at once; one more than that takes the place of who has been there longest."""

    daemon_threads = True
    allow_reuse_address = True
    #: Who comes while many hold on waits for a moment, not until the kernel tries again.
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], data_dir: Path) -> None:
        self._data_dir = data_dir
        self._page = b""
        self._good_until = 0.0
        self._open: deque[Any] = deque()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Answer)

    def page(self) -> bytes:
        """Return what there is to show; however often somebody asks, it is put together once in PAGE_FOR_S."""
        if time.monotonic() >= self._good_until:
            found = [metrics.build_info(), *metrics.counted(self._data_dir, [Role.WORKER])]
            self._page, self._good_until = metrics.exposition(found), time.monotonic() + PAGE_FOR_S
        return self._page

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        if len(self._open) > _AT_ONCE:
            with suppress(OSError):  # it has just hung up itself
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with suppress(ValueError):  # it had to make room
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up; Python would print a stack."""
        _log.debug("a scrape broke off")


class _Answer(BaseHTTPRequestHandler):
    """Answers `GET /metrics`."""

    server: _Door
    timeout = _SILENT_FOR_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        page = self.server.page()
        self.send_response(200)
        self.send_header("Content-Type", metrics.CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in the words of the status alone: Python's would repeat the line that was asked, in head and body."""
        super().send_error(code)

    def version_string(self) -> str:
        """Name no versions of what runs here."""
        return "riskrelay"

    def log_message(self, *_: Any) -> None:
        """Write no lines of scrapes; paths and clients are nobody's business."""
