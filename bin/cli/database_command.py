"""The commands that open the database, and print what they return."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from bin.cli.installation import opened
from bin.cli.records import json_option, print_record
from schemas.settings.definitions import Settings


def with_database(
    show: Callable[[Any, bool], None] = print_record, build: Callable[[Settings], Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return the decorator of a command that runs with an open database; `show` prints what it returns, with --json as JSON.

    With `build`, the first argument of the command is what `build` makes of the settings.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., None]:
        @json_option
        @wraps(command)
        def run(*, as_json: bool, **given: Any) -> None:
            with opened() as settings:
                built = () if build is None else (build(settings),)
                show(command(*built, **given), as_json)

        return run

    return decorate
