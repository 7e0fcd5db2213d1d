"""Terminal helpers: secret input and progress."""

import os
import sys
from pathlib import Path
from typing import Any, TextIO

import click


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; it is None if it was closed before the start."""
    return stream is not None and stream.isatty()


def replace_closed_input() -> None:
    """Replace standard input by an empty file if it was closed before the start: `sys.stdin` is None then."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - open until the process ends


def secret_line() -> bytes:
    """Read a secret from one line of standard input; a terminal does not echo it."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Secret", hide_input=True, err=True)
        return typed.encode()
    return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")


def progress_bar(length: int, label: str) -> Any:
    """Return a progress bar on standard error, which only a terminal shows."""
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=not is_terminal(sys.stderr))
