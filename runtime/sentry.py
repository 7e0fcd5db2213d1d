"""The one module that knows Sentry's client; `runtime.error_reports` loads it where a DSN is set.

The client is asked for one thing, to send what it is handed: no integration is switched on, since those patch libraries to
see requests, queries and arguments, and what it adds by itself is taken out again before it leaves.
"""

import logging
from typing import Any, Final

from sentry_sdk import Client
from sentry_sdk.transport import HttpTransport

from runtime.outages import Outage

#: Reports that wait to be sent; those that find no room are dropped.
QUEUE: Final = 50
#: How long a process that stops waits for its last reports.
STOP_WITHIN_S: Final = 2.0

#: What may leave. The client would add the machine's name and its own.
_ALLOWED: Final = ("event_id", "timestamp", "platform", "level", "logger", "release", "environment", "exception", "tags")

_log: Final = logging.getLogger(__name__)


class Sentry:
    """Sends reports to the project that a DSN names, from a thread of its own."""

    def __init__(self, dsn: str, release: str, environment: str) -> None:
        self._client = Client(
            dsn=dsn,
            release=release,
            environment=environment,
            server_name="",
            transport=_Telling,
            before_send=_stripped,
            default_integrations=False,
            auto_enabling_integrations=False,
            auto_session_tracking=False,
            send_client_reports=False,
            enable_backpressure_handling=False,
            include_local_variables=False,
            include_source_context=False,
            max_breadcrumbs=0,
            spotlight=False,
            debug=False,
            transport_queue_size=QUEUE,
        )

    def send(self, event: Any) -> None:
        """Queue a report, or drop it where the queue is full; never waits for the network."""
        self._client.capture_event(event)

    def close(self) -> None:
        """Wait for what is on its way, for a moment."""
        self._client.close(timeout=STOP_WITHIN_S)


class _Telling(HttpTransport):
    """Says in our log, seldom, that reports are not taken."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._outage = Outage(_log, "the Sentry of SENTRY_DSN takes no reports, dropping them")

    def on_dropped_event(self, _reason: str) -> None:
        self._outage.note()


def _stripped(event: Any, _hint: object) -> Any:
    return {name: event[name] for name in _ALLOWED if name in event}
