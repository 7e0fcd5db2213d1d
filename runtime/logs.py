"""Logs: one JSON object per line, or readable text on a terminal. Only the fields named here are ever written.

Python's warnings and uncaught errors of threads are log lines too, without the messages of the errors.
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
from schemas.base.printable import printable

#: The fields a line may carry. No secret is among them, so none is logged by accident.
FIELDS: Final = (
    "request_id",
    "trace_id",
    "export_id",
    "event_id",
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
#: Messages that RQ logs when Redis is unreachable, besides Redis errors with their tracebacks.
_RQ_IN_OUTAGES: Final = ("could not connect to Redis", "Redis connection timeout")

#: A value that JSON cannot encode is written as its type: no line is lost, and no text of an exception, which is untrusted.
_one_line: Final = json.JSONEncoder(ensure_ascii=False, default=lambda value: type(value).__name__).encode

_access: Final = logging.getLogger("riskrelay.access")
_deliveries: Final = logging.getLogger("riskrelay.deliveries")
_log: Final = logging.getLogger(__name__)

#: Fields of all lines of this thread or greenlet.
_context: ContextVar[Mapping[str, Any]] = ContextVar("context", default=MappingProxyType({}))


def quiet_trace(error: BaseException | None) -> str:
    """Return the traceback with the types of the errors, never their messages: a message may quote submitted data."""
    parts = [
        f"{''.join(traceback.format_tb(each.__traceback__))}{type(each).__module__}.{type(each).__qualname__}"
        for each in chain_of(error)
    ]
    return "\n".join(reversed(parts))


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the error that it was raised from or during, and so on, as in a traceback; in a cycle, each once."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class _FormatterWithoutMessages(logging.Formatter):
    """Formats errors without their messages."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name in logging
        return quiet_trace(ei[1])


class JsonFormatter(_FormatterWithoutMessages):
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
        return printable(_one_line(line))


class TextFormatter(_FormatterWithoutMessages):
    """Formats a record for a person."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in fields_of(record).items())
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return printable(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line, keep="\n")


class _Event(logging.LogRecord):
    """The record of a frequent line at INFO, with its fields in a mapping of their own.

    Creating it takes 1.4 µs; a logger takes 6 µs for a record. Handlers treat it like any other record. With `may_wait`, the
    line is buffered until the next line without it, or until `write_waiting`.
    """

    def __init__(self, logger: str, message: str, fields: Mapping[str, object], may_wait: bool = False) -> None:
        self.__dict__.update(_PLAIN)
        self.name, self.msg, self.fields, self.may_wait, self.created = logger, message, fields, may_wait, unix_now()


#: Attributes that all events share, including those that a newer Python adds to a record.
_PLAIN: Final = vars(logging.makeLogRecord({"levelno": logging.INFO, "levelname": "INFO"}))

#: Logged instead of a line that cannot be formatted.
_UNFORMATTABLE: Final = "a log line could not be formatted"
#: The most lines that may wait: more than a tick of the dispatcher writes, about 80 KB.
_MAX_WAITING: Final = 256
#: The most bytes of a character in UTF-8.
_LONGEST_CHARACTER: Final = 4


class _StandardError(logging.StreamHandler[Any]):
    """Writes to standard error; for a line that cannot be formatted, it logs the logger and not the content."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        #: Waiting lines in order; the next write writes all of them.
        self._waiting: list[str] = []

    def handle(self, record: logging.LogRecord) -> bool:
        """Format a line outside the lock, and write it unless it may wait."""
        try:
            self._waiting.append(self.format(record) + self.terminator)
        except Exception:  # noqa: BLE001 - whatever it is, the error is logged and work goes on
            self.handleError(record)
        if not (isinstance(record, _Event) and record.may_wait) or len(self._waiting) > _MAX_WAITING:
            self.flush()
        return True

    def flush(self) -> None:
        """Write the waiting lines."""
        self.acquire()
        try:
            # Other threads may add lines after these meanwhile.
            lines = self._waiting[:]
            del self._waiting[: len(lines)]
            # A failed write to standard error must not end a thread, and cannot be logged; nor must a nested write end it.
            with suppress(OSError, ValueError, RuntimeError):
                for chunk in _chunks(lines):
                    self.stream.write(chunk)
                    self.stream.flush()
        finally:
            self.release()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in logging
        if record.msg == _UNFORMATTABLE:
            return  # not even this line: there is nowhere to log it
        error = type(sys.exc_info()[1]).__name__
        plain = {"name": record.name, "levelname": "ERROR", "levelno": logging.ERROR, "msg": _UNFORMATTABLE, "error": error}
        self.handle(logging.makeLogRecord(plain))


def configure(level: str, form: str) -> None:
    """Send this process's logs to standard error; `form` is `json`, `text`, or `auto`: text on a terminal."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    # No line names a thread, a process or a place in the source; finding them out costs as much as writing the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # the name that logging's own documentation gives for it
    handler = _StandardError(sys.stderr)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # RQ logs at INFO and DEBUG what our own lines contain already, and an outage of Redis every second, with its address.
    for noisy in ("rq", "rq.worker", "rq.job"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("rq.worker").addFilter(_is_no_outage)
    _silence_quoting_loggers()
    _log_uncaught_errors()


def quote_nothing() -> None:
    """Keep data out of the log lines of a command, which does not call `configure`: cron mails its standard error."""
    _silence_quoting_loggers()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_FormatterWithoutMessages())


def set_context(**fields: object) -> None:
    """Set the fields that every later line of this thread or greenlet carries; replaces earlier ones. None omits a field."""
    _context.set(fields)


def add_context(**fields: object) -> None:
    """Add fields to all lines of this thread or greenlet."""
    _context.set({**_context.get(), **fields})


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record: its own and those of its thread's context, as far as FIELDS names them."""
    own = record.fields if isinstance(record, _Event) else vars(record)
    known = {**_context.get(), **own}
    return {name: known[name] for name in FIELDS if known.get(name) is not None}


def known_method(method: str) -> str:
    """Return a request's method, or `_OTHER` for a method that HTTP does not define: that is any text of the client."""
    return method if method in _METHODS else "_OTHER"


def access_log(
    method: str, route: str | None, status: int, duration_ms: float, request_id: str, caller: str | None = None
) -> None:
    """Log one request: the route's template, never the client's path.

    `caller` is the authenticated caller, as the audit log names it; None without authentication.
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
    """Log one attempt that has ended; its ids are in the thread's context.

    The line is buffered until `write_waiting`, which the dispatcher calls every tick: 10 µs per attempt instead of 20.
    """
    if not _deliveries.isEnabledFor(logging.INFO):
        return
    fields = {"outcome": outcome, "status": status, "error": error, "duration_ms": duration_ms}
    _deliveries.handle(_Event(_deliveries.name, f"attempt ended: {outcome}", fields, may_wait=True))


def write_waiting() -> None:
    """Write the waiting lines of attempts; the end of the process writes them anyway."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def log_crash(error: BaseException | None, trace: TracebackType | None) -> None:
    """Log that an error ended a thread, a greenlet or the process."""
    _log.critical("ended by an error", exc_info=None if error is None else (type(error), error, trace))


def _chunks(lines: Sequence[str]) -> Iterator[str]:
    """Join lines up to the size that a pipe with several writers keeps in one piece."""
    chunk, size = "", 0
    for line in lines:
        length = len(line) * (1 if line.isascii() else _LONGEST_CHARACTER)
        if chunk and size + length > PIPE_BUF:
            yield chunk
            chunk, size = "", 0
        chunk, size = chunk + line, size + length
    if chunk:
        yield chunk


def _is_no_outage(record: logging.LogRecord) -> bool:
    """Return False for RQ's lines about an outage of Redis: the worker logs the start and the end of an outage."""
    from redis.exceptions import RedisError  # noqa: PLC0415 - most commands need no Redis; where RQ logs, it is imported

    error = None if record.exc_info is None else record.exc_info[1]
    return not (isinstance(error, RedisError) or any(each in str(record.msg) for each in _RQ_IN_OUTAGES))


def _silence_quoting_loggers() -> None:
    # Warnings of urllib3 contain the address and response headers; the others quote their servers.
    for quoting in ("urllib3", "sentry_sdk", "opentelemetry", "psycopg"):
        logging.getLogger(quoting).setLevel(logging.CRITICAL)


def _log_uncaught_errors() -> None:
    """Log uncaught errors and warnings. Python would print them in another format and with the messages of errors."""
    sys.excepthook = lambda _kind, error, trace: log_crash(error, trace)
    threading.excepthook = _log_crash_of_thread
    sys.unraisablehook = lambda met: log_crash(met.exc_value, met.exc_traceback)
    # Not the message, which may quote submitted data.
    warnings.showwarning = lambda message, category, filename, lineno, file=None, line=None: _log.warning(  # noqa: ARG005 - see above
        "%s at %s:%s", category.__name__, filename, lineno
    )


def _log_crash_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:  # which ends a thread normally
        log_crash(ended.exc_value, ended.exc_traceback)
