"""Terminal helpers: secret input and progress."""

import sys
from typing import Any

import click

from bin.cli.output import Refused


def secret_line() -> str:
    """Read a secret from one line of standard input; a terminal does not echo it."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Secret", hide_input=True, err=True)
        return typed
    return sys.stdin.readline().removesuffix("\n").removesuffix("\r")


def secret_or_setting(from_stdin: bool, setting: str | None, name: str) -> str:
    """Return a secret from standard input, or the value of a setting with this name. Raises Refused if it is empty."""
    secret = secret_line() if from_stdin else setting
    if not secret:
        raise Refused(f"No secret; set {name}, or pass the secret on standard input with --secret-stdin.")
    return secret


def progress_bar(length: int, label: str) -> Any:
    """Return a progress bar on standard error, which only a terminal shows."""
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=not sys.stderr.isatty())
