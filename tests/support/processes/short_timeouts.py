"""The service's worker with less patience, for tests that cannot wait as long as clients may."""

from service.server.client_connection import ConnectionTimeouts
from service.server.gunicorn_worker import ServiceWorker


class ShortTimeoutWorker(ServiceWorker):
    """Waits seconds where the service waits many."""

    timeouts = ConnectionTimeouts(head_s=1.5, body_s=1.5, bytes_per_s=100, linger_s=1.0)
