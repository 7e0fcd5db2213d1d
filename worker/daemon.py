"""The worker daemon: composes the tools, then listens for wake-ups while the drain looks by itself once a second.

RQ runs in the main thread and only wakes the drain; when Redis is away there is nothing to listen to and deliveries go on.
Whatever lies in the queue is a wake-up and nothing else: who can write to Redis does not choose what runs here.
SIGTERM: nothing more is claimed, what is being sent is finished, exit 0. A second signal ends the process at once; the
leases lapse and another worker takes over.
"""

import logging
import os
import queue
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import FrameType
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer

from runtime import error_reports, logs, metrics, tracing, wake_up_queue
from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from runtime.file_limits import allow_files
from schemas.settings.definitions import Settings
from storage.db.engine import DAMAGE, OUTAGES, close_database, connection, open_database
from storage.db.shared_clock import SharedClock
from storage.exports import worker_heartbeats
from storage.maintenance.retention import Cutoffs, cutoffs
from storage.secrets.vault import Vault
from worker import jobs, outages
from worker.background.compliance import LOOK_EVERY_S as COMPLIANCE_LOOK_S
from worker.background.compliance import ComplianceTask
from worker.background.pings import LOOK_EVERY_S as PING_LOOK_S
from worker.background.pings import PINGS_AT_ONCE, PingTask
from worker.background.recoveries import LOOK_EVERY_S as RECOVERIES_LOOK_S
from worker.background.recoveries import RecoveryTask
from worker.background.retention import ASK_EVERY_S, RetentionTask
from worker.background.tasks import BackgroundTask
from worker.background.validations import LEASE_MARGIN_S, LOOK_EVERY_S, LOOKS_AT_ONCE, ValidationTask
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.dispatcher import Dispatcher
from worker.delivery.options import LEASE_S, RENEW_S, STOP_TIMEOUT_S, DispatcherOptions
from worker.delivery.outcomes import Schedule
from worker.http.client import HttpClient
from worker.http.signed_request import SignedPost
from worker.metrics import Attempts

#: How soon a daemon that lost Redis looks for it again.
REDIS_RETRY_S: Final = 1.0
#: A wake-up reaches one worker. Redis gives the next one to the worker that waited longest, so one more reaches another.
PASS_ON_EVERY_S: Final = 0.2
#: How long one wait for a wake-up lasts, and so how late the listener may notice a signal.
LISTEN_S: Final = 1
#: Beyond that wait, how long a Redis that says nothing is waited for.
_SILENCE_S: Final = 2
#: RQ waits for this much less than its workers' time to live.
_RQ_MARGIN_S: Final = 15
#: A supervisor and the terminal may both pass on one and the same Ctrl-C; only a later signal is a second one.
ECHO_S: Final = 1.0
#: For a lock of the database: waiting as long as requests do, and then renewing, could take longer than a lease lasts.
LOCK_WAIT_S: Final = LEASE_S - 2 * RENEW_S
#: Each kept connection takes two descriptors; the usual soft limit of 1,024 is for programs that use select.
_FILES: Final = 65_536

Now = Callable[[], datetime]

_log: Final = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Work until a signal comes; return the exit code."""
    allow_files(_FILES)
    error_reports.configure(settings, "worker")
    tracing.configure(settings, "worker")
    metrics.open_files(settings.data_dir, metrics.Role.WORKER)
    open_database(settings.database_url, LOCK_WAIT_S)
    clock = SharedClock(utc_now)
    _compare(clock)
    dispatcher = compose(settings, clock)
    tasks = compose_background_tasks(settings, clock.now)
    wake_ups = wake_up_queue.WakeUpQueue(wake_up_queue.connect(settings.redis_url))
    passing_on = _PassingOn()

    def begin_nothing_more() -> None:
        dispatcher.stop()
        for task in tasks:
            task.stop()

    def on_wake_up() -> None:
        wake_ups.acknowledge()
        for task in tasks:
            task.wake()
        dispatcher.deliver_due()
        if dispatcher.leaves_to_others and passing_on.may_pass():
            wake_ups.notify()

    stop = _Stop(begin_nothing_more)
    jobs.install(on_wake_up)
    dispatcher.start()
    for task in tasks:
        task.start()
    _log.info("worker started", extra={"worker": _worker_name(), "pid": os.getpid()})
    while not stop.is_wanted:
        _listen(settings.redis_url, stop)
        stop.wait(REDIS_RETRY_S)
    ended = dispatcher.join(settings.delivery_timeout_s + STOP_TIMEOUT_S)
    for task in tasks:
        task.join(settings.delivery_timeout_s + STOP_TIMEOUT_S)
    close_database()
    _log.info("worker stopped", extra={"worker": _worker_name()})
    tracing.close()
    error_reports.close()
    if not ended:
        # Threads that still wait for a receiver would hold the process; what others have told since then is written.
        logs.write_waiting()
        os._exit(1)
    return 0


def compose(settings: Settings, clock: SharedClock) -> Dispatcher:
    """Wire a drain from settings, which keeps the clock right; the database is open."""
    client = compose_client(settings, settings.worker_concurrency)
    schedule = Schedule(settings.retry_schedule_s, settings.max_age)
    options = AttemptOptions(settings.webhook_secret, schedule, clock.now)
    runner = AttemptRunner(client.post, Vault(settings.encryption_keys), options)
    dispatcher_options = DispatcherOptions(
        _worker_name(),
        settings.worker_concurrency,
        settings.sweep_s,
        clock.now,
        compare_clocks=clock.compare,
        count=Attempts().count,
    )
    return Dispatcher(runner, dispatcher_options)


def compose_background_tasks(settings: Settings, now: Now) -> list[BackgroundTask]:
    """Wire what this worker does beside deliveries, by the same clock: it has leases too, and removes what is old."""
    singles = [wire(settings, now) for wire in (_compliance, _recoveries, _retention)]
    return [*_pings(settings, now), *_validations(settings, now), *singles]


def compose_client(settings: Settings, connections: int) -> HttpClient:
    """Wire a client of receivers, for as many connections at once."""
    return HttpClient(
        policy=settings.target_policy,
        resolver=DnsResolver(),
        deadline_s=settings.delivery_timeout_s,
        connect_timeout_s=settings.connect_timeout_s,
        connections=connections,
    )


def compose_ping_task(settings: Settings, at_once: int, now: Now = utc_now) -> PingTask:
    """Wire what sends pings, for as many at once."""
    client = compose_client(settings, at_once)
    signed_post = SignedPost(client.post, Vault(settings.encryption_keys), settings.webhook_secret)
    return PingTask(signed_post, _worker_name(), now)


class _PassingOn:
    """Limits how often a worker notifies the others, so that busy workers do not wake each other endlessly."""

    def __init__(self) -> None:
        self._from = 0.0

    def may_pass(self) -> bool:
        now = time.monotonic()
        if now < self._from:
            return False
        self._from = now + PASS_ON_EVERY_S
        return True


class _Stop:
    """The wish to stop, as SIGTERM or SIGINT brings it; the handler takes no lock and raises nothing where it interrupts."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._wanted_at: float | None = None
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @property
    def is_wanted(self) -> bool:
        return self._wanted_at is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until it is wanted, at most `timeout_s` seconds."""
        with suppress(queue.Empty):
            self._told.get(timeout=0 if self.is_wanted else timeout_s)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._wanted_at is None:
            self._wanted_at = now
            self._then()
            self._told.put(None)
        elif now - self._wanted_at > ECHO_S:
            os._exit(1)


class _WakeUp(Job):
    """A job of the queue: whatever function, callbacks or webhooks it names, it means "look"."""

    def perform(self) -> None:
        jobs.deliver_due()

    def execute_success_callback(self, *_: Any, **__: Any) -> None:
        """Run nothing that Redis names."""

    def execute_failure_callback(self, *_: Any, **__: Any) -> None:
        """Run nothing that Redis names."""

    def execute_stopped_callback(self, *_: Any, **__: Any) -> None:
        """Run nothing that Redis names."""

    def send_webhooks(self, *_: Any, **__: Any) -> None:
        """Ask no address that Redis names."""


class _WakeUpListener(SimpleWorker):
    """An RQ worker that takes wake-ups and no other orders, neither signals nor commands that come through Redis."""

    max_connection_wait_time = REDIS_RETRY_S

    def __init__(self, client: Redis, stop: _Stop) -> None:
        self._stop = stop
        wake_ups = wake_up_queue.queue(client)
        wake_ups.job_class = _WakeUp
        super().__init__(
            [wake_ups],
            connection=client,
            serializer=JSONSerializer,
            job_class=_WakeUp,
            worker_ttl=LISTEN_S + _RQ_MARGIN_S,
            log_job_description=False,
        )

    @property
    def connection_timeout(self) -> int:
        return LISTEN_S + _SILENCE_S

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        """RQ calls this before each wait for a wake-up: the place to end, with nothing half done."""
        if not (args or kwargs):
            self._end_if_wanted()
        super().heartbeat(*args, **kwargs)
        outages.REDIS.over()

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """Log in our form that a wake-up job failed; RQ would log the error's text."""
        _log.error("wake-up job failed", exc_info=exc_info[1])

    def handle_job_failure(self, job: Job, queue: Queue, started_job_registry: Any = None, exc_string: str = "") -> None:
        """Keep no words of an error in Redis."""
        super().handle_job_failure(job, queue, started_job_registry, exc_string="")

    def check_for_suspension(self, burst: bool) -> None:
        self._end_if_wanted()

    def subscribe(self) -> None:
        """Listen to no commands."""

    def unsubscribe(self) -> None:
        """There is nothing to unsubscribe from."""

    def _install_signal_handlers(self) -> None:
        """Signals are for the daemon."""

    def _end_if_wanted(self) -> None:
        if self._stop.is_wanted:
            raise StopRequested


def _listen(redis_url: str, stop: _Stop) -> None:
    """Take wake-ups until a stop is requested or Redis is gone."""
    client = wake_up_queue.connect(redis_url, timeout_s=None)
    try:
        _WakeUpListener(client, stop).work(logging_level="WARNING")
    except RedisError as gone:
        outages.REDIS.note(gone)
    except Exception:  # noqa: BLE001 - wake-ups only save time; whatever is wrong with them, the sweep goes on
        _log.exception("not listening, sweeping on")
    finally:
        client.close()


def _compare(clock: SharedClock) -> None:
    """Look at the database's clock before anything goes by it; where that is away, the drain does as soon as it is back."""
    with suppress(*OUTAGES, DAMAGE), connection():
        clock.compare()


def _pings(settings: Settings, now: Now) -> list[BackgroundTask]:
    """Wire one task for each ping that is sent at once."""
    task = compose_ping_task(settings, PINGS_AT_ONCE, now)
    return [BackgroundTask(f"ping-{number}", task.run_once, PING_LOOK_S) for number in range(PINGS_AT_ONCE)]


def _validations(settings: Settings, now: Now) -> list[BackgroundTask]:
    """Wire one task for each look that is made at once: no thread of pings or deliveries waits for one."""
    client = compose_client(settings, LOOKS_AT_ONCE)
    lease_s = settings.delivery_timeout_s + LEASE_MARGIN_S
    task = ValidationTask(client.inspect, _worker_name(), now, lease_s)
    return [BackgroundTask(f"validation-{number}", task.run_once, LOOK_EVERY_S) for number in range(LOOKS_AT_ONCE)]


def _compliance(settings: Settings, now: Now) -> BackgroundTask:
    task = ComplianceTask(Vault(settings.encryption_keys), _worker_name(), now)
    return BackgroundTask("compliance", task.run_once, COMPLIANCE_LOOK_S)


def _recoveries(settings: Settings, now: Now) -> BackgroundTask:
    task = RecoveryTask(wake_up_queue.WakeUpQueue(wake_up_queue.connect(settings.redis_url)), now)
    return BackgroundTask("recoveries", task.run_once, RECOVERIES_LOOK_S)


def _retention(settings: Settings, now: Now) -> BackgroundTask:
    def until(moment: datetime) -> Cutoffs:
        return cutoffs(moment, settings.retention, settings.idempotency_ttl)

    return BackgroundTask("retention", RetentionTask(until, _worker_name(), now).run_once, ASK_EVERY_S)


def _worker_name() -> str:
    return worker_heartbeats.process_name("worker")
