"""How gunicorn serves the application.

The workers are gevent workers, because with sync or gthread workers a few slow clients, one per process or thread, block all
other clients. A greenlet that waits for a slow client uses a few kilobytes. docs/performance.md has the figures.
"""

import gc
import os
import signal
import sys
from types import TracebackType
from typing import Any

import gevent
import gevent.threadpool  # otherwise gevent would import it in each serving process; imported here, the processes share it
from gevent import monkey

from runtime import dns_resolver, error_reports, logs, metrics, tls_key_log, tracing
from runtime.files import raise_file_limit
from schemas.settings.definitions import InvalidSettings, load_settings
from storage.db.drivers.unused_driver import leave_out_postgresql

# Repeated here for gunicorn that is started without the command `serve`.
tls_key_log.disable()
try:
    _settings = load_settings()
except InvalidSettings as wrong:
    # `serve` has already checked the settings. gunicorn started by hand would print a stack trace instead of the report.
    sys.stderr.write(f"{wrong}\n")
    raise SystemExit(2) from None
# Configured here for errors before the application is loaded.
logs.configure(_settings.log_level, _settings.log_format)

bind = [_settings.bind]
workers = _settings.web_processes
worker_class = "service.server.gunicorn_worker.ServiceWorker"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
#: Files that a process opens in addition to clients' connections: databases, Redis, metrics, logs. Without this reserve,
#: many idle clients would leave no file for a database connection, and every request would fail.
_RESERVED_FILES = 200
#: The maximum number of connections of one process.
worker_connections = max(1, raise_file_limit(_settings.web_threads + _RESERVED_FILES) - _RESERVED_FILES)
#: A process that does not report for this many seconds is replaced.
timeout = 30
#: Seconds in which requests in progress may finish after SIGTERM.
graceful_timeout = 15
#: Seconds that an idle connection is kept; clients that poll keep their connection between polls.
keepalive = 75
# TRUSTED_PROXIES names the proxies whose headers are trusted. gunicorn's default accepts SCRIPT_NAME from any local process.
# Through a local proxy that forwards this header, any client could then get /metrics as /x/metrics, which the proxy's rules
# do not cover.
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
# The control socket, under $HOME, would be a second entry point that is not needed.
control_socket_disable = True
# Our own access log contains only routes; gunicorn's would contain paths and queries.
accesslog = None
# At "warning" gunicorn would log the content of malformed request lines and headers.
loglevel = "error"
logger_class = "service.server.gunicorn_logger.RootLogger"
proc_name = "riskrelay-service"


def when_ready(server: Any) -> None:
    """Load the application before the serving processes are forked, so that they share its memory.

    gevent patches before that, because modules keep references to what they import. `os.fork` and the signals stay
    unpatched, because the parent watches its children with them.
    """
    monkey.patch_all(os=False, signal=False)
    leave_out_postgresql(_settings.database_url)
    tracing.leave_out_if_unused(_settings)
    server.app.wsgi()
    # Collecting garbage now leaves no holes in the shared memory. Later collections do not write to frozen objects.
    gc.collect()
    gc.freeze()
    # Exit now if a stop signal has arrived: a process that is forked now could not handle it yet.
    _exit_if_stopped(server)


def post_fork(server: Any, _worker: Any) -> None:
    """End a new process that receives a stop signal before it has its own handlers; it has no work yet.

    The inherited handlers only queue a signal. The parent sends the signal once, and would wait for `graceful_timeout`.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))
    _exit_if_stopped(server)


def _exit_if_stopped(server: Any) -> None:
    """End this process if a stop signal is queued."""
    while not server.SIG_QUEUE.empty():
        if server.SIG_QUEUE.get_nowait() in _STOP_SIGNALS:
            raise SystemExit(0)


def post_worker_init(_worker: Any) -> None:
    """Open what each process needs for itself, such as threads and locked files: error reports, spans and metrics.

    Log errors that end a greenlet: gevent would print them in its own format, with the text of the error. Allow more threads
    for name lookups: gevent's default of ten is less than the resolver shares between accounts.
    """
    error_reports.configure(_settings, "service")
    tracing.configure(_settings, "service")
    metrics.open_files(_settings.data_dir, metrics.ProcessKind.SERVICE)
    hub = gevent.get_hub()
    hub.print_exception = _log_greenlet_error
    hub.threadpool.maxsize = max(hub.threadpool.maxsize, dns_resolver.MAX_THREADS)


def worker_exit(_server: Any, _worker: Any) -> None:
    """After all requests have been responded to, spend a moment to send the last spans and error reports."""
    tracing.close()
    error_reports.close()


def _log_greenlet_error(_context: object, _kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
    logs.log_crash(error, trace)
