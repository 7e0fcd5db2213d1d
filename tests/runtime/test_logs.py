"""Logs: one line per record, on standard error, with only the fields that the code lists."""

import ast
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from select import PIPE_BUF
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import Any, Final

import pytest

from runtime.logs import FIELDS, JsonFormatter, TextFormatter, access_log, add_context, chain_of, set_context
from schemas.exports.state_machine import ExportStatus

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logger(stream: io.StringIO) -> Iterator[logging.Logger]:
    """A logger that writes JSON lines to the stream only."""
    chosen = logging.getLogger("riskrelay.test")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    chosen.addHandler(handler)
    chosen.propagate = False
    chosen.setLevel(logging.INFO)
    yield chosen
    chosen.removeHandler(handler)


def only_line(stream: io.StringIO) -> dict[str, Any]:
    [line, rest] = stream.getvalue().split("\n")
    assert rest == ""
    logged: dict[str, Any] = json.loads(line)
    return logged


def test_only_listed_fields_are_logged(logger: logging.Logger, stream: io.StringIO) -> None:
    extra = {"export_id": "exp_1", "secret": "hunter2", "token": "rrt_x", "authorization": "Bearer x", "status": 200}
    logger.info("sent", extra=extra)
    logged = only_line(stream)
    assert logged.pop("at").endswith("+00:00")
    assert logged == {"level": "info", "logger": "riskrelay.test", "message": "sent", "export_id": "exp_1", "status": 200}


def test_every_field_used_in_the_code_is_listed() -> None:
    lost = {
        f"{path.relative_to(ROOT)}: {key.value!r}"
        for folder in ("bin", "runtime", "service", "storage", "worker")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "extra" and isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if isinstance(key, ast.Constant) and key.value not in FIELDS
    }
    assert lost == set()


def test_no_log_field_has_the_name_of_a_secret() -> None:
    assert not {"secret", "token", "authorization", "cookie", "body", "headers", "url", "path", "query", "password"} & {
        *FIELDS
    }


def test_a_record_is_one_line_even_if_it_contains_line_breaks(logger: logging.Logger, stream: io.StringIO) -> None:
    logger.warning("first\nsecond \u2028 é", extra={"error": "a\r\nb", "count": 0})
    logged = only_line(stream)
    assert (logged["message"], logged["error"], logged["count"]) == ("first\nsecond \u2028 é", "a\r\nb", 0)


def test_a_value_that_json_cannot_encode_is_logged_by_its_type(logger: logging.Logger, stream: io.StringIO) -> None:
    logger.error("broke", extra={"error": ValueError("hunter2"), "count": 1})
    logged = only_line(stream)
    assert (logged["message"], logged["error"], logged["count"]) == ("broke", "ValueError", 1)


ODD_TEXT: Final = '"quoted" \\ \x00 \x1f \u2028 é \N{GRINNING FACE}'


@pytest.mark.parametrize(
    "value", [0, -7, 1.5, True, "", ODD_TEXT, HTTPStatus.CREATED, ExportStatus.FAILED, [1, {"a": None}]]
)
def test_a_value_is_read_back_unchanged_from_its_line(logger: logging.Logger, stream: io.StringIO, value: object) -> None:
    logger.info("sent", extra={"outcome": value})
    assert only_line(stream)["outcome"] == value


# Seconds since 1970, and how a log line shows them.
MOMENTS: Final = [
    (0.0, "1970-01-01T00:00:00.000+00:00"),
    (1772366400.001, "2026-03-01T12:00:00.001+00:00"),
    (1772366400.0019, "2026-03-01T12:00:00.001+00:00"),  # truncated, not rounded
    (1772366400.9999, "2026-03-01T12:00:00.999+00:00"),
    (1772366401.0, "2026-03-01T12:00:01.000+00:00"),  # the next second
    (1772366400.25, "2026-03-01T12:00:00.250+00:00"),  # an earlier second, as after a clock step
]


def test_log_times_have_milliseconds() -> None:
    lines = JsonFormatter()
    for created, at in MOMENTS:
        assert json.loads(lines.format(logging.makeLogRecord({"name": "x", "created": created})))["at"] == at


def test_an_exception_is_logged_with_place_and_type_and_without_its_message(
    logger: logging.Logger, stream: io.StringIO
) -> None:
    submitted = "hunter2"
    try:
        raise LookupError(submitted)
    except LookupError:
        logger.exception("broke")
    trace = only_line(stream)["trace"]
    assert trace.endswith("builtins.LookupError")
    assert "test_logs.py" in trace
    assert submitted not in stream.getvalue()


def test_errors_with_circular_causes_are_listed_once() -> None:
    first, second = LookupError(), ValueError()
    first.__cause__, second.__context__ = second, first
    assert list(islice(chain_of(first), 3)) == [first, second]


def test_a_line_has_the_context_of_its_thread(logger: logging.Logger, stream: io.StringIO) -> None:
    set_context(request_id="req_1", secret="hunter2", target_id=None)
    add_context(export_id="exp_1")
    with ThreadPoolExecutor(1) as another:
        another.submit(logger.info, "elsewhere").result()
    logger.info("here", extra={"export_id": "exp_2", "count": 3})
    set_context()
    logger.info("after")
    elsewhere, here, after = map(json.loads, stream.getvalue().splitlines())
    assert (here["request_id"], here["export_id"], here["count"]) == ("req_1", "exp_2", 3)
    assert not {"secret", "target_id"} & here.keys()
    assert elsewhere.keys() == after.keys() == {"at", "level", "logger", "message"}


def test_the_text_format_has_the_same_fields() -> None:
    record = logging.makeLogRecord(
        {"msg": "sent %s", "args": ("it",), "levelname": "INFO", "export_id": "exp_1", "secret": "x"}
    )
    line = TextFormatter().format(record)
    assert line.endswith("info    sent it export_id=exp_1")


def test_the_access_log_contains_the_route_and_not_the_path(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "riskrelay.access"):
        access_log("GET", "/api/ticket-exports/{export_id}", 200, 1.5, "req_1")
    [record] = caplog.records
    assert record.getMessage() == "GET /api/ticket-exports/{export_id} 200"
    logged = json.loads(JsonFormatter().format(record))
    fields = logged["route"], logged["duration_ms"], logged["request_id"]
    assert fields == ("/api/ticket-exports/{export_id}", 1.5, "req_1")


def test_the_access_log_does_not_contain_unknown_methods(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "riskrelay.access"):
        access_log("HUNTER2", None, 400, 1.5, "req_1")
    assert "HUNTER2" not in JsonFormatter().format(caplog.records[0])
    assert caplog.messages == ["_OTHER None 400"]


@pytest.mark.parametrize(
    ("level", "form", "lines"),
    [
        ("info", "json", ['"level": "info"', '"level": "error"']),
        ("info", "auto", ['"level": "info"', '"level": "error"']),  # standard error is not a terminal
        ("error", "json", ['"level": "error"']),
        ("info", "text", ["info    sent", "error   sent"]),
    ],
)
def test_a_process_logs_to_standard_error_in_the_configured_format_and_level(
    level: str, form: str, lines: list[str]
) -> None:
    code = (
        "import logging, sys; from runtime import logs; logs.configure(*sys.argv[1:]); log = logging.getLogger('x'); "
        "log.debug('sent'); log.info('sent'); log.error('sent'); logging.getLogger('rq.worker').info('noise'); "
        "logging.getLogger('rq.worker').error('Worker %s: could not connect to Redis instance: %s', 'w', '192.0.2.1')"
    )
    ran = subprocess.run([sys.executable, "-c", code, level, form], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    logged = ran.stderr.splitlines()
    assert len(logged) == len(lines)
    assert all(expected in line for expected, line in zip(lines, logged, strict=True))


def test_log_lines_of_rq_about_redis_outages_are_dropped() -> None:
    code = (
        "import logging; from redis.exceptions import ReadOnlyError; from runtime import logs\n"
        "logs.configure('info', 'json'); log = logging.getLogger('rq.worker')\n"
        "log.error('Worker %s: Redis connection timeout, quitting...', 'w')\n"
        "for each in (ReadOnlyError(), LookupError()):\n"
        "    log.error('Worker %s: found an unhandled exception, quitting...', 'w', exc_info=each)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    [logged] = ran.stderr.splitlines()
    assert "builtins.LookupError" in logged


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        # an uncaught exception of the process, with its cause
        ("raise LookupError(SECRET) from ValueError(SECRET)", "ended by an error", "builtins.LookupError"),
        # an uncaught exception of a thread
        ("t = threading.Thread(target=int, args=[SECRET]); t.start(); t.join()", "ended by an error", "builtins.ValueError"),
        # an exception that Python cannot raise, in a finalizer
        ("class X:\n def __del__(self): raise OSError(SECRET)\nX()", "ended by an error", "builtins.OSError"),
        # a warning
        ("import warnings; warnings.warn(SECRET, UserWarning)", "UserWarning at <string>:", None),
        # a log message whose arguments do not match its format
        ("logging.getLogger('x').error('%d of %s', SECRET)", "a log line could not be formatted", None),
        # libraries whose messages quote addresses and headers
        ("[logging.getLogger(f'{x}.y').error(SECRET) for x in ('urllib3', 'sentry_sdk', 'opentelemetry')]", None, None),
        # a thread that ends normally
        ("t = threading.Thread(target=sys.exit); t.start(); t.join()", None, None),
    ],
    ids=["process", "thread", "finalizer", "warning", "malformed", "quoting", "exit"],
)
def test_uncaught_errors_and_warnings_of_python_are_logged_without_messages(
    code: str, message: str | None, kind: str | None
) -> None:
    # Tracebacks may quote lines of the program, so none of its lines has the secret as a whole.
    begin = (
        "import logging, sys, threading; from runtime import logs; logs.configure('info', 'json')\nSECRET = 'hunter' + '2'\n"
    )
    ran = subprocess.run([sys.executable, "-c", begin + code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout == ""
    assert "hunter2" not in ran.stderr
    logged = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [line["message"].startswith(message or "?") for line in logged] == ([True] if message else [])
    assert [line.get("trace", "").splitlines()[-1:] for line in logged] == ([[kind] if kind else []] if message else [])


def test_lines_of_attempts_are_buffered_and_keep_their_order() -> None:
    code = (
        "import logging, os; from runtime import logs; logs.configure('info', 'json'); size = lambda: os.fstat(2).st_size\n"
        "logs.delivery_log('delivered', 200, None, 1); print(size())\n"
        "logging.getLogger('x').info('between'); print(size() > 0)\n"
        "before = size(); logs.delivery_log('retryable', 503, None, 2); print(size() - before)\n"
        "logs.write_waiting(); print(size() > before)\n"
        "before = size(); logs.delivery_log('rejected', 404, None, 3); print(size() - before)\n"
    )
    with TemporaryFile() as stderr:
        ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=PIPE, stderr=stderr, text=True, check=True)
        stderr.seek(0)
        lines = [json.loads(line) for line in stderr.read().splitlines()]
    assert ran.stdout.split() == ["0", "True", "0", "True", "0"]
    # The last line is written when the process exits.
    actual = ["attempt ended: delivered", "between", "attempt ended: retryable", "attempt ended: rejected"]
    assert [line["message"] for line in lines] == actual


def test_buffered_lines_are_written_in_pieces_of_at_most_pipe_buf() -> None:
    code = (
        "import io, sys; from runtime import logs\n"
        "class Told(io.RawIOBase):\n"
        " writable = lambda self: True\n"
        " def write(self, data): print(bytes(data)); return len(data)\n"
        "sys.stderr = io.TextIOWrapper(io.BufferedWriter(Told()), 'utf-8', line_buffering=True)\n"
        "logs.configure('info', 'json')\n"
        "for number in range(100): logs.delivery_log('delivered', 200, 'é' * (number % 7), number)\n"
        "logs.write_waiting()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    writes = [ast.literal_eval(line) for line in ran.stdout.splitlines()]
    assert len(writes) < 50
    assert all(len(data) <= PIPE_BUF and data.endswith(b"\n") for data in writes)
    assert [json.loads(line)["duration_ms"] for line in b"".join(writes).splitlines()] == [*range(100)]


def test_a_full_line_buffer_is_written() -> None:
    code = (
        "import os; from runtime import logs; logs.configure('info', 'json')\n"
        "for _ in range(1000): logs.delivery_log('delivered', 200, None, 1)\n"
        "os._exit(0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 500 < len(ran.stderr.splitlines()) < 1000


def test_a_closed_standard_error_does_not_end_the_process() -> None:
    code = (
        "import logging, sys; from runtime import logs; logs.configure('info', 'json'); "
        "sys.stderr.close(); logging.getLogger('x').error('sent'); print('went on')"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "went on\n"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_log_line_contains_control_or_invisible_characters(form: str) -> None:
    code = (
        f"from runtime import logs; logs.configure('info', {form!r}); import logging; logging.warning('a\\x9b\\u202e\\x7fb')"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert r"a\u009b\u202e\u007fb" in ran.stderr
    assert ran.stderr.replace("\n", "").isprintable()
