"""Logs: one JSON object a line, or a readable line on a terminal. Only fields that are named here are ever written.

Whatever a process says on standard error once it logs is such a line: Python's warnings and the end of a thread by an error
too, without the words of the error.
"""

import json
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Final, TextIO

#: The extra fields a line may carry. A secret has no name here, so it cannot be logged by accident.
FIELDS: Final = (
    "request_id",
    "trace_id",
    "export_id",
    "attempt_id",
    "target_id",
    "attempt",
    "outcome",
    "reason",
    "method",
    "route",
    "status",
    "duration_ms",
    "worker",
    "pid",
    "error",
    "count",
    "step_s",
)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})

#: Of what JSON does not know the type is told: a line is never lost, and an exception's text is not trusted.
_one_line: Final = json.JSONEncoder(ensure_ascii=False, default=lambda value: type(value).__name__).encode

_access: Final = logging.getLogger("riskrelay.access")
_deliveries: Final = logging.getLogger("riskrelay.deliveries")
_log: Final = logging.getLogger(__name__)

#: What this thread or greenlet is at.
_concerns: ContextVar[Mapping[str, Any]] = ContextVar("concerns", default=MappingProxyType({}))


class _QuietTraces(logging.Formatter):
    """Tells where it broke and by which kinds of error, never their messages: a message may quote what was submitted."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as logging names it
        told: list[str] = []
        error: BaseException | None = ei[1]
        while error is not None:
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            told.append("".join(traceback.format_tb(error.__traceback__)) + kind)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(reversed(told))


class JsonLines(_QuietTraces):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return _one_line(line)


class TextLines(_QuietTraces):
    """Formats a record for a person."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in fields_of(record).items())
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


#: What stands in for a line whose words and values do not fit each other.
_UNFORMED: Final = "a line could not be formed"


class _StandardError(logging.StreamHandler[Any]):
    """Writes to standard error; of a line that cannot be formed it tells whose it was and not what it held."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging names it
        if record.msg == _UNFORMED:
            # Standard error itself takes nothing: there is nowhere to say so.
            return
        kind = type(sys.exc_info()[1]).__name__
        told = {"name": record.name, "levelname": "ERROR", "levelno": logging.ERROR, "msg": _UNFORMED, "error": kind}
        self.handle(logging.makeLogRecord(told))


def configure(level: str, form: str) -> None:
    """Send this process's logs to standard error; `form` is `json`, `text`, or `auto`: text on a terminal."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    # No line names a thread, a process or a place in the source, and to find them out costs as much as to write the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # the name that logging's own documentation gives for it
    handler = _StandardError(sys.stderr)
    handler.setFormatter(TextLines() if as_text else JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # RQ tells at INFO and DEBUG what stands in our own lines already.
    for noisy in ("rq", "rq.worker", "rq.job"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # urllib3 warns with the address it asked and with headers of the answer; the other two quote what their servers said.
    for quoting in ("urllib3", "sentry_sdk", "opentelemetry"):
        logging.getLogger(quoting).setLevel(logging.CRITICAL)
    _tell_what_python_would_print()


def concern(**fields: object) -> None:
    """Let every line of this thread or greenlet carry these fields from now on, and no earlier ones; None leaves one out."""
    _concerns.set(fields)


def also_concern(**fields: object) -> None:
    """Let every line of this thread or greenlet carry these fields as well."""
    _concerns.set({**_concerns.get(), **fields})


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record says beside its words: its own fields and those of what its thread is at, named ones alone."""
    concerns = _concerns.get()
    known = {**concerns, **vars(record)} if concerns else vars(record)
    return {name: known[name] for name in FIELDS if known.get(name) is not None}


def known_method(method: str) -> str:
    """Return a request's method, or `_OTHER` for one that HTTP does not name: that is the client's own word."""
    return method if method in _METHODS else "_OTHER"


def access_log(method: str, route: str | None, status: int, duration_ms: float, request_id: str) -> None:
    """Write one line for one answered request: the route's template, never what the client filled in."""
    if not _access.isEnabledFor(logging.INFO):
        return
    method = known_method(method)
    fields = {"method": method, "route": route, "status": status, "duration_ms": duration_ms, "request_id": request_id}
    _access.info("%s %s %s", method, route, status, extra=fields)


def delivery_log(outcome: str, status: int | None, error: str | None, duration_ms: int) -> None:
    """Write one line for one attempt that has ended; its ids are what the thread is at (`concern`)."""
    if not _deliveries.isEnabledFor(logging.INFO):
        return
    fields = {"outcome": outcome, "status": status, "error": error, "duration_ms": duration_ms}
    _deliveries.info("attempt ended: %s", outcome, extra=fields)


def tell_end(error: BaseException | None, trace: TracebackType | None) -> None:
    """Log that an error ended a thread, a greenlet or the process."""
    _log.critical("ended by an error", exc_info=None if error is None else (type(error), error, trace))


def _tell_what_python_would_print() -> None:
    """Log what would stand on standard error otherwise: in another form, and with the words of errors."""
    sys.excepthook = lambda _kind, error, trace: tell_end(error, trace)
    threading.excepthook = _tell_end_of_thread
    sys.unraisablehook = lambda met: tell_end(met.exc_value, met.exc_traceback)
    warnings.showwarning = _tell_warning


def _tell_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:  # which ends a thread in order
        tell_end(ended.exc_value, ended.exc_traceback)


def _tell_warning(
    message: Warning | str,  # noqa: ARG001 - it may quote what was submitted
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001 - Python hands it over
    line: str | None = None,  # noqa: ARG001 - Python hands it over
) -> None:
    _log.warning("%s at %s:%s", category.__name__, filename, lineno)
