"""What the service imports before it reads its settings, for processes that are forked."""

import importlib
import sys

from gevent import monkey

from runtime import tls_key_log

# In the order of `service.server.gunicorn_config`: modules keep what they import.
tls_key_log.disable()
monkey.patch_all(os=False, signal=False)
# As there, unless traces are sent.
sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # the annotation knows modules alone
for name in ("gunicorn.app.wsgiapp", "service.server.gunicorn_worker", "service.app", "storage.db.drivers.postgresql"):
    importlib.import_module(name)
