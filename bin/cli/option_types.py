"""Types of options: numbers that fit into the database, so that a typing error is refused, and lists with commas."""

from collections.abc import Callable
from typing import Any, Final

import click

from bin.cli.records import Command
from schemas.base.fields import MAX_ID

#: An auto-increment id: four bytes in PostgreSQL, more than any installation needs.
ROW_ID: Final = click.IntRange(1, 2**31 - 1)
#: A maximum; SQLite integers have eight bytes.
LIMIT: Final = click.IntRange(1, 2**63 - 1)
#: A scanner's number of a scan run.
SCAN_RUN: Final = click.IntRange(1, MAX_ID)
#: A hundred years: no token needs more, and much longer times would exceed the range of dates.
DAYS: Final = click.IntRange(1, 36_500)


class ValueList(click.ParamType[tuple[Any, ...]]):
    """Values of one type, separated by commas; returns a tuple."""

    def __init__(self, each: click.ParamType[Any]) -> None:
        self._each = each
        self.name = each.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Convert every value; the type of a single value reports the first invalid one."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if "" in parts:
            # An empty value may come from an unset shell variable; a filter with it would match other records than meant.
            self.fail("A value is empty.", param, ctx)
        return tuple(self._each.convert(part, param, ctx) for part in parts)


def require_one(usage: str, *given: object) -> None:
    """Raise UsageError unless exactly one of these options was given; None and False count as not given."""
    if sum(each is not None and each is not False for each in given) != 1:
        raise click.UsageError(usage)


class Parsed(click.ParamType[Any]):
    """Text that a function parses; if it returns None, the text is wrong usage, with `fix` as the message."""

    name = "text"

    def __init__(self, read: Callable[[str], Any], fix: str) -> None:
        self._read = read
        self._fix = fix

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that the function returns for the text."""
        found = self._read(str(value))
        return self.fail(self._fix, param, ctx) if found is None else found


def options(*each: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return the decorator that adds these options, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(each):
            command = option(command)
        return command

    return add
