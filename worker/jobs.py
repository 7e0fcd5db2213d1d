"""The names that RQ calls, one line each; the daemon says what stands behind them."""

from collections.abc import Callable

_deliver_due: Callable[[], None] | None = None


def install(deliver: Callable[[], None]) -> None:
    """Set what a wake-up does in this process."""
    global _deliver_due  # noqa: PLW0603 - RQ finds a job by its module and name, so the module must know
    _deliver_due = deliver


def deliver_due() -> None:
    """Deliver what is due; the job that a wake-up queues."""
    if _deliver_due is None:
        raise RuntimeError("Wake-ups are for `bin/riskrelay work`, not for a plain RQ worker.")
    _deliver_due()
