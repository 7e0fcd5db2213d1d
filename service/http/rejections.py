"""Records the newest rejected request of each inbound source, so that an operator sees why nothing arrives.

Recording adds one entry in memory for a rejected request, costs an accepted request nothing, and keeps no submitted value. A
thread writes the first rejection at once, then the newest rejection of each source at most every PAUSE_S seconds. While the
database is down or locked, the newest rejections wait, and no request waits for them. Rejections that are not yet written
when the process ends are lost.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.base.errors import RiskRelayError
from schemas.intake.sources import InboundSource, RejectedField, Rejection
from storage.db.engine import OUTAGES
from storage.intake import rejections

#: Soon enough for an operator who tests a sender, and little load in a flood of requests: one write of a few rows.
PAUSE_S: Final = 3.0
#: A body can have thousands of problems; the first ones show what is wrong with the sender.
MAX_REPORTED_PROBLEMS: Final = 10
#: Codes for an unknown path or method. These requests do not count as rejections of a source.
_UNRELATED_CODES: Final = frozenset({"NOT_FOUND", "METHOD_NOT_ALLOWED"})

_log: Final = logging.getLogger(__name__)


class RejectionRecorder:
    """Keeps the newest rejection of each source until it is written; nothing is written before `start`."""

    def __init__(self, pause_s: float = PAUSE_S) -> None:
        self._pause_s = pause_s
        self._sources: dict[str, InboundSource] = {}
        self._newest: dict[InboundSource, Rejection] = {}
        self._lock = threading.Lock()
        self._has_new = threading.Event()
        #: Whether the next rejection must start the thread.
        self._starts = False

    def watch(self, resources: Iterable[Any]) -> None:
        """Record rejections of the resources that have a `source`."""
        self._sources = {each.path: each.source for each in resources if getattr(each, "source", None)}

    def record(self, req: falcon.Request, error: RiskRelayError, status: int) -> None:
        """Record why a source's request was rejected; never waits and never fails."""
        source = self._sources.get(req.uri_template or "")
        if source is None or error.code in _UNRELATED_CODES:
            return
        rejection = Rejection(source, utc_now(), status, error.code, _rejected_fields(req, error), req.context.request_id)
        with self._lock:
            self._newest[source] = rejection
            starts, self._starts = self._starts, False
        self._has_new.set()
        if starts:
            threading.Thread(target=self._write_forever, name="rejections", daemon=True).start()

    def start(self) -> None:
        """Enable writing in this process, and in the processes that it forks before the first rejection."""
        # The thread starts later, because a fork would not copy it to the child.
        self._starts = True

    def write(self) -> bool:
        """Write the rejections that were recorded since the last call; return whether that succeeded."""
        with self._lock:
            taken, self._newest = self._newest, {}
            self._has_new.clear()
        try:
            rejections.record(taken.values())
        except OUTAGES:
            # Other queries already log the outage. Logging it here would repeat the message at every interval.
            with self._lock:
                self._newest = {**taken, **self._newest}
            self._has_new.set()
            return False
        return True

    def _write_forever(self) -> None:
        while True:
            self._has_new.wait()
            try:
                self.write()
            except Exception as failed:  # noqa: BLE001 - the thread must survive any error: rejections are recorded again
                _log.error("rejections are not written", exc_info=failed)
            time.sleep(self._pause_s)


def _rejected_fields(req: falcon.Request, error: RiskRelayError) -> tuple[RejectedField, ...]:
    fault: RejectedField | None = req.context.get("fault")
    if fault is not None:
        return (fault,)
    return tuple(RejectedField(each.path, each.code) for each in error.problems[:MAX_REPORTED_PROBLEMS])
