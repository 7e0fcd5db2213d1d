"""Terminal helpers: secret input and progress."""

import sys
from typing import Any

import click


def secret_line() -> bytes:
    """Read a secret from one line of standard input; a terminal does not echo it."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Secret", hide_input=True, err=True)
        return typed.encode()
    return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")


def progress_bar(length: int, label: str) -> Any:
    """Return a progress bar on standard error, which only a terminal shows."""
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=not sys.stderr.isatty())
