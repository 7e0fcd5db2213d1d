"""Delivers within one job of a plain RQ worker: opens settings and database, delivers, and closes everything again.

It works in a forked child and in the worker's own process. Such a worker neither sweeps for due exports nor runs background
tasks: `bin/riskrelay sweep` from cron queues the job for retries, and one `bin/riskrelay work` runs the tasks.
"""

from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final

from runtime import metrics, tls_key_log, wake_up_queue
from schemas.settings.definitions import InvalidSettings, load_settings
from worker.composition import compose_client, compose_dispatcher, worker_process
from worker.delivery.dispatcher import SLICE_S
from worker.delivery.options import STOP_TIMEOUT_S
from worker.metrics import Attempts

#: RQ ends a job after its time limit. A request that is open then would be sent again, and again ended before its response.
MAX_DEADLINE_S: Final = wake_up_queue.JOB_TIMEOUT_S - SLICE_S - STOP_TIMEOUT_S


def deliver() -> None:
    """Deliver until nothing is due, for one time slice at most; queue the next job if exports are still due then.

    Raises InvalidSettings, also if the deadline of requests is longer than RQ would wait.
    """
    tls_key_log.disable()
    settings = load_settings()
    if settings.delivery_timeout_s > MAX_DEADLINE_S:
        too_long = f"A plain RQ worker supports at most {MAX_DEADLINE_S:.0f} seconds. Run `bin/riskrelay work` instead."
        raise InvalidSettings({"DELIVERY_TIMEOUT_S": [too_long]})
    wake_ups = wake_up_queue.WakeUpQueue(wake_up_queue.connect(settings.redis_url))
    # Before the first scan: from now on, a commit queues a job again.
    wake_ups.acknowledge()
    with worker_process(settings) as clock, closing(compose_client(settings, settings.worker_concurrency)) as client:
        dispatcher = compose_dispatcher(settings, clock, client, _attempts(settings.data_dir))
        dispatcher.start()
        try:
            is_idle = dispatcher.deliver_due()
        finally:
            # Running attempts finish, unsent claims are returned, threads end.
            dispatcher.stop()
            dispatcher.join(settings.delivery_timeout_s + STOP_TIMEOUT_S)
    if not is_idle or dispatcher.has_work_for_other_workers:
        wake_ups.notify()


@cache
def _attempts(data_dir: Path) -> Attempts:
    """Return the counters of this process, in files that are opened once."""
    metrics.open_files(data_dir, metrics.ProcessKind.WORKER)
    return Attempts()
