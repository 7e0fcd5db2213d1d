"""Writes the output of a command to a file that only its owner can read, or to standard output."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from bin.cli.output import echo, write_file, writing
from runtime.files import replacing


def write_private(path: Path | None, parts: Iterable[str]) -> None:
    """Write text to a file with mode 0600 and replace the file as a whole, or write to standard output without a path.

    Raises Refused if it cannot be written.
    """
    if path is None:
        # Escapes would change a file, but third-party text must not control a terminal.
        write = partial(echo, nl=False) if sys.stdout.isatty() else write_file
        for part in parts:
            write(part)
        return
    with writing(path), replacing(path) as file:
        file.writelines(parts)
