"""What a worker imports, for processes that are forked."""

import importlib
import sys

from runtime import tls_key_log

# In the order of `worker.__main__`.
tls_key_log.disable()
# As there, unless traces are sent.
sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # the annotation knows modules alone
for name in ("worker.daemon", "storage.db.drivers.postgresql"):
    importlib.import_module(name)
