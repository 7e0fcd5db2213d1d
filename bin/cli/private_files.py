"""Writes files that only their owner can read."""

from collections.abc import Iterable
from pathlib import Path

from bin.cli.installation import Refused
from runtime.files import replacing


def write_private(path: Path, parts: Iterable[str]) -> None:
    """Write text to a file with mode 0600, and replace the file as a whole. Raises Refused if it cannot be written."""
    try:
        with replacing(path) as file:
            file.writelines(parts)
    except OSError as failed:
        raise Refused(f"{path} cannot be written: {failed.strerror}.") from None
