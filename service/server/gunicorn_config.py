"""How gunicorn serves the application.

gevent, because with sync or gthread workers a few slow clients, one per process or thread, block all others; a greenlet that
waits for a slow client costs a few kilobytes. docs/performance.md has the figures.
"""

import sys
from types import TracebackType
from typing import Any

import gevent

from runtime import error_reports, logs, tls_key_log, tracing
from runtime.file_limits import raise_file_limit
from schemas.settings.definitions import InvalidSettings, load_settings

# Here as well, for gunicorn without the command `serve`.
tls_key_log.disable()
try:
    _settings = load_settings()
except InvalidSettings as wrong:
    # `serve` has checked already; gunicorn started by hand would print a stack trace instead of the report.
    sys.stderr.write(f"{wrong.report()}\n")
    raise SystemExit(2) from None
# For the parent process; its children do it once more, when gevent has patched what logging stands on.
logs.configure(_settings.log_level, _settings.log_format)

bind = [_settings.bind]
workers = _settings.web_processes
worker_class = "service.server.gunicorn_worker.ServiceWorker"
#: What a process has open beside its clients: its databases, Redis, metrics, logs. Without a file left no database answers,
#: and a crowd of clients that say nothing would turn everybody else away.
_FILES_BESIDE = 200
#: The most connections of one process.
worker_connections = max(1, raise_file_limit(_settings.web_threads + _FILES_BESIDE) - _FILES_BESIDE)
#: A process that does not report for this many seconds is replaced.
timeout = 30
#: Seconds for requests in progress at SIGTERM.
graceful_timeout = 15
#: Seconds; clients that poll keep their connection between polls.
keepalive = 75
# Whom we believe what about a client is in TRUSTED_PROXIES. gunicorn by itself lets whoever is on this machine move the path
# by a header, and so every client of a proxy there that passes on SCRIPT_NAME: /x/metrics would be /metrics, past the rules
# of the proxy.
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
# The control socket would open a second way in, under $HOME; nobody asked for it.
control_socket_disable = True
# Our own access log names routes only; gunicorn's would hold paths and queries.
accesslog = None
# At "warning" it would write what a malformed request line or header held.
loglevel = "error"
logger_class = "service.server.gunicorn_logger.RootLogger"
proc_name = "riskrelay-service"


def post_worker_init(_worker: Any) -> None:
    """Log what ends a greenlet; gevent would print it, in its own format and with the error's words."""
    gevent.get_hub().print_exception = _tell_end


def worker_exit(_server: Any, _worker: Any) -> None:
    """Send the last spans and reports, for a moment at most, once everything is answered."""
    tracing.close()
    error_reports.close()


def _tell_end(_context: object, _kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
    logs.log_crash(error, trace)
