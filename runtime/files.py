"""The files of this process: how many it may open, and how their content and names reach the disk."""

import os
import resource
from pathlib import Path


def raise_file_limit(count: int) -> int:
    """Raise the soft limit of open files and connections to `count`, or a lower hard limit; return what is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk: after a power cut each needs its own sync. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
