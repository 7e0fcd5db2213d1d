"""`work`: run the worker daemon in WORKER_PROCESSES processes."""

import os

import click

from bin.cli.installation import daemon_settings
from bin.cli.output import Refused
from bin.commands.installation.serve import require_startable, warn_if_redis_is_unavailable
from bin.processes.supervisor import STOP_GRACE_S, Supervisor
from bin.processes.workers import worker_command
from schemas.settings.definitions import Settings
from schemas.settings.parsers import MAX_PROCESSES


@click.command()
@click.option("--processes", type=click.IntRange(1, MAX_PROCESSES), help="Number of processes, instead of WORKER_PROCESSES.")
def work(processes: int | None) -> None:
    """Run the worker daemon until SIGTERM; running deliveries are finished first.

    Example: riskrelay work

    Exit codes: 0 stopped, 1 a process died, 2 wrong settings.
    """
    settings = daemon_settings()
    require_startable(settings)
    warn_if_redis_is_unavailable(settings)
    count = processes or settings.worker_processes
    command = worker_command(count)
    if not settings.worker_metrics_bind:
        # Replace this process to drop the modules of this command, which a worker does not need.
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted here
    _show_metrics(settings.worker_metrics_bind, settings)
    if count == 1:
        # Imported here, so that the parent process of several does not load it.
        from worker import daemon  # noqa: PLC0415 - see above

        raise SystemExit(daemon.run(settings))
    supervisor = Supervisor(stop_within_s=settings.delivery_timeout_s + STOP_GRACE_S)
    supervisor.start("workers", command, dict(os.environ))
    raise SystemExit(supervisor.run())


def _show_metrics(bind: str, settings: Settings) -> None:
    """Serve the metrics of all worker processes. Raises Refused if the address cannot be bound."""
    # Imported here: most installations expose these metrics through their service.
    from worker.metrics import serve  # noqa: PLC0415 - see above

    try:
        serve(bind, settings.data_dir)
    except OSError as failed:
        raise Refused(f"{bind} cannot be bound: {failed.strerror}; set WORKER_METRICS_BIND to another address.") from None
