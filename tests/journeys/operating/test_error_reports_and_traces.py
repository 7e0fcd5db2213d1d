"""Real processes send spans to a collector and errors to Sentry: the documented data arrives, and nothing else."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.version import VERSION
from storage.db.engine import execute, release
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    ENCRYPTION_KEY,
    LOOPBACK,
    WEBHOOK_SECRET,
    Customer,
    environment,
    make_approved,
    make_exports,
    make_target,
)
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.raw_http import CANARY, EXPORTS
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import ROOT, CountingReceiver, WorkerProcess, is_exported, wait_until
from tests.support.servers.collectors import SentryCollector, TraceCollector
from tests.support.servers.redis_and_postgres import RedisServer, free_port

pytestmark = on_sqlite

#: A caller's trace, with the flag that the caller records it.
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT: Final = f"00-{TRACE}-b7ad6b7169203331-01"

REQUEST_ATTRIBUTES: Final = {"http.request.method", "http.route", "http.response.status_code", "riskrelay.request_id"}
ATTEMPT_ATTRIBUTES: Final = {
    "http.request.method",
    "http.response.status_code",
    "error.type",
    "riskrelay.export_id",
    "riskrelay.target_id",
    "riskrelay.attempt_id",
    "riskrelay.attempt",
    "riskrelay.outcome",
    "riskrelay.dns_ms",
    "riskrelay.connect_ms",
    "riskrelay.tls_ms",
    "riskrelay.first_byte_ms",
    "riskrelay.total_ms",
}
#: The attributes of a process: a random id for each start, and the library's name.
RESOURCE: Final = {
    "service.instance.id",
    "service.name",
    "service.version",
    "deployment.environment.name",
    "telemetry.sdk.language",
    "telemetry.sdk.name",
    "telemetry.sdk.version",
}
EVENT: Final = {"event_id", "timestamp", "platform", "level", "logger", "release", "environment", "exception", "tags"}
FRAME: Final = {"filename", "function", "lineno", "in_app"}
#: Enough for a request and a delivery on a busy machine. Waiting for a hanging Sentry or collector would take longer.
NOT_HELD_UP_S: Final = 5.0
#: A time in milliseconds that is beyond the range of `datetime`: code that reads it raises an exception.
BEYOND_TIME: Final = 10**18


@pytest.fixture
def serve(database: str, redis: RedisServer, tmp_path: Path) -> Callable[..., Service]:
    """Return a service with one process on the open database, with these settings."""

    def service(**changes: str) -> Service:
        settings = {"DATABASE_URL": database, "REDIS_URL": redis.url, "WEB_PROCESSES": "1", **LOOPBACK}
        return Service(environment(tmp_path, **settings, **changes), forked=False)

    return service


@pytest.fixture
def traces() -> Iterator[TraceCollector]:
    with TraceCollector() as made:
        yield made


@pytest.fixture
def sentry() -> Iterator[SentryCollector]:
    with SentryCollector() as made:
        yield made


@pytest.fixture
def busy_then_well() -> Iterator[LoopbackServer]:
    """A receiver that responds 500 and then 200, with a canary in every part of the responses."""
    statuses = iter([500, 200, 200, 200])

    def behave(peer: Peer) -> None:
        while peer.read():
            # Includes a folded header, about which HTTP clients may log warnings.
            head = f"HTTP/1.1 {next(statuses)} {CANARY}\r\nContent-Length: 2\r\nX-Canary: {CANARY}\r\n {CANARY}\r\n\r\n"
            peer.send(head.encode() + b"{}")

    with LoopbackServer(behave) as made:
        yield made


def test_requests_are_exported_as_spans_without_submitted_data(
    serve: Callable[..., Service], customer: Customer, traces: TraceCollector
) -> None:
    [export_id] = make_exports(customer, 1)
    spoiled = {**customer.bearer, "User-Agent": CANARY, "Tracestate": f"vendor={CANARY}", "Baggage": f"x={CANARY}"}
    with serve(OTEL_EXPORTER_OTLP_ENDPOINT=traces.endpoint) as service:
        read = service.request("GET", f"{EXPORTS}/{export_id}?{CANARY}={CANARY}", {**spoiled, "Traceparent": TRACEPARENT})
        service.request("GET", f"/{CANARY}", {**spoiled, "Traceparent": f"00-{CANARY}-01"})
        service.request("POST", EXPORTS, spoiled, {"ticket": {"title": CANARY}, CANARY: CANARY})
        service.terminate()
        assert service.exit_code() == 0

    named = [span for span in traces.spans if span.attributes.get("http.route") != "/healthz"]
    assert [(span.name, span.kind, span.attributes["http.response.status_code"]) for span in named] == [
        (f"GET {EXPORTS}/{{export_id}}", 2, 200),
        ("GET", 2, 404),
        (f"POST {EXPORTS}", 2, 422),
    ]
    of_caller, of_nobody, _ = named
    assert (of_caller.trace_id, of_caller.parent_id) == (TRACE, "b7ad6b7169203331")
    assert of_caller.attributes["riskrelay.request_id"] == read.headers["x-request-id"]
    assert of_nobody.parent_id == ""
    assert {name for span in named for name in span.attributes} == REQUEST_ATTRIBUTES
    assert {name for span in named for name in span.resource} == RESOURCE
    assert named[0].resource["service.name"] == "riskrelay-service"
    assert {span.state for span in named} == {""}
    assert CANARY not in traces.everything
    assert f'"trace_id": "{TRACE}"' in service.log.read_text()


def test_attempts_are_exported_as_spans_of_their_own_traces(
    start: Callable[..., WorkerProcess], customer: Customer, traces: TraceCollector, busy_then_well: LoopbackServer
) -> None:
    target = make_target(customer, busy_then_well.url(path=f"/{CANARY}?token={CANARY}"))
    export_id = make_approved(customer, target.id, utc_now())
    with start(forked=False, OTEL_EXPORTER_OTLP_ENDPOINT=traces.endpoint, RETRY_SCHEDULE="0,0,0") as worker:
        wait_until(is_exported(export_id))
        worker.signal()
        assert worker.wait() == 0

    assert [(span.name, span.kind, span.is_error) for span in traces.spans] == [("deliver", 3, True), ("deliver", 3, False)]
    failed, delivered = (span.attributes for span in traces.spans)
    assert failed.keys() | delivered.keys() <= ATTEMPT_ATTRIBUTES
    assert (failed["riskrelay.outcome"], failed["error.type"]) == ("retryable", "receiver_unavailable")
    assert (delivered["riskrelay.outcome"], delivered["http.response.status_code"]) == ("delivered", 200)
    assert (delivered["riskrelay.export_id"], delivered["riskrelay.target_id"]) == (export_id, target.id)
    assert [failed["riskrelay.attempt"], delivered["riskrelay.attempt"]] == [1, 2]
    assert delivered["riskrelay.total_ms"] >= delivered["riskrelay.first_byte_ms"] >= 0
    assert CANARY not in traces.everything
    assert f"127.0.0.1:{busy_then_well.port}" not in traces.everything
    assert CANARY not in worker.log.read_text()
    lines = [line for line in worker.log_lines if line["logger"] == "riskrelay.deliveries"]
    assert [(line["outcome"], line["status"], line["attempt"]) for line in lines] == [
        ("retryable", 500, 1),
        ("delivered", 200, 2),
    ]
    assert [line["attempt_id"] for line in lines] == [failed["riskrelay.attempt_id"], delivered["riskrelay.attempt_id"]]
    assert [line["trace_id"] for line in lines] == [span.trace_id for span in traces.spans]


def test_an_error_in_a_request_is_reported_with_type_and_stack_only(
    serve: Callable[..., Service], customer: Customer, sentry: SentryCollector
) -> None:
    [export_id] = make_exports(customer, 1)
    execute("UPDATE exports SET ticket = ?, created_at = ? WHERE id = ?", (f'"{CANARY}"', BEYOND_TIME, export_id))
    release()
    headers = {**customer.bearer, "User-Agent": CANARY, "Cookie": CANARY}
    with serve(SENTRY_DSN=sentry.dsn) as service:
        answer = service.request("GET", f"{EXPORTS}/{export_id}?{CANARY}", headers)
        assert answer.status == 500
        wait_until(lambda: sentry.requests)
        service.terminate()
        assert service.exit_code() == 0

    [event] = sentry.events
    assert event.keys() == EVENT
    assert (event["level"], event["logger"]) == ("error", "service.http.error_responses")
    assert (event["release"], event["environment"]) == (f"riskrelay@{VERSION}", "self-hosted")
    assert event["tags"] == {"role": "service", "request_id": answer.headers["x-request-id"], "export_id": export_id}
    [*_, error] = event["exception"]["values"]
    assert error.keys() == {"type", "module", "stacktrace"}
    assert (error["type"], error["module"]) == ("OverflowError", "builtins")
    frames = error["stacktrace"]["frames"]
    assert {name for frame in frames for name in frame} == FRAME
    assert ("service/api/exports.py", "_poll", True) in {
        (each["filename"], each["function"], each["in_app"]) for each in frames
    }
    assert_tells_nothing_else(sentry, customer)


def test_an_error_in_an_attempt_is_reported_with_its_ids(
    start: Callable[..., WorkerProcess], customer: Customer, sentry: SentryCollector, busy_then_well: LoopbackServer
) -> None:
    target = make_target(customer, busy_then_well.url(path=f"/{CANARY}?token={CANARY}"))
    export_id = make_approved(customer, target.id, utc_now())
    # The decision about a failed attempt needs the start of the schedule, so that without it, an exception is raised.
    execute("UPDATE exports SET schedule_began_at = NULL WHERE id = ?", (export_id,))
    release()
    with start(forked=False, SENTRY_DSN=sentry.dsn) as worker:
        wait_until(lambda: sentry.requests)
        worker.signal()
        assert worker.wait() == 0

    event = sentry.events[0]
    assert event["logger"] == "worker.delivery.sender_pool"
    assert event["exception"]["values"][-1]["type"] == "TypeError"
    assert event["tags"].keys() == {"role", "export_id", "attempt_id", "target_id"}
    assert (event["tags"]["export_id"], event["tags"]["target_id"]) == (export_id, target.id)
    assert_tells_nothing_else(sentry, customer)


def test_a_hanging_sentry_or_collector_delays_no_request_delivery_or_exit(
    serve: Callable[..., Service], start: Callable[..., WorkerProcess], customer: Customer, receiver: CountingReceiver
) -> None:
    broken, sent = make_exports(customer, 1)[0], make_approved(customer, make_target(customer, receiver.url()).id, utc_now())
    execute("UPDATE exports SET created_at = ? WHERE id = ?", (BEYOND_TIME, broken))
    release()
    with LoopbackServer(hang) as nobody:
        deaf = {"SENTRY_DSN": f"http://key@127.0.0.1:{nobody.port}/1", "OTEL_EXPORTER_OTLP_ENDPOINT": nobody.url(path="")}
        with serve(**deaf) as service, start(forked=False, **deaf) as worker:
            wait_until(is_exported(sent))
            began = time.monotonic()
            answers = [service.request("GET", f"{EXPORTS}/{broken}", customer.bearer).status for _ in range(3)]
            assert (answers, time.monotonic() - began < NOT_HELD_UP_S) == ([500] * 3, True)
            wait_until(lambda: nobody.connections >= 2)
            began = time.monotonic()
            service.terminate()
            worker.signal()
            assert (service.exit_code(), worker.wait()) == (0, 0)
            # At most two seconds for the last transfer to each of them, and one to handle the signal.
            assert time.monotonic() - began < 2 * NOT_HELD_UP_S


def test_an_unreachable_sentry_or_collector_is_logged_once(
    serve: Callable[..., Service], customer: Customer, tmp_path: Path
) -> None:
    [export_id] = make_exports(customer, 1)
    execute("UPDATE exports SET created_at = ? WHERE id = ?", (BEYOND_TIME, export_id))
    release()
    away = free_port()
    settings = {"SENTRY_DSN": f"http://key@127.0.0.1:{away}/1", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{away}"}
    with serve(**settings) as service:
        for _ in range(3):
            service.request("GET", f"{EXPORTS}/{export_id}", customer.bearer)
            # Longer than a batch waits: each failed batch would be a log line.
            time.sleep(1)
        service.terminate()
        assert service.exit_code() == 0
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    reported = [
        line["logger"] for line in lines if line["logger"] not in {"riskrelay.access", "service.http.error_responses"}
    ]
    assert sorted(reported) == ["runtime.opentelemetry", "runtime.sentry"]


def test_error_reports_and_traces_are_imported_only_if_configured(tmp_path: Path, database_url: str) -> None:
    code = "import sys, service.wsgi, worker.daemon; print(*sys.modules)"
    settings = environment(tmp_path, DATABASE_URL=database_url, PYTHONPATH=str(ROOT))
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=settings, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"service.wsgi", "worker.daemon", "runtime.tracing", "runtime.error_reports"} <= set(loaded)
    # The redis package itself imports OpenTelemetry's metrics, if installed.
    theirs = ("sentry_sdk", "opentelemetry.exporter", "opentelemetry.sdk.trace", "runtime.sentry", "runtime.opentelemetry")
    assert [name for name in loaded if name.startswith(theirs)] == []


@pytest.mark.parametrize(
    ("verb", "name", "value", "package"),
    [
        ("run", "SENTRY_DSN", "http://key@127.0.0.1:9/1", "sentry-sdk"),
        ("serve", "SENTRY_DSN", "http://key@127.0.0.1:9/1", "sentry-sdk"),
        ("work", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9", "opentelemetry-exporter-otlp-proto-http"),
    ],
    ids=["run", "serve", "work"],
)
def test_a_setting_with_a_missing_package_is_invalid(
    verb: str, name: str, value: str, package: str, tmp_path: Path, database_url: str
) -> None:
    code = (
        "import sys; sys.modules['sentry_sdk'] = sys.modules['opentelemetry.exporter'] = None; "
        "from bin.__main__ import riskrelay; riskrelay(sys.argv[1:], prog_name='riskrelay')"
    )
    settings = environment(tmp_path, DATABASE_URL=database_url, PYTHONPATH=str(ROOT), **{name: value})
    ended = subprocess.run(
        [sys.executable, "-c", code, verb], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines() == [
        "Invalid settings:",
        f"  {name}: Needs the package {package}, which is not installed; run: make setup EXTRAS=1",
    ]


def hang(peer: Peer) -> None:
    peer.read()
    peer.wait()


def assert_tells_nothing_else(sentry: SentryCollector, customer: Customer) -> None:
    """Check that no text of an error, a request, a row or this machine has arrived."""
    for secret in (CANARY, customer.token, WEBHOOK_SECRET, ENCRYPTION_KEY, socket.gethostname(), str(ROOT)):
        assert secret not in sentry.everything
