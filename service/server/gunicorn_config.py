"""How gunicorn serves the application.

gevent, because with sync or gthread workers a few slow clients, one per process or thread, block all others; a greenlet that
waits for a slow client costs a few kilobytes. docs/performance.md has the figures.
"""

import gc
import os
import signal
import sys
from types import TracebackType
from typing import Any

import gevent
import gevent.threadpool  # gevent would import it in each process that serves, which share what is imported here
from gevent import monkey

from runtime import dns_resolver, error_reports, logs, metrics, tls_key_log, tracing
from runtime.files import raise_file_limit
from schemas.settings.definitions import InvalidSettings, load_settings
from storage.db.drivers.unused_driver import leave_out_postgresql

# Here as well, for gunicorn without the command `serve`.
tls_key_log.disable()
try:
    _settings = load_settings()
except InvalidSettings as wrong:
    # `serve` has checked already; gunicorn started by hand would print a stack trace instead of the report.
    sys.stderr.write(f"{wrong}\n")
    raise SystemExit(2) from None
# For what goes wrong before the application is loaded.
logs.configure(_settings.log_level, _settings.log_format)

bind = [_settings.bind]
workers = _settings.web_processes
worker_class = "service.server.gunicorn_worker.ServiceWorker"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
#: Files that a process opens besides clients' connections: databases, Redis, metrics, logs. Without this reserve, many idle
#: clients would leave no file for a database connection, and every request would fail.
_FILES_BESIDE = 200
#: The most connections of one process.
worker_connections = max(1, raise_file_limit(_settings.web_threads + _FILES_BESIDE) - _FILES_BESIDE)
#: A process that does not report for this many seconds is replaced.
timeout = 30
#: Seconds for requests in progress at SIGTERM.
graceful_timeout = 15
#: Seconds; clients that poll keep their connection between polls.
keepalive = 75
# TRUSTED_PROXIES names the proxies whose headers count. gunicorn's default accepts SCRIPT_NAME from any local process, so
# from every client of a local proxy that passes it on: /x/metrics would be served as /metrics, past the proxy's rules.
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
# The control socket would be a second, unneeded entry point, under $HOME.
control_socket_disable = True
# Our own access log names routes only; gunicorn's would hold paths and queries.
accesslog = None
# At "warning" it would log the content of malformed request lines and headers.
loglevel = "error"
logger_class = "service.server.gunicorn_logger.RootLogger"
proc_name = "riskrelay-service"


def when_ready(server: Any) -> None:
    """Load the application before the processes that serve it are forked: they share its memory.

    gevent patches before that, because modules keep what they import. The parent keeps its signals and `os.fork`, with which
    it watches its children; those patch them as well.
    """
    monkey.patch_all(os=False, signal=False)
    leave_out_postgresql(_settings.database_url)
    tracing.leave_out_if_unused(_settings)
    server.app.wsgi()
    # What is collected now leaves no holes, and what is frozen is not written to by later collections.
    gc.collect()
    gc.freeze()
    # A process that it forks now could not handle the signal yet.
    _stop_if_asked(server)


def post_fork(server: Any, _worker: Any) -> None:
    """End a new process that is asked to stop before it has handlers of its own; it has begun nothing.

    Those that it inherits only queue a signal. The parent sends it once, and would wait for `graceful_timeout`.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))
    _stop_if_asked(server)


def _stop_if_asked(server: Any) -> None:
    """End this process if it was asked to stop meanwhile."""
    while not server.SIG_QUEUE.empty():
        if server.SIG_QUEUE.get_nowait() in _STOP_SIGNALS:
            raise SystemExit(0)


def post_worker_init(_worker: Any) -> None:
    """Open what each process has for itself, its threads and locked files.

    Log what ends a greenlet; gevent would print it, in its own format and with the error's words. Give name lookups their
    threads: gevent's ten would be fewer than the resolver shares between accounts.
    """
    error_reports.configure(_settings, "service")
    tracing.configure(_settings, "service")
    metrics.open_files(_settings.data_dir, metrics.ProcessKind.SERVICE)
    hub = gevent.get_hub()
    hub.print_exception = _log_greenlet_error
    hub.threadpool.maxsize = max(hub.threadpool.maxsize, dns_resolver.MAX_THREADS)


def worker_exit(_server: Any, _worker: Any) -> None:
    """Send the last spans and reports, for a moment at most, once everything is answered."""
    tracing.close()
    error_reports.close()


def _log_greenlet_error(_context: object, _kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
    logs.log_crash(error, trace)
