"""The only module that imports Sentry's client; `runtime.error_reports` loads it if a DSN is set.

The client only sends the reports it gets: no integration is enabled, since integrations patch libraries to read requests,
queries and arguments, and the fields it adds by itself are removed before sending.
"""

import logging
from typing import Any, Final

from sentry_sdk import Client
from sentry_sdk.transport import HttpTransport

from runtime.outages import Outage

#: Reports waiting to be sent; further ones are dropped.
QUEUE: Final = 50

#: Fields that are sent. The client would add the machine's name and its own.
_ALLOWED: Final = ("event_id", "timestamp", "platform", "level", "logger", "release", "environment", "exception", "tags")

_log: Final = logging.getLogger(__name__)


def sentry_client(dsn: str, release: str, environment: str) -> Client:
    """Return a client that sends reports to the project of a DSN, on a thread of its own.

    `capture_event` never waits for the network: it queues a report, or drops it if the queue is full.
    """
    return Client(
        dsn=dsn,
        release=release,
        environment=environment,
        server_name="",
        transport=_LoggingTransport,
        before_send=_allowed_fields,
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


class _LoggingTransport(HttpTransport):
    """Logs that reports are not accepted, once a minute during an outage."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._outage = Outage(_log, "SENTRY_DSN accepts no reports, dropping them")

    def on_dropped_event(self, _reason: str) -> None:
        self._outage.record_failure()


def _allowed_fields(event: Any, _hint: object) -> Any:
    return {name: event[name] for name in _ALLOWED if name in event}
