"""RQ's side of `bench.peers`: the settings module of a stock `rq worker`.

The worker reads it before it forks, and so loads what a job needs once and not once a job.
"""

import os

from bench.peer_delivery import deliver

__all__ = ["REDIS_URL", "deliver"]

REDIS_URL = os.environ["REDIS_URL"]
