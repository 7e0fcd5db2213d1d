"""What several commands ask of the terminal that they are typed in."""

import os
import sys

import click


def secret_line() -> bytes:
    """Read a secret from one line of standard input; what is typed on a terminal is not shown there."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Secret", hide_input=True, err=True)
        return typed.encode()
    return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")


def may_colour() -> bool | None:
    """None where click may decide by the terminal, False where NO_COLOR asks for none."""
    return False if os.environ.get("NO_COLOR") else None
