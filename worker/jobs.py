"""The names that RQ calls, one line each; the daemon says what stands behind them."""

from collections.abc import Callable

_deliver_due: Callable[[], None] | None = None


def install(deliver: Callable[[], None]) -> None:
    """Say what a ring does in this process."""
    global _deliver_due  # noqa: PLW0603 - RQ finds a job by its module and name, so the module must know
    _deliver_due = deliver


def deliver_due() -> None:
    """Deliver what is due; this is what a ring names."""
    if _deliver_due is None:
        raise RuntimeError("Rings are answered by `bin/riskrelay work`, not by a bare RQ worker.")
    _deliver_due()
