"""Logs: one JSON object a line, or a readable line on a terminal. Only fields that are named here are ever written."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Final

#: The extra fields a line may carry. A secret has no name here, so it cannot be logged by accident.
FIELDS: Final = (
    "request_id",
    "export_id",
    "attempt_id",
    "target_id",
    "method",
    "route",
    "status",
    "duration_ms",
    "worker",
    "pid",
    "error",
    "count",
)

#: Of what JSON does not know the type is told: a line is never lost, and an exception's text is not trusted.
_one_line: Final = json.JSONEncoder(ensure_ascii=False, default=lambda value: type(value).__name__).encode

_access: Final = logging.getLogger("riskrelay.access")


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
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return _one_line(line)


class TextLines(_QuietTraces):
    """Formats a record for a person."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(level: str, form: str) -> None:
    """Send this process's logs to standard error; `form` is `json`, `text`, or `auto`: text on a terminal."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines() if as_text else JsonLines())
    # No line names a thread, a process or a place in the source, and to find them out costs as much as to write the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # the name that logging's own documentation gives for it
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # urllib3 and RQ tell at INFO and DEBUG what stands in our own lines already.
    for noisy in ("urllib3", "rq", "rq.worker", "rq.job"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def access_log(method: str, route: str | None, status: int, duration_ms: float, request_id: str) -> None:
    """Write one line for one answered request: the route's template, never what the client filled in."""
    if not _access.isEnabledFor(logging.INFO):
        return
    fields = {"method": method, "route": route, "status": status, "duration_ms": duration_ms, "request_id": request_id}
    _access.info("%s %s %s", method, route, status, extra=fields)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    known = vars(record)
    return {name: known[name] for name in FIELDS if known.get(name) is not None}
