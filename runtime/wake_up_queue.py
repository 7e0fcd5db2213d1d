"""The doorbell: after a commit it tells a worker that something is due. Losing a ring costs one sweep, never an export.

At most one ring waits in Redis: who rings sets a mark, and only who set it queues the job; a worker takes the mark away
before it looks at the table, so whatever was committed before a silent ring is seen by the drain that is about to start.
"""

import logging
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

#: Longer than the longest a drain may last (`worker.delivery.dispatcher.SLICE_S` and one deadline); RQ ends a job that
#: overstays.
JOB_TIMEOUT_S: Final = 180

_MARK: Final = "riskrelay:rung"
#: Should the job be lost with the mark still set, ringing is possible again after this long.
_MARK_S: Final = 5
#: RQ keeps nothing of a ring that was answered for longer than somebody might look at it.
_RESULT_S: Final = 60

_log: Final = logging.getLogger(__name__)


def connect(url: str, timeout_s: float | None = redis_client.TIMEOUT_S) -> Redis:
    """Return a client to ring or to listen with, as `runtime.redis_client.connect` makes it."""
    return redis_client.connect(url, timeout_s)


def queue(client: Redis) -> Queue:
    """Return the queue of rings. JSON, because unpickling what lies in Redis would be running it."""
    return Queue(QUEUE, connection=client, serializer=JSONSerializer, default_timeout=JOB_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Queued:
    """What RQ knows of the queue of rings: how many wait, are being answered and broke off, and how many workers listen."""

    waiting: int
    running: int
    failed: int
    listeners: int


class Doorbell:
    """Rings for the workers; Redis away is a late delivery, not an error."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._queue = queue(client)
        self._silence = Outage(_log, "rings are not heard, the sweep will find what is due", "rings are heard again")

    def ring(self) -> bool:
        """Ask for a drain unless one is asked for already; tell whether Redis took part."""
        try:
            if self._client.set(_MARK, 1, nx=True, ex=_MARK_S):
                self._queue.enqueue(JOB, result_ttl=_RESULT_S, failure_ttl=_RESULT_S)
        except RedisError as away:
            self._silence.note(away)
            return False
        self._silence.over()
        return True

    def answer(self) -> None:
        """Take the mark away; from now on a new ring queues a new drain."""
        try:
            self._client.delete(_MARK)
        except RedisError as away:
            # The mark runs out by itself.
            self._silence.note(away)

    def is_reachable(self) -> bool:
        """Tell whether Redis answers now."""
        try:
            return bool(self._client.ping())
        except RedisError:
            return False

    def queued(self) -> Queued | None:
        """Return what RQ knows of the queue, in one exchange; None where Redis does not answer."""
        try:
            with self._client.pipeline(transaction=False) as asked:
                asked.llen(self._queue.key)
                asked.zcard(self._queue.started_job_registry.key)
                asked.zcard(self._queue.failed_job_registry.key)
                asked.scard(WORKERS_BY_QUEUE_KEY % QUEUE)
                return Queued(*asked.execute())
        except RedisError:
            return None
