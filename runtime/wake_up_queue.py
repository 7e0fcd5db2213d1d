"""Wakes the workers after a commit that made something due. A lost wake-up costs one sweep, never an export.

At most one job waits in Redis: `notify` sets a mark, and queues the job only if the mark was not set. A worker removes the
mark before it queries the table, so the run that is about to start sees whatever was committed before a suppressed `notify`.
"""

import logging
import threading
from dataclasses import dataclass
from typing import Final

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.serializers import JSONSerializer
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from runtime import redis_client
from runtime.outages import Outage

QUEUE: Final = "riskrelay-deliveries"
#: The service names the worker's job by this string and imports nothing of it.
JOB: Final = "worker.jobs.deliver_due"

#: Longer than the longest run of the job (`worker.delivery.dispatcher.SLICE_S` and one deadline); RQ ends a longer one.
JOB_TIMEOUT_S: Final = 180

_MARK: Final = "riskrelay:rung"
#: If the job is lost with the mark still set, `notify` works again after this long.
_MARK_S: Final = 5
#: RQ keeps a finished job for as long as somebody might inspect it.
_RESULT_S: Final = 60

_log: Final = logging.getLogger(__name__)


def connect(url: str, timeout_s: float | None = redis_client.TIMEOUT_S) -> Redis:
    """Return a client for notifying or listening, as `runtime.redis_client.connect` makes it."""
    return redis_client.connect(url, timeout_s)


def queue(client: Redis) -> Queue:
    """Return the RQ queue of wake-ups. JSON, because unpickling what lies in Redis would be running it."""
    return Queue(QUEUE, connection=client, serializer=JSONSerializer, default_timeout=JOB_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Queued:
    """RQ's counts for the queue: jobs waiting, running and failed, and workers listening."""

    waiting: int
    running: int
    failed: int
    listeners: int


class WakeUpQueue:
    """Notifies the workers; an unreachable Redis makes a delivery late and is not an error."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._queue = queue(client)
        self._outage = Outage(_log, "redis unreachable, the sweep will find what is due", "redis takes wake-ups again")

    def notify(self) -> bool:
        """Queue the delivery job unless it is queued already; return whether Redis took part."""
        try:
            if self._client.set(_MARK, 1, nx=True, ex=_MARK_S):
                self._queue.enqueue(JOB, result_ttl=_RESULT_S, failure_ttl=_RESULT_S)
        except RedisError as away:
            self._outage.note(away)
            return False
        self._outage.over()
        return True

    def acknowledge(self) -> None:
        """Remove the mark; from now on `notify` queues a new job."""
        try:
            self._client.delete(_MARK)
        except RedisError as away:
            # The mark expires by itself.
            self._outage.note(away)

    def is_reachable(self) -> bool:
        """Return whether Redis answers now."""
        try:
            return bool(self._client.ping())
        except RedisError:
            return False

    def queued(self) -> Queued | None:
        """Return RQ's counts for the queue, in one round trip; None if Redis does not answer."""
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.llen(self._queue.key)
                pipeline.zcard(self._queue.started_job_registry.key)
                pipeline.zcard(self._queue.failed_job_registry.key)
                pipeline.scard(WORKERS_BY_QUEUE_KEY % QUEUE)
                return Queued(*pipeline.execute())
        except RedisError:
            return None


class BackgroundWakeUps(WakeUpQueue):
    """Notifies from a thread of its own: no request waits for Redis, and notifications of the same moment are one."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client)
        self._is_asked = threading.Event()
        self._start = threading.Lock()

    def notify(self) -> bool:
        """Let the thread notify the workers; it logs an outage."""
        self._is_asked.set()
        # Not before the first notification: a process that forks keeps no thread.
        if self._start.acquire(blocking=False):
            threading.Thread(target=self._run, name="wake-ups", daemon=True).start()
        return True

    def _run(self) -> None:
        while self._is_asked.wait():
            self._is_asked.clear()
            try:
                super().notify()
            except Exception:  # noqa: BLE001 - whatever it is, the next one is sent
                _log.exception("notifying the workers failed, the sweep will find what is due")
