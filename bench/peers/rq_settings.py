"""RQ's part of `bench.peers.task_queues`: the settings module of a stock `rq worker`.

The worker imports it before it forks, so a job's modules and the database's driver are loaded once and not once per job.
"""

import importlib
import os

from bench.peers.delivery import deliver

__all__ = ["REDIS_URL", "deliver"]

REDIS_URL = os.environ["REDIS_URL"]

if not os.environ["DATABASE_URL"].startswith("sqlite:"):
    importlib.import_module("psycopg")
