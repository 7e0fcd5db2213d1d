"""What a tracker's response says: the values in it, and how the issue of an export is recognized."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from schemas.trackers.exchange import TrackerIssue, TrackerRefused, TrackerResponse
from schemas.trackers.failures import unreadable

Value = TypeVar("Value")

#: Longer URLs of issues are left out: they come from the tracker's response and may have any length.
MAX_ISSUE_URL: Final = 500


def value_of(response: TrackerResponse, kind: type[Value], *path: str | int) -> Value:
    """Return the value of this kind at `path` of a successful response. Raises TrackerRefused if there is none."""
    found = value_at(response.json(), *path)
    if not isinstance(found, kind):
        raise TrackerRefused(unreadable())
    return found


def text_at(value: Any, *path: str | int) -> str | None:
    """Return the text at `path` (names of objects, indexes of lists) in a parsed response; None if there is none."""
    found = value_at(value, *path)
    return found if isinstance(found, str) else None


def value_at(value: Any, *path: str | int) -> Any:
    """Return the value at `path` in a parsed response; None if there is none, whatever the response is."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and 0 <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def is_number(value: Any) -> bool:
    """Return whether a value of a response is a positive integer of at most 64 bits, like the numbers and ids of issues."""
    return type(value) is int and 0 < value < 2**63


def issue_of(number: Any, url: Any, place: str, own_url: str) -> TrackerIssue | None:
    """Return the issue that a response names by a number and the URL of its page; None if it names none of this `place`.

    `place` is the path of the repository or project. `own_url` is the URL of its issues; the issue's URL is built from it if
    the response has no URL that may be shown.
    """
    if not is_number(number):
        return None
    page = issue_url(url)
    if page is None:
        return TrackerIssue(str(number), f"{own_url}/{number}")
    path = page.partition("://")[2].partition("/")[2].casefold()
    is_ours = f"/{place.casefold()}/" in f"/{path}" and path.endswith(f"/{number}")
    return TrackerIssue(str(number), page) if is_ours else None


def issue_url(value: Any) -> str | None:
    """Return an issue's URL from a response; None unless it is an http(s) URL of at most 500 printable characters."""
    if not isinstance(value, str) or len(value) > MAX_ISSUE_URL or not value.isprintable():
        return None
    return value if re.fullmatch(r"https?://[^\s/?#\\@]+(?:[/?#]\S*)?", value) else None


def oldest_with_marker(
    issues: Iterable[Any], member: str, marker: str, issue_from: Callable[[Any], TrackerIssue | None]
) -> TrackerIssue | None:
    """Return the oldest listed issue whose text (`member`) has the marker: a person may have quoted it in a later issue.

    `issue_from` returns the issue for a listed entry; its id is a number.
    """
    having = (each for each in issues if marker in (text_at(each, member) or ""))
    found = (issue for issue in map(issue_from, having) if issue is not None)
    return min(found, key=lambda issue: int(issue.id), default=None)
