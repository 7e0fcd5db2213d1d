"""The only module that imports OpenTelemetry; `runtime.tracing` loads it if an endpoint is set.

Nothing is registered globally: no library finds a tracer, so only our own spans are recorded. The environment variables that
OpenTelemetry reads (`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, …) are the operator's.
Nothing waits for a slow collector: a batch has one short deadline, the queue is bounded, and so is the wait at the end.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runtime.outages import Outage
from schemas.settings.definitions import DeploymentMode
from schemas.version import VERSION

#: Spans of about a kilobyte that are kept for an unavailable collector; newer ones replace the oldest.
QUEUE: Final = 2048
BATCH: Final = 512
#: A batch is sent when it is full, and after this time.
EVERY_MS: Final = 2000
#: The timeout of one batch, retries included; only the next batch waits for it.
TIMEOUT_S: Final = 3.0
#: How long a stopping process waits for its last batch.
STOP_WITHIN_S: Final = 2.0

_log: Final = logging.getLogger(__name__)


class Recorder:
    """Records the spans of one process and sends them to the collector at `endpoint`; create it after a fork."""

    def __init__(self, endpoint: str, mode: DeploymentMode, role: str) -> None:
        resource = {
            "service.name": f"riskrelay-{role}",
            "service.version": VERSION,
            "deployment.environment.name": mode.value,
        }
        exporter = _LoggingExporter(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S))
        self._provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, QUEUE, EVERY_MS, BATCH))
        self._tracer = self._provider.get_tracer("riskrelay", VERSION)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, *, is_inbound: bool, traceparent: str | None) -> Span:
        """Begin the span of a request to us or of ours; a child of the caller's if a well-formed `traceparent` names one."""
        # This header alone: `tracestate` and `baggage` may contain anything.
        carrier = {} if traceparent is None else {"traceparent": traceparent}
        parent = self._propagator.extract(carrier, Context())
        return self._tracer.start_span(name, parent, SpanKind.SERVER if is_inbound else SpanKind.CLIENT)

    def trace_id(self, span: Span) -> str | None:
        """Return the 32 hex digits that name the span's trace; None if the sampler drops it."""
        return f"{span.get_span_context().trace_id:032x}" if span.is_recording() else None

    def end(self, span: Span, attributes: Mapping[str, str | int | None], *, has_failed: bool) -> None:
        """End a span with these attributes, except those that are None."""
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if has_failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def close(self) -> None:
        """Send the remaining spans, within STOP_WITHIN_S, and record nothing more."""
        ending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        ending.start()
        ending.join(STOP_WITHIN_S)


class _LoggingExporter(SpanExporter):
    """Passes batches on; logs that they are not accepted, once a minute during an outage."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        gone = "OTEL_EXPORTER_OTLP_ENDPOINT accepts no spans, dropping them"
        self._outage = Outage(_log, gone, "OTEL_EXPORTER_OTLP_ENDPOINT accepts spans again")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._outage.record_success()
        else:
            self._outage.record_failure()
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
