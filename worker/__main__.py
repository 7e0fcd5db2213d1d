"""Runs one worker process, `python -m worker`."""

from schemas.settings.definitions import load_settings
from worker.startup import import_worker

if __name__ == "__main__":
    raise SystemExit(import_worker(load_settings())())
