"""Reports whether the disks have room, by the last write that failed for lack of space and by the free space of folders.

The check writes nothing: the system reports the free space of DATA_DIR and of SQLite's folder. A full disk of PostgreSQL
shows only when a write of this process fails.
"""

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

from runtime.logs import chain_of

#: SQLite's write-ahead log has 4 MiB between two checkpoints; a segment of PostgreSQL's has 16 MiB.
FULL_BYTES: Final = 16 * 1024**2
#: What a small installation writes in a day.
LOW_BYTES: Final = 100 * 1024**2
#: How long a failed write counts. There may be no later write that shows that the disk has room again.
FULL_FOR_S: Final = 30.0
#: PostgreSQL's error code for a full disk.
_DISK_FULL: Final = "53100"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: SQLite's extended error codes have the primary code in the lowest byte.
_PRIMARY_CODE: Final = 0xFF


class DiskState(StrEnum):
    """How much room a disk has: `low` is a warning, `full` means that nothing can be stored."""

    OK = "ok"
    LOW = "low"
    FULL = "full"


class LastFullWrite:
    """The time at which a write of this process last failed for lack of space."""

    def __init__(self) -> None:
        self._failed_at: float | None = None

    def record(self) -> None:
        """Record that a write failed just now."""
        self._failed_at = time.monotonic()

    def clear(self) -> None:
        """Delete the record, because another database was opened."""
        self._failed_at = None

    def is_recent(self) -> bool:
        """Return whether the last failed write is no older than FULL_FOR_S."""
        return self._failed_at is not None and time.monotonic() - self._failed_at < FULL_FOR_S


LAST_FULL_WRITE: Final = LastFullWrite()


def is_full_error(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, reports a full disk."""
    for each in chain_of(error):
        if isinstance(each, sqlite3.Error) and getattr(each, "sqlite_errorcode", 0) & _PRIMARY_CODE == sqlite3.SQLITE_FULL:
            return True
        if getattr(each, "sqlstate", None) == _DISK_FULL or (isinstance(each, OSError) and each.errno in _NO_SPACE):
            return True
    return False


def free_bytes(folders: Iterable[Path]) -> int:
    """Return the free space of the fullest disk that has one of the folders; a missing folder counts as its parent."""
    # Not Path.is_dir, which raises an error if this user may not enter the folder above.
    existing = [next(each for each in (folder, *folder.parents) if os.path.isdir(each)) for folder in folders]  # noqa: PTH112 - see above
    return min(shutil.disk_usage(each).free for each in existing)


def state_of(free: int) -> DiskState:
    """Return the state of a disk with this many free bytes: always `full` shortly after a failed write."""
    if free < FULL_BYTES or LAST_FULL_WRITE.is_recent():
        return DiskState.FULL
    return DiskState.LOW if free < LOW_BYTES else DiskState.OK
