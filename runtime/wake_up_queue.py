"""Wakes the workers after a commit that made something due. A lost wake-up costs one sweep, never an export.

At most one job waits in Redis: `notify` sets a mark, and queues the job only if the mark was not set and no job waits. A
worker removes the mark before it queries the table, so the run that is about to start sees whatever was committed before a
suppressed `notify`. The mark expires while every worker is busy; the run of a job that still waits is about to start, too.

RQ needs 2 ms to queue, fetch and register a job. A delivery does not wait for that: the script that sets the mark also adds
to a list of at most one entry, which running workers wait for.
"""

import logging
import threading
import time
from typing import ClassVar, Final

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.serializers import JSONSerializer

from runtime import redis_client
from runtime.outages import Outage

QUEUE: Final = "riskrelay-deliveries"
#: The service names the worker's job by this string and imports nothing of it.
JOB: Final = "worker.jobs.deliver_due"

#: Longer than the longest run of the job (`worker.delivery.dispatcher.SLICE_S` and one deadline); RQ ends a longer one.
JOB_TIMEOUT_S: Final = 180

_MARK: Final = "riskrelay:woken"
#: The list that has an entry from a notification until a worker that waits takes it.
_NOTIFIED: Final = "riskrelay:notified"
#: If the job is lost with the mark still set, `notify` works again after this long.
_MARK_S: Final = 5
#: Seconds for which RQ keeps a finished job, for inspection.
_RESULT_S: Final = 60

#: Sets the mark. If it was not set, also replaces the list by one entry. Returns 1 if the caller must queue a job, else 0.
_SET_MARK: Final = """
if not redis.call('SET', KEYS[1], 1, 'NX', 'EX', ARGV[1]) then return 0 end
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[2], 1)
redis.call('EXPIRE', KEYS[2], ARGV[1])
if redis.call('LLEN', KEYS[3]) > 0 then return 0 end
return 1
"""

_log: Final = logging.getLogger(__name__)


def connect(url: str, timeout_s: float | None = redis_client.TIMEOUT_S) -> Redis:
    """Return a client for notifying or listening, as `runtime.redis_client.connect` makes it."""
    return redis_client.connect(url, timeout_s)


def queue(client: Redis) -> Queue:
    """Return the RQ queue of wake-ups. JSON, because unpickling data of Redis could run any code."""
    return Queue(QUEUE, connection=client, serializer=JSONSerializer, default_timeout=JOB_TIMEOUT_S)


class WakeUpQueue:
    """Notifies the workers; an unreachable Redis makes a delivery late and is not an error."""

    #: Seconds between the entry in the list and the job in the queue.
    job_delay_s: ClassVar[float] = 0.0

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._queue = queue(client)
        self._set_mark = client.register_script(_SET_MARK)
        self._outage = Outage(_log, "Redis unavailable: the sweep will find what is due", "Redis available again")

    def notify(self) -> bool:
        """Queue the delivery job unless it is queued already; return whether Redis accepted it."""
        try:
            if self._set_mark(keys=[_MARK, _NOTIFIED, self._queue.key], args=[_MARK_S]):
                time.sleep(self.job_delay_s)
                self._queue.enqueue(JOB, result_ttl=_RESULT_S, failure_ttl=_RESULT_S)
        except RedisError as error:
            self._outage.record_failure(error)
            return False
        self._outage.record_success()
        return True

    def wait(self, timeout_s: int) -> bool:
        """Wait for a notification that no other worker has taken, at most `timeout_s` seconds; return whether there was one.

        It does not replace the job, whose worker acknowledges it. Raises RedisError.
        """
        return self._client.blpop([_NOTIFIED], timeout_s) is not None

    def acknowledge(self) -> None:
        """Remove the mark; from now on `notify` queues a new job unless one waits."""
        try:
            self._client.delete(_MARK)
        except RedisError as error:
            # The mark expires by itself.
            self._outage.record_failure(error)

    def is_reachable(self) -> bool:
        """Return whether Redis responds now."""
        try:
            return bool(self._client.ping())
        except RedisError:
            return False


class BackgroundWakeUps(WakeUpQueue):
    """Notifies from a thread of its own: no request waits for Redis, and simultaneous notifications become one."""

    #: On few cores, queueing and fetching the job would take processor time from the delivery that has just begun.
    job_delay_s = 0.005

    def __init__(self, client: Redis) -> None:
        super().__init__(client)
        self._requested = threading.Event()
        self._start = threading.Lock()

    def notify(self) -> bool:
        """Let the thread notify the workers; return True. An outage is logged."""
        self._requested.set()
        # Start the thread at the first notification: threads do not survive a fork.
        if self._start.acquire(blocking=False):
            threading.Thread(target=self._run, name="wake-ups", daemon=True).start()
        return True

    def _run(self) -> None:
        while self._requested.wait():
            self._requested.clear()
            try:
                super().notify()
            except Exception:  # noqa: BLE001 - whatever it is, the next one is sent
                _log.exception("notifying the workers failed, the sweep will find what is due")
