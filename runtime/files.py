"""The files of this process: how many it may open, locks on them, and how content and names reach the disk."""

import errno
import fcntl
import os
import resource
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO


def raise_file_limit(count: int) -> int:
    """Raise the soft limit of open files and connections to `count`, or a lower hard limit; return what is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def try_lock(file: int | IO[bytes]) -> bool:
    """Lock a file for this process alone; return False if another one holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def require_replaceable(path: Path) -> bool:
    """Return whether a file is at `path`. Raises OSError unless it is a regular one.

    To rename a file over a device, a FIFO or a symbolic link destroys it. To write through a link instead would let another
    user of its folder choose which file is overwritten.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        kind = "a symbolic link; use the path of the file itself" if stat.S_ISLNK(mode) else "not a regular file"
        raise OSError(errno.EINVAL, f"it is {kind}")
    return True


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a file with mode 0600 that replaces the one at `path` once all of it is on the disk.

    Raises OSError, also for a path that is not that of a regular file.
    """
    require_replaceable(path)
    # The draft has a unique name, because another process may be replacing the same file.
    # A rule that ignores `.env.*`, such as git's here, then ignores the draft of `.env` as well.
    descriptor, name = tempfile.mkstemp(".part", f".{path.name.removeprefix('.')}.", path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk: a power cut may lose either without its sync. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
