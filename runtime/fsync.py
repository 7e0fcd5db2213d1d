"""Syncs files and folders: after a power cut, a file's content needs its own sync, its name that of the folder."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
