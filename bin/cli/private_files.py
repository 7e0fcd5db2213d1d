"""Writes files that only their owner can read."""

import os
from collections.abc import Iterable
from pathlib import Path

from bin.cli.installation import Refused


def write_private(path: Path, parts: Iterable[str]) -> None:
    """Write text to a file with mode 0600, and replace the file as a whole. Raises Refused if it cannot be written."""
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.writelines(parts)
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as failed:
        raise Refused(f"{path} cannot be written: {failed.strerror}.") from None
