"""Prints records: aligned text, or one JSON document with --json. Also the code that commands with such output share."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

from bin.cli.output import echo
from schemas.base.printable import printable

Record = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])
Entry = TypeVar("Entry")

#: Rows of a table without `--limit`: about one screen.
SHOWN: Final = 50
_PAGE: Final = 500


class RecordTable(NamedTuple):
    """A list as text: its columns, and the text in place of an empty one."""

    columns: Sequence[str]
    none: str

    def show(self, records: Sequence[Record] | Record, as_json: bool, none: str | None = None) -> None:
        """Print a list: every field in JSON, else the columns as a table, or a text if the list is empty; or one record."""
        if isinstance(records, Mapping):
            print_record(records, as_json)
            return
        if as_json:
            _print_json(list(records))
            return
        if not records:
            echo(none or self.none)
            return
        rows = [list(self.columns), *([_shown(record.get(name)) for name in self.columns] for record in records)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(self.columns))]
        for row in rows:
            echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def shown_of(limit: int | None, as_json: bool, is_all: bool = False) -> int | None:
    """Return how many entries a list prints at most; None is all. Raises UsageError for both --limit and --all."""
    if limit is not None and is_all:
        raise click.UsageError("Use either --limit or --all.")
    return limit or (None if as_json or is_all else SHOWN)


def all_pages(read: Callable[[int, Any], Sequence[Entry]], id_of: Callable[[Entry], Any]) -> Iterator[Entry]:
    """Yield every entry of a list that is read page by page.

    `read` takes the maximum number of entries and the id of the last entry of the previous page, None for the first page.
    """
    last_id = None
    while page := read(_PAGE, last_id):
        yield from page
        last_id = id_of(page[-1])


def json_option(command: Command) -> Command:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def print_record(record: Record, as_json: bool) -> None:
    """Print one record: a line for each field, each field of its objects (as `ticket.title`), and each line of a text."""
    if as_json:
        _print_json(record)
        return
    fields = dict(_flat(record))
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        first, *others = value.split("\n") if isinstance(value, str) else [value]
        echo(f"{name:{width}}  {_shown(first)}")
        for line in others:
            echo(f"{'':{width}}  {_shown(line)}".rstrip())


def _flat(record: Record) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record and of its objects; deeper objects stay whole, because senders name their fields."""
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from ((printable(f"{name}.{inner}"), each) for inner, each in value.items())
        else:
            yield name, value


def _print_json(document: Any) -> None:
    # JSON is UTF-8. In another encoding, use only ASCII: other characters could be misread, or become Python's escapes.
    encoding = getattr(sys.stdout, "encoding", None) or ""
    echo(json.dumps(document, ensure_ascii=encoding.lower().replace("-", "") != "utf8"))


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        # A line feed or a wide space would break the table.
        return printable("".join(" " if letter.isspace() else letter for letter in value))
    return printable(json.dumps(value, ensure_ascii=False)) if isinstance(value, dict | list) else str(value)
