"""RQ's part of `bench.peers.task_queues`: the settings module of a stock `rq worker`.

The worker imports it before it forks, so a job's modules are loaded once and not once per job.
"""

import os

from bench.peers.delivery import deliver

__all__ = ["REDIS_URL", "deliver"]

REDIS_URL = os.environ["REDIS_URL"]
