"""Prints records: aligned text, or one JSON document with --json."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from bin.cli.output import echo
from schemas.base.printable import printable

Record = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def print_record(record: Record, as_json: bool) -> None:
    """Print one record."""
    if as_json:
        echo(json.dumps(record, ensure_ascii=False))
        return
    width = max(len(name) for name in record)
    for name, value in record.items():
        echo(f"{name:{width}}  {_shown(value)}")


def print_records(records: Sequence[Record], as_json: bool, columns: Sequence[str], none: str) -> None:
    """Print a list: every field in JSON, else `columns` as a table, or the text `none` if the list is empty."""
    if as_json:
        echo(json.dumps(list(records), ensure_ascii=False))
        return
    if not records:
        echo(none)
        return
    rows = [list(columns), *([_shown(record.get(name)) for name in columns] for record in records)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    for row in rows:
        echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        # A line feed or a wide space would break the table.
        return printable("".join(" " if letter.isspace() else letter for letter in value))
    return printable(json.dumps(value, ensure_ascii=False)) if isinstance(value, dict | list) else str(value)
