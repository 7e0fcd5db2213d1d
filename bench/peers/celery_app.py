"""Celery's part of `bench.peers.task_queues`: the application that its worker loads, and the filling of its queue.

It runs in a separate environment (`bench.peers.environment`). Results, events and remote control are off, and tasks are
acknowledged when received: Celery's fastest configuration. `python -m bench.peers.celery_app` queues a task for each line of
standard input.
"""

import os
import sys
from typing import Any, Final

from celery import Celery  # type: ignore[import-not-found, unused-ignore]  # only in the separate environment
from celery.signals import worker_ready  # type: ignore[import-not-found, unused-ignore]  # only in the separate environment
from redis import Redis

from bench.peers.delivery import deliver

#: A Redis set to which each worker adds its process id once it listens.
READY: Final = "bench:celery"

app: Final = Celery("peers", broker=os.environ["REDIS_URL"].replace("unix://", "redis+socket://"))
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)
#: With an explicit name: otherwise it would depend on whether this module runs as `__main__`.
task: Final[Any] = app.task(name="deliver")(deliver)


@worker_ready.connect  # type: ignore[untyped-decorator, unused-ignore]  # celery has no annotations
def _add_worker(**_: Any) -> None:
    with Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.sadd(READY, os.getpid())


if __name__ == "__main__":
    with app.producer_or_acquire() as producer:
        for line in sys.stdin:
            task.apply_async((line.strip(),), producer=producer)
