"""The RQ job that the service queues by name after a commit.

In `bin/riskrelay work` it wakes the running dispatcher. In any other RQ worker it opens settings and database itself.
"""

from collections.abc import Callable

_on_wake_up: Callable[[], None] | None = None


def install(on_wake_up: Callable[[], None]) -> None:
    """Set the function that the job runs in this process."""
    global _on_wake_up  # noqa: PLW0603 - RQ finds a job by its module and name, so the module must keep it
    _on_wake_up = on_wake_up


def deliver_due() -> None:
    """Deliver due exports until none is left or a time slice is over; the next job continues."""
    if _on_wake_up is not None:
        _on_wake_up()
        return
    # Imported here, because it imports the whole worker. A daemon, which returns above, has loaded it already.
    from worker.standalone import deliver  # noqa: PLC0415 - see above

    deliver()
