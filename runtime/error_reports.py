"""Unexpected errors, reported to a Sentry where SENTRY_DSN names one: of which kinds, and where; never in their words.

A handler of the logs, so that nothing else needs to know: what is logged with its traceback at ERROR is reported. A report
is built here from nothing but names: kinds of errors, frames (file, function, line), our ids. No message, no variable, no
request, nothing that went before. Without a DSN Sentry's client is not imported. A Sentry that is slow or away costs
reports, never time.
"""

import atexit
import logging
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from runtime import logs
from schemas.settings.definitions import Settings
from schemas.version import VERSION

if TYPE_CHECKING:
    from runtime.sentry import Sentry

#: An error that comes with every request must not use up in an hour what a Sentry takes in a month.
PER_MINUTE: Final = 30
#: A recursion has a thousand frames; its first and its last ones tell the story.
FRAMES: Final = 60
#: Errors that were raised while others were handled.
CHAIN: Final = 10

#: Fields of a log line by which errors are found again.
_TAGS: Final = ("request_id", "trace_id", "export_id", "attempt_id", "target_id")
#: What these log may be about the way to Sentry, and would come back as the next report.
_OTHERS: Final = frozenset({"sentry_sdk", "urllib3", "opentelemetry"})

_ROOT: Final = Path(__file__).resolve().parent.parent

_log: Final = logging.getLogger(__name__)

_reports: "_Reports | None" = None


def configure(settings: Settings, role: str) -> None:
    """Report this process's errors from now on, if a DSN is set; `role` is `service` or `worker`. After `logs.configure`.

    Raises ModuleNotFoundError where the package of the extra `sentry` is not installed.
    """
    global _reports  # noqa: PLW0603 - as logs: of one process, to one place
    if settings.sentry_dsn is None:
        return
    from runtime.sentry import Sentry  # noqa: PLC0415 - it needs a package that only the extra brings

    _reports = _Reports(Sentry(settings.sentry_dsn, f"riskrelay@{VERSION}", settings.deployment_mode.value), role)
    logging.getLogger().addHandler(_reports)
    # The error that ends a process is the one to hear of.
    atexit.register(close)


def close() -> None:
    """Send what waits, for a moment at most, and report nothing more."""
    global _reports
    reports, _reports = _reports, None
    if reports is not None:
        logging.getLogger().removeHandler(reports)
        reports.close()


class _Reports(logging.Handler):
    """Makes a report of each record that is an error with a traceback."""

    def __init__(self, sentry: "Sentry", role: str) -> None:
        super().__init__(logging.ERROR)
        self._sentry = sentry
        self._role = role
        self._minute = 0
        self._reported = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Report one record; logging lets in one thread at a time."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.name.partition(".")[0] in _OTHERS or not self._may_report():
            return
        try:
            self._sentry.send(_report(record, error, self._role))
        except Exception as broken:  # noqa: BLE001 - the line about the error itself is written, and work goes on
            _log.warning("an error could not be reported", extra={"error": type(broken).__name__})

    def close(self) -> None:
        """Wait for what is on its way, for a moment."""
        self._sentry.close()
        super().close()

    def _may_report(self) -> bool:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._reported = minute, 0
        self._reported += 1
        return self._reported <= PER_MINUTE


def _report(record: logging.LogRecord, error: BaseException, role: str) -> dict[str, Any]:
    fields = logs.fields_of(record)
    return {
        "level": "fatal" if record.levelno >= logging.CRITICAL else "error",
        "logger": record.name,
        # The first cause first, as Sentry reads it.
        "exception": {"values": [_told(each) for each in _chain(error)][::-1]},
        "tags": {"role": role, **{name: str(fields[name]) for name in _TAGS if name in fields}},
    }


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from or during, as a traceback would show them."""
    told: BaseException | None = error
    for _ in range(CHAIN):
        if told is None:
            return
        yield told
        told = told.__cause__ or (None if told.__suppress_context__ else told.__context__)


def _told(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    return {"type": kind.__qualname__, "module": kind.__module__, "stacktrace": {"frames": _frames(error.__traceback__)}}


def _frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    frames = [_frame(frame.f_code.co_filename, frame.f_code.co_name, line) for frame, line in traceback.walk_tb(trace)]
    return frames if len(frames) <= FRAMES else frames[: FRAMES // 2] + frames[-FRAMES // 2 :]


def _frame(path: str, function: str, line: int | None) -> dict[str, Any]:
    """Return a frame with its path as it is the same on every machine."""
    library = path.rpartition("/site-packages/")[2]
    if library != path:
        return {"filename": library, "function": function, "lineno": line, "in_app": False}
    is_ours = path.startswith(f"{_ROOT}/")
    filename = path.removeprefix(f"{_ROOT}/") if is_ours else "/".join(path.split("/")[-2:])
    return {"filename": filename, "function": function, "lineno": line, "in_app": is_ours}
