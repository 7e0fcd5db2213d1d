"""What a worker imports, for processes that are forked."""

import importlib

for name in ("worker.daemon", "storage.db.drivers.postgresql"):
    importlib.import_module(name)
