"""Prints text: commands print with `echo` only, so that no third-party text reaches a terminal unescaped.

A command fails if its output cannot be written; a pipe that its reader has closed ends it without a message, as `head`
expects.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

import click

from schemas.base.printable import printable


class Refused(click.ClickException):
    """The command was refused or failed; exit code 1."""

    def show(self, file: object = None) -> None:
        """Print the reason as it is."""
        echo(f"riskrelay: {self.message}", err=True)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, with escapes in place of characters that are not printable; line feeds stay. Raises Refused."""
    shown = printable(text, keep="\n")
    if err:
        click.echo(shown, err=True, nl=nl)
        return
    with _written():
        click.echo(shown, nl=nl)


def echo_styled(text: str) -> None:
    """Print text, on a terminal with styles unless NO_COLOR is set. Raises Refused.

    The caller must pass third-party text through `printable`.
    """
    with _written():
        click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


def write_file(text: str) -> None:
    """Write a part of a file to standard output: as UTF-8, without escapes. Raises Refused."""
    with _written():
        click.echo(text.encode(), nl=False)


@contextmanager
def _written() -> Iterator[None]:
    """Raise Refused if standard output cannot be written."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as failed:
        # At its exit, Python would write the rest once more, and fail with a second message.
        sys.stdout = None
        raise Refused(f"Standard output cannot be written: {failed.strerror}.") from None


@contextmanager
def writing(path: Path, fix: str = "") -> Iterator[None]:
    """Raise Refused, with a sentence that may name the fix, if a file cannot be written."""
    try:
        yield
    except OSError as failed:
        raise Refused(f"{path} cannot be written: {failed.strerror or failed}. {fix}".rstrip()) from None


def escape_unencodable() -> None:
    """Print characters that the encoding of the output lacks as escapes, so that no command fails because of its locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 page` or `2 pages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
