"""Option types that take several values, separated by commas."""

from collections.abc import Iterable
from typing import Any

import click


class ValueList(click.ParamType[tuple[Any, ...]]):
    """Values of one type, separated by commas; returns a tuple."""

    def __init__(self, each: click.ParamType[Any]) -> None:
        self._each = each
        self.name = each.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Convert every value; the first that is invalid is reported as the type of one reports it."""
        if isinstance(value, tuple):
            return value
        return tuple(self._each.convert(part.strip(), param, ctx) for part in str(value).split(","))


def several_of(words: Iterable[str]) -> ValueList:
    """Return the type of a choice of words; an error names all of them."""
    return ValueList(click.Choice([*map(str, words)]))
