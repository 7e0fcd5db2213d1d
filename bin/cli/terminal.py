"""Terminal helpers: secret input and progress."""

import os
import sys
from pathlib import Path
from typing import Any, Final, TextIO

import click

_STANDARD_ERROR: Final = 2


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; it is None if it was closed before the start."""
    return stream is not None and stream.isatty()


def replace_closed_streams() -> None:
    """Replace standard input and standard error if they were closed before the start: `sys.stdin` is None then.

    A closed input counts as empty. Processes that this one starts inherit the new standard error, so that no other file gets
    its descriptor.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - open until the process ends
    if sys.stderr is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STANDARD_ERROR)
        os.set_inheritable(_STANDARD_ERROR, True)
        sys.stderr = os.fdopen(_STANDARD_ERROR, "w")


def secret_line() -> bytes:
    """Read a secret from one line of standard input; a terminal does not echo it."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Secret", hide_input=True, err=True)
        return typed.encode()
    return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")


def progress_bar(length: int, label: str) -> Any:
    """Return a progress bar on standard error, which only a terminal shows."""
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=not is_terminal(sys.stderr))
