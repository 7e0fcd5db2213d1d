"""Imports a worker without what it never uses; the command that starts it has checked settings and database."""

import gc
import sys
import warnings
from collections.abc import Callable
from functools import partial

from runtime import logs, tls_key_log, tracing
from schemas.settings.definitions import Settings
from storage.db.drivers.unused_driver import leave_out_postgresql


def import_worker(settings: Settings) -> Callable[[], int]:
    """Configure the logs, import everything, and return the function that runs a worker and returns its exit code.

    It opens and starts nothing, so that several processes may be forked afterwards.
    """
    # Before the daemon is imported: requests prepares TLS when it is imported.
    tls_key_log.disable()
    # requests imports charset_normalizer only to guess text encodings. Workers read bytes or JSON; without it, each takes
    # 2.5 MB less.
    sys.modules["charset_normalizer"] = None  # type: ignore[assignment]  # the annotation allows only modules
    warnings.filterwarnings("ignore", "Unable to find acceptable character detection dependency")
    logs.configure(settings.log_level, settings.log_format)
    leave_out_postgresql(settings.database_url)
    tracing.leave_out_if_unused(settings)

    from worker import daemon  # noqa: PLC0415 - see above

    # Imported objects are never garbage; checking them would take a fifth of a second when the process ends. Checks would
    # also write to the memory that forked processes share.
    gc.freeze()
    return partial(daemon.run, settings)
