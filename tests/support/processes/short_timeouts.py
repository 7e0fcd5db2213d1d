"""The service's gunicorn worker with short timeouts for clients, so that tests of timeouts take seconds."""

from service.server.client_connection import ConnectionTimeouts
from service.server.gunicorn_worker import ServiceWorker


class ShortTimeoutWorker(ServiceWorker):
    """A service worker with short timeouts."""

    timeouts = ConnectionTimeouts(head_s=1.5, body_s=1.5, bytes_per_s=100, linger_s=1.0)
