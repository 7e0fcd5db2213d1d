"""RQ's part of `bench.peers.task_queues`: the settings module of a stock `rq worker`.

The worker imports it before it forks, so that the job's modules and the database driver are loaded once, not for each job.
"""

import importlib
import os

from bench.peers.delivery import deliver

__all__ = ["REDIS_URL", "deliver"]

REDIS_URL = os.environ["REDIS_URL"]

if not os.environ["DATABASE_URL"].startswith("sqlite:"):
    importlib.import_module("psycopg")
