"""The archive: rows that retention removes, first written as JSON Lines to a folder that only its owner can read.

There is one file for each table and run, and one line for each row, by its columns: timestamps in RFC 3339, JSON as JSON.
Encrypted columns are left out. Rows are removed only after `settle` has synced everything to the disk. If the process is
killed in between, the next archive contains these rows again, and the last line of a file may be incomplete.

Refuses a folder that other users may read.
"""

import json
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from runtime.files import sync
from schemas.base.timestamps import format_rfc3339

#: Encrypted values are useless without their keys, which are rotated.
_SEALED: Final = "_sealed"
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600

_one_line: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class UnsafeFolder(Exception):
    """Other users can read the folder."""


class Archive:
    """The files of one run. Each file is opened when its first row is written."""

    def __init__(self, folder: Path, now: datetime) -> None:
        """Create the folder if it does not exist. Raises UnsafeFolder, OSError."""
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            raise UnsafeFolder
        self._folder = folder
        self._run = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._files: dict[str, BinaryIO] = {}

    def write(self, model: Any, found: Iterable[Sequence[Any]]) -> None:
        """Write rows of a table, each the values of its `archived_fields`. Raises OSError."""
        names = [field.column_name for field in archived_fields(model)]
        lines = [f"{_one_line(dict(zip(names, map(_readable, row), strict=True)))}\n".encode() for row in found]
        if lines:
            self._file(str(model._meta.table_name)).write(b"".join(lines))

    def sync(self) -> None:
        """Sync everything that was written to the disk. Raises OSError."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def _file(self, table: str) -> BinaryIO:
        if table not in self._files:
            path = self._folder / f"{self._run}-{table}.jsonl"
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
            self._files[table] = os.fdopen(made, "wb")
            # The folder too: without its name on the disk, the file would be lost.
            sync(self._folder)
        return self._files[table]


def archived_fields(model: Any) -> list[Any]:
    """Return the columns of a table that an archive contains."""
    return [field for name, field in model._meta.columns.items() if not name.endswith(_SEALED)]


def _readable(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_rfc3339(value)
    return value.decode() if isinstance(value, bytes) else value
