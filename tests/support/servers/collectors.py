"""Servers that receive an installation's error reports (as Sentry) and traces (as an OTLP collector)."""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest


@dataclass(frozen=True, slots=True)
class Span:
    """One received span, with the attributes of its process."""

    name: str
    kind: int
    trace_id: str
    parent_id: str
    state: str
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector(LoopbackServer):
    """Records every request, and responds 200."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        super().__init__(self._keep)

    @property
    def contents(self) -> list[bytes]:
        """The received bodies, decompressed."""
        return [_unpacked(request) for request in list(self.requests)]

    @property
    def everything(self) -> str:
        """All received requests as one text, with headers, for tests that search it for forbidden data."""
        heads = [f"{request.line} {request.headers}" for request in list(self.requests)]
        return "\n".join([*heads, *(content.decode("utf-8", "replace") for content in self.contents)])

    def _keep(self, peer: Peer) -> None:
        while request := peer.read():
            self.requests.append(request)
            peer.answer(200, b"{}")


class TraceCollector(Collector):
    """Receives spans at `endpoint`, the value of OTEL_EXPORTER_OTLP_ENDPOINT."""

    @property
    def endpoint(self) -> str:
        """The base URL. The sender adds the path of the signal, such as /v1/traces."""
        return self.url(path="")

    @property
    def spans(self) -> list[Span]:
        """Every received span, in order."""
        return [span for content in self.contents for span in _spans(content)]


class SentryCollector(Collector):
    """Receives error reports at `dsn`."""

    @property
    def dsn(self) -> str:
        """The value of SENTRY_DSN."""
        return f"http://public-key@127.0.0.1:{self.port}/42"

    @property
    def events(self) -> list[dict[str, Any]]:
        """Every received event. An envelope has a header line, then a header line and a content line for each item."""
        return [json.loads(content.splitlines()[2]) for content in self.contents]


def _unpacked(request: ReceivedRequest) -> bytes:
    is_packed = request.headers.get("content-encoding") == "gzip"
    return gzip.decompress(request.body) if is_packed else request.body


def _spans(content: bytes) -> list[Span]:
    sent = ExportTraceServiceRequest()
    sent.ParseFromString(content)
    return [
        Span(
            name=span.name,
            kind=span.kind,
            trace_id=span.trace_id.hex(),
            parent_id=span.parent_span_id.hex(),
            state=span.trace_state,
            is_error=span.status.code == 2,  # STATUS_CODE_ERROR
            attributes=_values(span.attributes),
            resource=_values(group.resource.attributes),
        )
        for group in sent.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _values(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "") for pair in pairs}
