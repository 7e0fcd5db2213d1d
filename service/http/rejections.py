"""What inbound sources are refused is noted for the operator, so that whoever sets a sender up sees why nothing comes in.

To note costs a refused request a word in memory and an accepted one nothing, and keeps nothing that was submitted. A thread
of its own writes: at once, then no sooner than PAUSE_S later, and then the newest of each source alone. What comes between
two writes is never stored, however much of it comes. While the database is away or locked the newest waits, and nobody for
it; what waits when the process ends is lost.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.base.errors import RiskRelayError
from schemas.intake.sources import InboundSource, RejectedField, Rejection, rejected_fields
from storage.db.engine import OUTAGES
from storage.intake import rejections

#: Soon enough for somebody who tries a sender out, and no load in a flood: a write of a few rows.
PAUSE_S: Final = 3.0
#: A body may have thousands of problems; the first of them tell what is wrong with its sender.
MAX_REPORTED_PROBLEMS: Final = 10
#: Whoever asks for what is not there was not refused as a sender.
_OF_NOBODY: Final = frozenset({"NOT_FOUND", "METHOD_NOT_ALLOWED"})

_log: Final = logging.getLogger(__name__)


class RejectionRecorder:
    """Keeps the newest refusal of each source until it is written; nothing is written before `begin`."""

    def __init__(self, pause_s: float = PAUSE_S) -> None:
        self._pause_s = pause_s
        self._sources: dict[str, InboundSource] = {}
        self._newest: dict[InboundSource, Rejection] = {}
        self._lock = threading.Lock()
        self._noted = threading.Event()

    def watch(self, resources: Iterable[Any]) -> None:
        """Take note of the routes of those resources that say which `source` they serve."""
        self._sources = {each.path: each.source for each in resources if hasattr(each, "source")}

    def note(self, req: falcon.Request, error: RiskRelayError, status: int) -> None:
        """Note why a request is refused, where it is a source's; never waits and never fails."""
        source = self._sources.get(req.uri_template or "")
        if source is None or error.code in _OF_NOBODY:
            return
        told = Rejection(source, utc_now(), status, error.code, _troubles(req, error), req.context.request_id)
        with self._lock:
            self._newest[source] = told
        self._noted.set()

    def start(self) -> None:
        """Write from now on, for as long as the process lives."""
        threading.Thread(target=self._write_for_ever, name="refusals", daemon=True).start()

    def write(self) -> bool:
        """Write what was noted since the last time; tell whether it could be."""
        with self._lock:
            taken, self._newest = self._newest, {}
            self._noted.clear()
        try:
            rejections.record(taken.values())
        except OUTAGES:
            # Whoever asks the database meanwhile says so in the log; here it would be said again with every pause.
            with self._lock:
                self._newest = {**taken, **self._newest}
            self._noted.set()
            return False
        return True

    def _write_for_ever(self) -> None:
        while True:
            self._noted.wait()
            try:
                self.write()
            except Exception as failed:  # noqa: BLE001 - refusals are noted again after any slip, and nobody else would tell of it
                _log.error("refusals are not written", exc_info=failed)
            time.sleep(self._pause_s)


def _troubles(req: falcon.Request, error: RiskRelayError) -> tuple[RejectedField, ...]:
    fault: RejectedField | None = req.context.get("fault")
    return rejected_fields(error.problems[:MAX_REPORTED_PROBLEMS]) if fault is None else (fault,)
