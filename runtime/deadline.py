"""A limit of time for a request as a whole."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def within(deadline_s: float, call: Callable[[], Result]) -> Result:
    """Return the result of a call. Raises TimeoutError after the deadline.

    Timeouts of sockets limit each read alone: a DNS lookup, or a header that arrives byte by byte, outlasts all of them.
    """
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as failed:  # noqa: BLE001 - raised again in the thread that waits
            result.set_exception(failed)

    # A daemon: a server that never ends its response does not keep the process from ending.
    threading.Thread(target=run, daemon=True).start()
    return result.result(deadline_s)
