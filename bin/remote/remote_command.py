"""The base of remote commands: they send requests, and print the responses as the commands on the server would."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from bin.api_client.client import ApiClient, ApiRecord, path_to
from bin.cli.records import Record, RecordTable, print_record

#: Why options that name an account or a user are not available.
TOKEN_DECIDES: Final = "the token decides"  # noqa: S105 - a sentence


class RemoteCommand(NamedTuple):
    """The remote form of a command; `run` gets the client and the command's parameters.

    Parameters in `without` are refused, with `why` as the reason.
    """

    run: Callable[..., None]
    without: tuple[str, ...] = ()
    why: str = TOKEN_DECIDES


def only(*names: str) -> Callable[[ApiRecord], Record]:
    """Return a function that picks the members that the command on the server prints."""
    return lambda record: {name: record[name] for name in names}


def printing(record_of: Callable[..., Record], **options: Any) -> RemoteCommand:
    """Return the command that prints the record which `record_of` returns for the client and the command's parameters."""

    def run(api: ApiClient, *, as_json: bool, **given: Any) -> None:
        print_record(record_of(api, **given), as_json)

    return RemoteCommand(run, **options)


def showing(template: str, **options: Any) -> RemoteCommand:
    """Return the command that prints the record at a path; `template` has the names of arguments."""
    return printing(lambda api, **ids: api.get(path_to(template, **ids)), **options)


def posting(template: str) -> RemoteCommand:
    """Return the command that sends a POST without a body, and prints the record of the response."""
    return printing(lambda api, **ids: api.post(path_to(template, **ids)))


def removing(template: str) -> RemoteCommand:
    """Return the command that deletes the record at a path, and prints its id."""

    def removed(api: ApiClient, **ids: Any) -> Record:
        api.delete(path_to(template, **ids))
        return {"id": next(iter(ids.values())), "removed": True}

    return printing(removed)


def listing(path: str, table: RecordTable, shape: Callable[[ApiRecord], Record] | None = None) -> RemoteCommand:
    """Return the command that prints a list, the newest first, at most `limit` records; with a `shape` the oldest first."""

    def run(api: ApiClient, *, as_json: bool, limit: int | None = None) -> None:
        found = api.items(path, limit)
        # The lists of the commands that print another shape begin with the oldest.
        table.show(found if shape is None else [shape(each) for each in reversed(found)], as_json)

    return RemoteCommand(run)
