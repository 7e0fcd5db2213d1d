"""Spans of requests and delivery attempts, sent if OTEL_EXPORTER_OTLP_ENDPOINT is set.

A span carries only the attributes listed here: routes, never paths; our ids, statuses and durations, never an address, a
header or a body. Deliveries carry no trace headers. Without an endpoint OpenTelemetry is not imported, and a request costs
one comparison with None.
"""

import sys
from typing import TYPE_CHECKING

from runtime import logs
from schemas.exports.delivery import DELIVERED, CompletedAttempt
from schemas.settings.definitions import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from runtime.opentelemetry import Recorder

_recorder: "Recorder | None" = None


def leave_out_if_unused(settings: Settings) -> None:
    """Make imports of OpenTelemetry fail from now on if no endpoint is set. Has no effect once the Redis client is imported.

    That client imports OpenTelemetry wherever it is installed, 2 MB in each process.
    """
    if settings.otlp_endpoint is None and "redis" not in sys.modules:
        # Python refuses to import a module whose entry is None.
        sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # the annotation allows only modules


def configure(settings: Settings, role: str) -> None:
    """Record this process's spans from now on, if an endpoint is set; `role` is `service` or `worker`.

    Raises ModuleNotFoundError if the packages of the extra `tracing` are not installed.
    """
    global _recorder  # noqa: PLW0603 - one per process, like the configuration of logs
    if settings.otlp_endpoint is None:
        return
    from runtime.opentelemetry import Recorder  # noqa: PLC0415 - it needs packages that only the extra installs

    _recorder = Recorder(settings.otlp_endpoint, settings.deployment_mode, role)


def close() -> None:
    """Send the remaining spans within a short deadline, and record nothing more."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.close()


def request_began(method: str, traceparent: str | None) -> "Span | None":
    """Begin the span of a request, and add its trace id to the log lines of this greenlet."""
    return _began(logs.known_method(method), is_inbound=True, traceparent=traceparent)


def request_ended(span: "Span | None", method: str, route: str | None, status: int, request_id: str) -> None:
    """End the span of a request; `route` is its template, None if no route matched."""
    if span is None or _recorder is None:
        return
    if route is not None:
        span.update_name(f"{logs.known_method(method)} {route}")
    attributes = {
        "http.request.method": logs.known_method(method),
        "http.route": route,
        "http.response.status_code": status,
        "riskrelay.request_id": request_id,
    }
    _recorder.end(span, attributes, has_failed=status >= 500)


def attempt_began() -> "Span | None":
    """Begin the span of a delivery attempt, and add its trace id to the log lines of this thread."""
    return _began("deliver", is_inbound=False)


def attempt_ended(span: "Span | None", attempted: CompletedAttempt) -> None:
    """End the span of a delivery attempt: ids, number, outcome and durations."""
    if span is None or _recorder is None:
        return
    claim, outcome, verdict, timings = attempted.claim, attempted.outcome, attempted.verdict, attempted.outcome.timings
    attributes = {
        "http.request.method": "POST",
        "http.response.status_code": outcome.status,
        "error.type": verdict.error_code,
        "riskrelay.export_id": claim.export_id,
        "riskrelay.target_id": claim.target_id,
        "riskrelay.attempt_id": attempted.id,
        "riskrelay.attempt": claim.attempt,
        "riskrelay.outcome": verdict.outcome,
        "riskrelay.dns_ms": timings.dns_ms,
        "riskrelay.connect_ms": timings.connect_ms,
        "riskrelay.tls_ms": timings.tls_ms,
        "riskrelay.first_byte_ms": timings.first_byte_ms,
        "riskrelay.total_ms": timings.total_ms,
    }
    _recorder.end(span, attributes, has_failed=verdict.outcome != DELIVERED)


def attempt_crashed(span: "Span | None") -> None:
    """End the span of an attempt that crashed; the log and the error report say more."""
    if span is not None and _recorder is not None:
        _recorder.end(span, {"riskrelay.outcome": "broke_off"}, has_failed=True)


def _began(name: str, *, is_inbound: bool, traceparent: str | None = None) -> "Span | None":
    if _recorder is None:
        return None
    span = _recorder.begin(name, is_inbound=is_inbound, traceparent=traceparent)
    logs.add_context(trace_id=_recorder.trace_id(span))
    return span
