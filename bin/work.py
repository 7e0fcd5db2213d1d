"""`work`: the worker daemon, as many processes as WORKER_PROCESSES says."""

import os
import sys

import click

from bin.installation import checked_settings
from bin.serve import require_startable
from bin.supervisor import Supervisor
from storage.logs import configure


@click.command(epilog="Example: riskrelay work\n\nExit codes: 0 stopped, 1 a process died, 2 wrong settings.")
@click.option("--processes", type=click.IntRange(min=1), help="Instead of WORKER_PROCESSES.")
def work(processes: int | None) -> None:
    """Deliver what is due until SIGTERM; what is being sent is finished first."""
    settings = checked_settings()
    require_startable(settings)
    count = processes or settings.worker_processes
    configure(settings.log_level, settings.log_format)
    if count == 1:
        # Here, so that only the process that delivers carries what delivering needs.
        from worker import daemon  # noqa: PLC0415 - see above

        raise SystemExit(daemon.run(settings))
    supervisor = Supervisor(stop_within_s=settings.delivery_timeout_s + 30)
    for number in range(count):
        supervisor.start(f"worker {number + 1}", [sys.executable, *WORK_ALONE], dict(os.environ))
    raise SystemExit(supervisor.run())


WORK_ALONE = ("-P", "-m", "bin", "work", "--processes", "1")
