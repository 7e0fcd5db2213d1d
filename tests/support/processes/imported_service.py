"""What the service imports before it reads its settings, for processes that are forked."""

import importlib

from gevent import monkey

# As `service.server.gunicorn_config` does, before the other imports: modules keep what they import.
monkey.patch_all(os=False, signal=False)
for name in ("gunicorn.app.wsgiapp", "service.server.gunicorn_worker", "service.app", "storage.db.drivers.postgresql"):
    importlib.import_module(name)
