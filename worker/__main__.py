"""Runs one worker process, `python -m worker`; what starts it has checked settings and database."""

from runtime import logs, tls_key_log, tracing
from schemas.settings.definitions import load_settings
from storage.db.drivers.unused_driver import leave_out_postgresql

# Before the daemon is imported: requests prepares TLS when it is imported.
tls_key_log.disable()

if __name__ == "__main__":
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format)
    leave_out_postgresql(settings.database_url)
    tracing.leave_out_if_unused(settings)

    from worker import daemon

    raise SystemExit(daemon.run(settings))
