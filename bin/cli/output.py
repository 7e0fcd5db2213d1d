"""Prints text: commands print with `echo` only, so that no third-party text reaches a terminal unescaped."""

import click

from schemas.base.printable import printable


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, with escapes in place of characters that are not printable; line feeds stay."""
    click.echo(printable(text, keep="\n"), err=err, nl=nl)


def echo_styled(text: str, *, color: bool | None) -> None:
    """Print text with styles; the caller passes every part that is not its own through `printable`."""
    click.echo(text, color=color)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 page` or `2 pages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
