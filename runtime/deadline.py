"""A time limit for a whole request."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def within(deadline_s: float, call: Callable[[], Result]) -> Result:
    """Return the result of a call. Raises TimeoutError after the deadline.

    Timeouts of sockets limit only each single read: a DNS lookup, or a header that arrives byte by byte, can take longer.
    """
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as failed:  # noqa: BLE001 - raised again in the thread that waits
            result.set_exception(failed)

    # A daemon thread: a server that never ends its response must not keep the process running.
    threading.Thread(target=run, daemon=True).start()
    return result.result(deadline_s)
