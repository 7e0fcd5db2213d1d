"""Imports the modules that the service imports before it reads its settings, for forked processes."""

import importlib

from gevent import monkey

# As in `service.server.gunicorn_config`, before the other imports: modules keep references to unpatched functions.
monkey.patch_all(os=False, signal=False)
for name in ("gunicorn.app.wsgiapp", "service.server.gunicorn_worker", "service.app", "storage.db.drivers.postgresql"):
    importlib.import_module(name)
