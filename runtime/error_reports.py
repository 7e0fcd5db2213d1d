"""Reports unexpected errors to Sentry if SENTRY_DSN is set: their types and places, never their messages.

A log handler: every record at ERROR with a traceback is reported. A report consists of names only: types of errors, frames
(file, function, line), our ids. No message, no variable, no request, no breadcrumbs. Without a DSN Sentry's client is not
imported. A slow or unavailable Sentry loses reports and delays nothing.
"""

import atexit
import logging
import time
import traceback
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from runtime import logs
from schemas.settings.definitions import Settings
from schemas.version import VERSION

if TYPE_CHECKING:
    from sentry_sdk import Client

#: How long a stopping process waits for its last reports.
STOP_WITHIN_S: Final = 2.0
#: An error in every request must not use up a month's quota of Sentry in an hour.
PER_MINUTE: Final = 30
#: A recursion has a thousand frames; its first and last ones are enough.
FRAMES: Final = 60
#: Chained errors in one report.
CHAIN: Final = 10

#: Fields of a log line that a report carries as tags.
_TAGS: Final = ("request_id", "trace_id", "export_id", "attempt_id", "target_id")
#: Loggers of the connection to Sentry itself: a report of their errors would cause the next error.
_EXCLUDED: Final = frozenset({"sentry_sdk", "urllib3", "opentelemetry"})

_ROOT: Final = Path(__file__).resolve().parent.parent

_log: Final = logging.getLogger(__name__)

_reports: "_Reports | None" = None


def configure(settings: Settings, role: str) -> None:
    """Report this process's errors from now on if a DSN is set; `role` is `service` or `worker`.

    Call it after `logs.configure`. Raises ModuleNotFoundError if the package of the extra `sentry` is not installed.
    """
    global _reports  # noqa: PLW0603 - one per process, like the configuration of logs
    if settings.sentry_dsn is None:
        return
    from runtime.sentry import sentry_client  # noqa: PLC0415 - it needs a package that only the extra installs

    _reports = _Reports(sentry_client(settings.sentry_dsn, f"riskrelay@{VERSION}", settings.deployment_mode.value), role)
    logging.getLogger().addHandler(_reports)
    # Send the last reports at exit: the error that ends a process matters most.
    atexit.register(close)


def close() -> None:
    """Send waiting reports, within STOP_WITHIN_S, and report nothing more."""
    global _reports
    reports, _reports = _reports, None
    if reports is not None:
        logging.getLogger().removeHandler(reports)
        reports.close()


class _Reports(logging.Handler):
    """Reports each record that is an error with a traceback."""

    def __init__(self, sentry: "Client", role: str) -> None:
        super().__init__(logging.ERROR)
        self._sentry = sentry
        self._role = role
        self._minute = 0
        self._reported = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Report one record; logging calls it from one thread at a time."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.name.partition(".")[0] in _EXCLUDED or not self._may_report():
            return
        try:
            self._sentry.capture_event(_report(record, error, self._role))
        except Exception as broken:  # noqa: BLE001 - the error itself is logged, and work goes on
            _log.warning("an error could not be reported", extra={"error": type(broken).__name__})

    def close(self) -> None:
        """Wait briefly for reports that are being sent."""
        self._sentry.close(timeout=STOP_WITHIN_S)
        super().close()

    def _may_report(self) -> bool:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._reported = minute, 0
        self._reported += 1
        return self._reported <= PER_MINUTE


def _report(record: logging.LogRecord, error: BaseException, role: str) -> Any:
    fields = logs.fields_of(record)
    return {
        "level": "fatal" if record.levelno >= logging.CRITICAL else "error",
        "logger": record.name,
        # Sentry expects the first cause first.
        "exception": {"values": [_exception(each) for each in islice(logs.chain_of(error), CHAIN)][::-1]},
        "tags": {"role": role, **{name: str(fields[name]) for name in _TAGS if name in fields}},
    }


def _exception(error: BaseException) -> dict[str, Any]:
    error_type = type(error)
    frames = _frames(error.__traceback__)
    return {"type": error_type.__qualname__, "module": error_type.__module__, "stacktrace": {"frames": frames}}


def _frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    frames = [_frame(frame.f_code.co_filename, frame.f_code.co_name, line) for frame, line in traceback.walk_tb(trace)]
    return frames if len(frames) <= FRAMES else frames[: FRAMES // 2] + frames[-FRAMES // 2 :]


def _frame(path: str, function: str, line: int | None) -> dict[str, Any]:
    """Return a frame, with a path that is the same on every machine."""
    library = path.rpartition("/site-packages/")[2]
    if library != path:
        return {"filename": library, "function": function, "lineno": line, "in_app": False}
    is_ours = path.startswith(f"{_ROOT}/")
    filename = path.removeprefix(f"{_ROOT}/") if is_ours else "/".join(path.split("/")[-2:])
    return {"filename": filename, "function": function, "lineno": line, "in_app": is_ours}
