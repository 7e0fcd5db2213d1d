"""Logs: one line a record, on standard error, with the fields that are named and no others."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.logs import FIELDS, JsonLines, TextLines, access_log

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logger(stream: io.StringIO) -> Iterator[logging.Logger]:
    """A logger that writes JSON lines to the stream and to nobody else."""
    chosen = logging.getLogger("riskrelay.test")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    chosen.addHandler(handler)
    chosen.propagate = False
    chosen.setLevel(logging.INFO)
    yield chosen
    chosen.removeHandler(handler)


def only_line(stream: io.StringIO) -> dict[str, Any]:
    [line, rest] = stream.getvalue().split("\n")
    assert rest == ""
    told: dict[str, Any] = json.loads(line)
    return told


def test_only_fields_that_are_named_are_written(logger: logging.Logger, stream: io.StringIO) -> None:
    extra = {"export_id": "exp_1", "secret": "hunter2", "token": "rrt_x", "authorization": "Bearer x", "status": 200}
    logger.info("sent", extra=extra)
    told = only_line(stream)
    assert told.pop("at").endswith("+00:00")
    assert told == {"level": "info", "logger": "riskrelay.test", "message": "sent", "export_id": "exp_1", "status": 200}


def test_no_field_is_a_place_for_a_secret() -> None:
    assert not {"secret", "token", "authorization", "cookie", "body", "headers", "url", "path", "query", "password"} & {
        *FIELDS
    }


def test_a_record_is_one_line_whatever_it_says(logger: logging.Logger, stream: io.StringIO) -> None:
    logger.warning("first\nsecond \u2028 é", extra={"error": "a\r\nb", "count": 0})
    told = only_line(stream)
    assert (told["message"], told["error"], told["count"]) == ("first\nsecond \u2028 é", "a\r\nb", 0)


def test_a_value_that_json_does_not_know_is_told_by_its_type(logger: logging.Logger, stream: io.StringIO) -> None:
    logger.error("broke", extra={"error": ValueError("hunter2"), "count": 1})
    told = only_line(stream)
    assert (told["message"], told["error"], told["count"]) == ("broke", "ValueError", 1)


def test_an_exception_brings_its_place_and_type_and_never_its_text(logger: logging.Logger, stream: io.StringIO) -> None:
    submitted = "hunter2"
    try:
        raise LookupError(submitted)
    except LookupError:
        logger.exception("broke")
    trace = only_line(stream)["trace"]
    assert trace.endswith("builtins.LookupError")
    assert "test_logs.py" in trace
    assert submitted not in stream.getvalue()


def test_a_line_for_a_person_has_the_same_fields() -> None:
    record = logging.makeLogRecord(
        {"msg": "sent %s", "args": ("it",), "levelname": "INFO", "export_id": "exp_1", "secret": "x"}
    )
    line = TextLines().format(record)
    assert line.endswith("info    sent it export_id=exp_1")


def test_the_access_log_tells_the_route_and_never_the_path(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "riskrelay.access"):
        access_log("GET", "/api/ticket-exports/{export_id}", 200, 1.5, "req_1")
    [record] = caplog.records
    assert record.getMessage() == "GET /api/ticket-exports/{export_id} 200"
    told = json.loads(JsonLines().format(record))
    assert (told["route"], told["duration_ms"], told["request_id"]) == ("/api/ticket-exports/{export_id}", 1.5, "req_1")


@pytest.mark.parametrize(
    ("level", "form", "lines"),
    [
        ("info", "json", ['"level": "info"', '"level": "error"']),
        ("info", "auto", ['"level": "info"', '"level": "error"']),  # no terminal here
        ("error", "json", ['"level": "error"']),
        ("info", "text", ["info    told", "error   told"]),
    ],
)
def test_a_process_logs_to_standard_error_in_the_form_and_from_the_level_it_is_told(
    level: str, form: str, lines: list[str]
) -> None:
    code = (
        "import logging, sys; from storage import logs; logs.configure(*sys.argv[1:]); log = logging.getLogger('x'); "
        "log.debug('told'); log.info('told'); log.error('told'); logging.getLogger('rq.worker').info('noise')"
    )
    ran = subprocess.run([sys.executable, "-c", code, level, form], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    told = ran.stderr.splitlines()
    assert len(told) == len(lines)
    assert all(expected in line for expected, line in zip(lines, told, strict=True))
