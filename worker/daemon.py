"""The worker daemon: runs the dispatcher and the background tasks, and listens for wake-ups.

RQ runs in the main thread and only wakes the dispatcher, which also sweeps by itself once a second; while Redis is
unavailable, deliveries go on. SIGTERM: nothing more is claimed, running attempts finish, exit 0. A second signal ends the
process at once; its leases expire and another worker takes over.
"""

import logging
import os
import signal
import time
from types import FrameType
from typing import Final

from runtime import logs, metrics, wake_up_queue
from runtime.files import raise_file_limit
from schemas.settings.definitions import Settings
from storage.db.shared_clock import SharedClock
from worker import jobs
from worker.composition import compose_background_tasks, compose_client, compose_dispatcher, worker_name, worker_process
from worker.delivery.options import STOP_TIMEOUT_S
from worker.metrics import Attempts
from worker.wake_up_listener import REDIS_RETRY_S, early_wake_ups, listen

#: How long a wake-up delivers before it wakes the background tasks. Their queries compete with the first delivery for the
#: interpreter: without this, it took 8 ms instead of 4 from the approval to the receiver.
HEAD_START_S: Final = 0.05
#: A wake-up reaches one worker only. If it cannot send all that is due, it sends one more wake-up, at most this often; Redis
#: gives it to the worker that has waited longest.
PASS_ON_EVERY_S: Final = 0.2
#: A supervisor and the terminal may both pass on the same Ctrl-C; only a signal after this time counts as a second one.
ECHO_S: Final = 1.0
#: Each kept connection takes two descriptors; the usual soft limit of 1,024 is for programs that use select.
_FILES: Final = 65_536

_log: Final = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Run the worker until SIGTERM or SIGINT; return the exit code."""
    raise_file_limit(_FILES)
    metrics.open_files(settings.data_dir, metrics.ProcessKind.WORKER)
    with worker_process(settings) as clock:
        daemon = _Daemon(settings, clock)
        daemon.start()
        _log.info("worker started", extra={"worker": worker_name(), "pid": os.getpid()})
        daemon.listen()
        has_ended = daemon.join()
    _log.info("worker stopped", extra={"worker": worker_name()})
    if not has_ended:
        # Threads that still wait for a receiver would keep the process alive; the results of all other threads are written.
        logs.write_waiting()
        os._exit(1)
    return 0


class _Daemon:
    """The parts of one worker process, which start and stop together."""

    def __init__(self, settings: Settings, clock: SharedClock) -> None:
        self._settings = settings
        client = compose_client(settings, settings.worker_concurrency)
        self._dispatcher = compose_dispatcher(settings, clock, client, Attempts())
        self._tasks = [*compose_background_tasks(settings, clock), early_wake_ups(settings.redis_url, self._dispatcher.wake)]
        self._wake_ups = wake_up_queue.WakeUpQueue(wake_up_queue.connect(settings.redis_url))
        self._may_notify_at = 0.0
        self._stop_requested_at: float | None = None

    def start(self) -> None:
        """Start all threads; each begins its first run immediately."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        jobs.install(self._on_wake_up)
        self._dispatcher.start()
        for task in self._tasks:
            task.start()

    def listen(self) -> None:
        """Take wake-ups until a signal comes; after an outage of Redis listen again."""
        while not self._is_stopping():
            listen(self._settings.redis_url, self._is_stopping)
            if not self._is_stopping():
                time.sleep(REDIS_RETRY_S)

    def join(self) -> bool:
        """Wait for the threads after a signal; return whether the dispatcher ended."""
        timeout_s = self._settings.delivery_timeout_s + STOP_TIMEOUT_S
        has_ended = self._dispatcher.join(timeout_s)
        for task in self._tasks:
            task.join(timeout_s)
        return has_ended

    def _is_stopping(self) -> bool:
        return self._stop_requested_at is not None

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Begin nothing more. Takes no lock, and raises nothing in the code that the signal interrupts."""
        now = time.monotonic()
        if self._stop_requested_at is None:
            self._stop_requested_at = now
            self._dispatcher.stop()
            for task in self._tasks:
                task.stop()
        elif now - self._stop_requested_at > ECHO_S:
            os._exit(1)

    def _on_wake_up(self) -> None:
        self._wake_ups.acknowledge()
        is_idle = self._dispatcher.deliver_due(HEAD_START_S)
        for task in self._tasks:
            task.wake()
        if not is_idle:
            self._dispatcher.deliver_due()
        # At most every PASS_ON_EVERY_S: workers that cannot send these exports either would wake each other endlessly.
        if self._dispatcher.has_work_for_other_workers and time.monotonic() >= self._may_notify_at:
            self._may_notify_at = time.monotonic() + PASS_ON_EVERY_S
            self._wake_ups.notify()
