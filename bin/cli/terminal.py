"""Terminal helpers: secret input and color."""

import os
import sys

import click


def secret_line() -> bytes:
    """Read a secret from one line of standard input; a terminal does not echo it."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Secret", hide_input=True, err=True)
        return typed.encode()
    return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")


def may_colour() -> bool | None:
    """Return False if NO_COLOR is set, else None: click then decides by the terminal."""
    return False if os.environ.get("NO_COLOR") else None
