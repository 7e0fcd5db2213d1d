"""An RQ worker that takes wake-ups and runs nothing that Redis names.

RQ runs any importable function that a job names, so write access to Redis would be code execution. In this worker a job,
whatever it contains, means "deliver what is due".

A second thread waits for the notification itself, which arrives 2 ms before the job has begun.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer

from runtime import wake_up_queue
from worker import jobs, outages
from worker.background.tasks import BackgroundTask, TaskThread

#: How soon RQ tries again after it lost Redis.
REDIS_RETRY_S: Final = 1.0
#: How long one wait for a wake-up lasts, and so how late a stop may be noticed.
WAIT_S: Final = 1
#: How much longer than that wait Redis may take to respond.
_RESPONSE_S: Final = 2
#: RQ waits for a job this much shorter than the time to live of its workers.
_RQ_MARGIN_S: Final = 15

_log: Final = logging.getLogger(__name__)


def listen(redis_url: str, is_stopping: Callable[[], bool]) -> None:
    """Take wake-ups until a stop is requested or Redis is unavailable."""
    client = wake_up_queue.connect(redis_url, timeout_s=None)
    try:
        _WakeUpListener(client, is_stopping).work(logging_level="WARNING")
    except RedisError as unavailable:
        outages.REDIS.record_failure(unavailable)
    except Exception:  # noqa: BLE001 - wake-ups only save time; the sweep works without them
        _log.exception("listening for wake-ups failed, sweeping for due exports")
    finally:
        client.close()


def early_wake_ups(redis_url: str, on_wake_up: Callable[[], None]) -> TaskThread:
    """Return a thread that calls `on_wake_up` for notifications while RQ still fetches and registers their job."""
    wake_ups = wake_up_queue.WakeUpQueue(wake_up_queue.connect(redis_url, timeout_s=WAIT_S + _RESPONSE_S))

    def wait_once() -> bool:
        try:
            if wake_ups.wait(WAIT_S):
                on_wake_up()
        except RedisError as unavailable:
            outages.REDIS.record_failure(unavailable)
            return False
        return True

    return TaskThread(BackgroundTask("early-wake-ups", wait_once, REDIS_RETRY_S, outages.REDIS))


class _WakeUpJob(Job):
    """A job whose function, callbacks and webhooks are ignored."""

    def perform(self) -> None:
        jobs.deliver_due()

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Run no function and call no address that Redis names."""

    execute_success_callback = _ignore
    execute_failure_callback = _ignore
    execute_stopped_callback = _ignore
    send_webhooks = _ignore


class _WakeUpListener(SimpleWorker):
    """Takes jobs, but handles neither signals nor commands from Redis."""

    max_connection_wait_time = REDIS_RETRY_S

    def __init__(self, client: Redis, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        queue = wake_up_queue.queue(client)
        queue.job_class = _WakeUpJob
        super().__init__(
            [queue],
            connection=client,
            serializer=JSONSerializer,
            job_class=_WakeUpJob,
            worker_ttl=WAIT_S + _RQ_MARGIN_S,
            log_job_description=False,
        )

    @property
    def connection_timeout(self) -> int:
        return WAIT_S + _RESPONSE_S

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        """Stop if requested: RQ calls this before each wait for a job, when no job is running."""
        if not (args or kwargs):
            self._stop_if_requested()
        super().heartbeat(*args, **kwargs)
        outages.REDIS.record_success()

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """Log in our own format that a wake-up job failed; RQ would log the error's text."""
        _log.error("wake-up job failed", exc_info=exc_info[1])

    def handle_job_failure(self, job: Job, queue: Queue, started_job_registry: Any = None, exc_string: str = "") -> None:
        """Store no error text in Redis."""
        super().handle_job_failure(job, queue, started_job_registry, exc_string="")

    def check_for_suspension(self, burst: bool) -> None:
        self._stop_if_requested()

    def subscribe(self) -> None:
        """Subscribe to no commands."""

    def unsubscribe(self) -> None:
        """Do nothing: there is no subscription."""

    def _install_signal_handlers(self) -> None:
        """Install none: the daemon handles signals."""

    def _stop_if_requested(self) -> None:
        if self._is_stopping():
            raise StopRequested
