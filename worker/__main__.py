"""Runs one worker process, `python -m worker`; the command that starts it has checked settings and database."""

import gc
import sys
import warnings

from runtime import logs, tls_key_log, tracing
from schemas.settings.definitions import load_settings
from storage.db.drivers.unused_driver import leave_out_postgresql

# Before the daemon is imported: requests prepares TLS when it is imported.
tls_key_log.disable()
# requests imports charset_normalizer only to guess text encodings. Workers read bytes or JSON: leaving it out saves 2.5 MB.
sys.modules["charset_normalizer"] = None  # type: ignore[assignment]  # the annotation allows only modules
warnings.filterwarnings("ignore", "Unable to find acceptable character detection dependency")

if __name__ == "__main__":
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format)
    leave_out_postgresql(settings.database_url)
    tracing.leave_out_if_unused(settings)

    from worker import daemon

    # Imported objects are never garbage; checking them would take a fifth of a second when the process ends.
    gc.freeze()
    raise SystemExit(daemon.run(settings))
