"""An archive: what retention removes, written down first, as JSON Lines in a folder for its owner alone.

A file for each table and run, each line one row by its columns: instants in RFC 3339, JSON as JSON. What is sealed stays
out. `settle` returns when everything written is on the disk; rows are removed after that and not before. Whoever is killed
in between leaves rows that stand in the next archive again, and perhaps half a line at the end of a file.

Refuses a folder that others may read.
"""

import json
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from peewee import BlobField, BooleanField

from runtime.fsync import sync
from schemas.base.timestamps import rfc3339
from storage.db.columns import JsonField, MomentField
from storage.db.models import ALL

#: What the vault closed means nothing without its keys, and those grow old.
_SEALED: Final = "_sealed"
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600

_FIELDS: Final = {str(model._meta.table_name): model._meta.columns for model in ALL}

_one_line: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class UnsafeFolder(Exception):
    """Others can read the folder."""


class Archive:
    """One run's files; they are opened when the first row comes."""

    def __init__(self, folder: Path, now: datetime) -> None:
        """Make the folder where it is not there. Raises UnsafeFolder, OSError."""
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            raise UnsafeFolder
        self._folder = folder
        self._run = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._files: dict[str, BinaryIO] = {}
        self._unsettled: set[str] = set()

    def write(self, table: str, columns: Sequence[str], found: Iterable[Sequence[Any]]) -> None:
        """Write rows of a table, as the database gives them for `columns`. Raises OSError."""
        lines = [_line(table, columns, row) for row in found]
        if lines:
            self._file(table).write(b"".join(lines))
            self._unsettled.add(table)

    def settle(self) -> None:
        """Return when everything that was written is on the disk. Raises OSError."""
        for table in sorted(self._unsettled):
            self._files[table].flush()
            os.fsync(self._files[table].fileno())
        self._unsettled.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def _file(self, table: str) -> BinaryIO:
        if table not in self._files:
            self._files[table] = self._created(table)
        return self._files[table]

    def _created(self, table: str) -> BinaryIO:
        path = self._folder / f"{self._run}-{table}.jsonl"
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
        # Its name: without it what the file holds is nowhere.
        sync(self._folder)
        return os.fdopen(made, "wb")


def kept_columns(table: str) -> list[str]:
    """Return the columns of a table that an archive keeps."""
    return [name for name in _FIELDS[table] if not name.endswith(_SEALED)]


def _line(table: str, columns: Sequence[str], row: Sequence[Any]) -> bytes:
    fields = _FIELDS[table]
    record = {name: _readable(fields[name], value) for name, value in zip(columns, row, strict=True)}
    return f"{_one_line(record)}\n".encode()


def _readable(field: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(field, MomentField):
        return rfc3339(field.python_value(value))  # type: ignore[arg-type]  # a value that is there gives a moment
    if isinstance(field, JsonField):
        return field.python_value(value)
    if isinstance(field, BlobField):
        return bytes(value).decode()
    return bool(value) if isinstance(field, BooleanField) else value
