"""Imports the modules that a worker imports, for forked processes."""

import importlib

for name in ("worker.daemon", "storage.db.drivers.postgresql"):
    importlib.import_module(name)
