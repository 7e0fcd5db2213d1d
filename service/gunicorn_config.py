"""How gunicorn serves the application.

gevent, because an attacker or a bad line needs no more connections that drip their headers or bodies than there are sync
processes or gthread threads, and nobody else is answered; a greenlet that waits for a slow client costs a few kilobytes and
nobody's turn. docs/performance.md has the figures.
"""

from typing import Any

from schemas.settings import load_settings

_settings = load_settings()

bind = [_settings.bind]
workers = _settings.web_processes
worker_class = "service.gunicorn_worker.ServiceWorker"
#: Connections one process serves at once.
worker_connections = _settings.web_threads
#: A process that does not report for this long is replaced.
timeout = 30
#: What is being answered at SIGTERM may take as long.
graceful_timeout = 15
#: Clients that poll keep their connection between polls.
keepalive = 75
# The control socket would open a second way in, under $HOME; nobody asked for it.
control_socket_disable = True
# Our own access log names routes only; gunicorn's would hold paths and queries.
accesslog = None
# At "warning" it would write what a malformed request line or header held.
loglevel = "error"
proc_name = "riskrelay-service"


def post_worker_init(worker: Any) -> None:
    """Log in our format, not gunicorn's, once the application is loaded."""
    worker.log.error_log.propagate = True
    worker.log.error_log.handlers.clear()
