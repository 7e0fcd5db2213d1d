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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from select import PIPE_BUF
from types import MappingProxyType, TracebackType
from typing import Any, Final, TextIO

from runtime.clock import unix_now

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
    "caller",
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


def quiet_trace(error: BaseException | None) -> str:
    """Return where it broke and by which kinds of error, never their messages: a message may quote what was submitted."""
    told: list[str] = []
    while error is not None:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        told.append("".join(traceback.format_tb(error.__traceback__)) + kind)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(reversed(told))


class _QuietTraces(logging.Formatter):
    """Tells errors without their words."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as logging names it
        return quiet_trace(ei[1])


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


class _Event(logging.LogRecord):
    """The record of a line that is written very often, at INFO; its fields stand apart, so that they are found at once.

    To make one takes 1.4 µs, where a logger takes 6. Every handler reads it like any other record. One that `may_wait` is
    written with the next line that may not, or by `write_waiting`.
    """

    def __init__(self, logger: str, message: str, fields: Mapping[str, object], may_wait: bool = False) -> None:
        self.__dict__.update(_PLAIN)
        self.name, self.msg, self.fields, self.may_wait, self.created = logger, message, fields, may_wait, unix_now()


#: What the records of events have in common; whatever a version of Python adds to a record is among it.
_PLAIN: Final = vars(logging.makeLogRecord({"levelno": logging.INFO, "levelname": "INFO"}))

#: What stands in for a line whose words and values do not fit each other.
_UNFORMED: Final = "a line could not be formed"
#: Lines that may wait: more than a tick of the drain has, some 80 KB.
_MOST_WAITING: Final = 256
#: Bytes of a character in UTF-8.
_LONGEST_CHARACTER: Final = 4


class _StandardError(logging.StreamHandler[Any]):
    """Writes to standard error; of a line that cannot be formed it tells whose it was and not what it held."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        #: Lines in their order; whoever writes one writes all that wait.
        self._waiting: list[str] = []

    def handle(self, record: logging.LogRecord) -> bool:
        """Form a line, with no other thread waiting for it, and write it unless it may wait."""
        try:
            self._waiting.append(self.format(record) + self.terminator)
        except Exception:  # noqa: BLE001 - whatever it is, the line is told of and work goes on
            self.handleError(record)
        if not (isinstance(record, _Event) and record.may_wait) or len(self._waiting) > _MOST_WAITING:
            self.flush()
        return True

    def flush(self) -> None:
        """Write what waits."""
        self.acquire()
        try:
            # What is added meanwhile stands behind.
            lines = self._waiting[:]
            del self._waiting[: len(lines)]
            # A standard error that takes nothing ends nobody, and there is nowhere to say so; nor from within a write.
            with suppress(OSError, ValueError, RuntimeError):
                for together in _in_writes(lines):
                    self.stream.write(together)
                    self.stream.flush()
        finally:
            self.release()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging names it
        if record.msg == _UNFORMED:
            # Not even this: there is nowhere to say so.
            return
        kind = type(sys.exc_info()[1]).__name__
        told = {"name": record.name, "levelname": "ERROR", "levelno": logging.ERROR, "msg": _UNFORMED, "error": kind}
        self.handle(logging.makeLogRecord(told))


def _in_writes(lines: Sequence[str]) -> Iterator[str]:
    """Put lines together as far as a pipe that several processes write to keeps them whole."""
    together, size = "", 0
    for line in lines:
        length = len(line) * (1 if line.isascii() else _LONGEST_CHARACTER)
        if together and size + length > PIPE_BUF:
            yield together
            together, size = "", 0
        together, size = together + line, size + length
    if together:
        yield together


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
    # urllib3 warns with the address it asked and with headers of the answer; the others quote what their servers said.
    for quoting in ("urllib3", "sentry_sdk", "opentelemetry", "psycopg"):
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
    own = record.fields if isinstance(record, _Event) else vars(record)
    known = {**_concerns.get(), **own}
    return {name: known[name] for name in FIELDS if known.get(name) is not None}


def known_method(method: str) -> str:
    """Return a request's method, or `_OTHER` for one that HTTP does not name: that is the client's own word."""
    return method if method in _METHODS else "_OTHER"


def access_log(
    method: str, route: str | None, status: int, duration_ms: float, request_id: str, caller: str | None = None
) -> None:
    """Write one line for one answered request: the route's template, never what the client filled in.

    `caller` is who was known by a credential, as the audit trail names them; None where nobody was.
    """
    if not _access.isEnabledFor(logging.INFO):
        return
    method = known_method(method)
    fields = {
        "request_id": request_id,
        "caller": caller,
        "method": method,
        "route": route,
        "status": status,
        "duration_ms": duration_ms,
    }
    _access.handle(_Event(_access.name, f"{method} {route} {status}", fields))


def delivery_log(outcome: str, status: int | None, error: str | None, duration_ms: int) -> None:
    """Write one line for one attempt that has ended; its ids are what the thread is at (`concern`).

    It waits for `write_waiting`, which whoever makes attempts calls with every tick: 10 µs less an attempt, of 20.
    """
    if not _deliveries.isEnabledFor(logging.INFO):
        return
    fields = {"outcome": outcome, "status": status, "error": error, "duration_ms": duration_ms}
    _deliveries.handle(_Event(_deliveries.name, f"attempt ended: {outcome}", fields, may_wait=True))


def write_waiting() -> None:
    """Write the lines of attempts that wait; at the end of a process they are written anyway."""
    for handler in logging.getLogger().handlers:
        handler.flush()


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
